#include "remote/tls.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/iovecs.h"
#include "remote/openssl.h"
#include "remote/os_sockets.h"
#include "remote/resp_reply.h"

namespace kvcache::remote {
namespace {

// Constants of OpenSSL's headers, which are the same in 1.1 and 3.
constexpr int kBioTypeSourceSink = 0x400;
constexpr int kBioRead = 0x01;
constexpr int kBioWrite = 0x02;
constexpr int kBioRetry = 0x08;
constexpr int kBioControlEof = 2;
constexpr int kBioControlFlush = 11;
constexpr int kSetMode = 33;           // SSL_CTRL_MODE
constexpr int kSetReadAhead = 41;      // SSL_CTRL_SET_READ_AHEAD
constexpr int kSetServerName = 55;     // SSL_CTRL_SET_TLSEXT_HOSTNAME
constexpr int kSetLeastVersion = 123;  // SSL_CTRL_SET_MIN_PROTO_VERSION
constexpr int kTls12 = 0x0303;
// Some of a call's bytes may go before it has to wait, it may come again from a copy, and what is
// no data does not end a read: SSL_MODE_ENABLE_PARTIAL_WRITE, ..._MOVING_WRITE_BUFFER, AUTO_RETRY.
constexpr long kModes = 1 | 2 | 4;
constexpr std::uint64_t kNoRenegotiation = 1ULL << 30;
constexpr int kVerifyPeer = 1;
constexpr int kFormatPem = 1;
constexpr unsigned int kNoPartialWildcards = 0x4;
constexpr int kErrorWantRead = 2;
constexpr int kErrorWantWrite = 3;
constexpr int kErrorZeroReturn = 6;
constexpr long kUnknownIssuers[] = {2, 18, 19, 20, 21};  // self-signed ones among them
constexpr long kAnotherName[] = {62, 64};                // of a host, an address

constexpr std::size_t kRecordBytes = 16 << 10;  // the most that a record holds
constexpr std::size_t kReadBytes = 128 << 10;   // taken from the socket at once
constexpr std::size_t kMostAtOnce = 1 << 30;    // OpenSSL counts with int

class TlsStream final : public Stream {
 public:
  TlsStream(std::shared_ptr<const TlsContext> context, Socket socket)
      : context_(std::move(context)), socket_(std::move(socket)) {}
  ~TlsStream() override {
    // No farewell: replies say how long they are, and a child of fork() must not end the
    // connection of its parent.
    const OpenSslUse use;
    if (use && ssl_ != nullptr) openssl().SSL_free(ssl_);
  }

  Status connect(const std::string& host, const Deadline& deadline, bool& timed_out);
  Status send(std::vector<iovec> pieces, const Deadline& deadline, bool& timed_out) override;
  Result<std::size_t> receive(std::span<const iovec> pieces, const Deadline& deadline,
                              bool& timed_out) override;
  Result<std::size_t> peek(std::span<char> bytes, const Deadline& deadline) override;
  int file() const override { return socket_.file(); }
  bool has_more() const override {
    const OpenSslUse use;
    return use && openssl().SSL_has_pending(ssl_) == 1;
  }

  // What OpenSSL calls to move bytes: as much as goes now, or -1, and then maybe later.
  int write_some(BIO* bio, const char* data, int size);
  int read_some(BIO* bio, char* data, int size);
  bool is_closed() const { return closed_; }

 private:
  Status prepare(const std::string& host);
  template <typename Call>
  Result<std::size_t> attempt(const Deadline& deadline, const Call& call);
  Status failure(int kind);
  Status refusal(const std::string& host, const Status& status);
  Status wait(const Deadline& deadline, bool& timed_out);
  Status write_all(const char* data, std::size_t size, const Deadline& deadline, bool& timed_out);

  const std::shared_ptr<const TlsContext> context_;
  Socket socket_;
  SSL* ssl_ = nullptr;
  std::vector<char> record_ = std::vector<char>(kRecordBytes);  // pieces that are sent together
  const Deadline* deadline_ = nullptr;                          // of the call being made
  short wanted_ = 0;                                            // to wait for, as poll() has it
  int error_ = 0;                                               // of the socket, as errno has it
  bool closed_ = false;                                         // by the other end
  Status failed_;  // of an earlier call, after which none may be made
};

// ---- Bytes --------------------------------------------------------------------------------------

int refuse_password(char* text, int size, int writing, void* data) { return -1; }

int bio_write(BIO* bio, const char* data, int size) {
  return static_cast<TlsStream*>(openssl().BIO_get_data(bio))->write_some(bio, data, size);
}

int bio_read(BIO* bio, char* data, int size) {
  return static_cast<TlsStream*>(openssl().BIO_get_data(bio))->read_some(bio, data, size);
}

long bio_control(BIO* bio, int command, long number, void* pointer) {
  if (command == kBioControlFlush) return 1;
  if (command != kBioControlEof) return 0;
  return static_cast<TlsStream*>(openssl().BIO_get_data(bio))->is_closed() ? 1 : 0;
}

// Once the deadline has passed nothing more is moved, or records without data could keep OpenSSL
// for ever.
int TlsStream::write_some(BIO* bio, const char* data, int size) {
  openssl().BIO_clear_flags(bio, kBioRead | kBioWrite | kBioRetry);
  iovec piece{const_cast<char*>(data), static_cast<std::size_t>(size)};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  ssize_t sent = -1;
  errno = EAGAIN;
  while (!deadline_->has_passed() && (sent = os::send(socket_.file(), message)) < 0 &&
         errno == EINTR) {
  }
  if (sent >= 0) return static_cast<int>(sent);
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) {
    openssl().BIO_set_flags(bio, kBioWrite | kBioRetry);
  } else {
    error_ = errno;
  }
  return -1;
}

int TlsStream::read_some(BIO* bio, char* data, int size) {
  openssl().BIO_clear_flags(bio, kBioRead | kBioWrite | kBioRetry);
  ssize_t got = -1;
  errno = EAGAIN;
  while (!deadline_->has_passed() &&
         (got = ::recv(socket_.file(), data, static_cast<std::size_t>(size), 0)) < 0 &&
         errno == EINTR) {
  }
  if (got > 0) return static_cast<int>(got);
  if (got == 0) {
    closed_ = true;
    return 0;
  }
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) {
    openssl().BIO_set_flags(bio, kBioRead | kBioRetry);
  } else {
    error_ = errno;
  }
  return -1;
}

// A call of OpenSSL, once: what it answers where that is above 0; 0 where it has to wait.
template <typename Call>
Result<std::size_t> TlsStream::attempt(const Deadline& deadline, const Call& call) {
  if (!failed_) return failed_;
  const OpenSslUse use;
  if (!use) return failed_ = Status::io_error("TLS: the process is at its end");
  deadline_ = &deadline;
  openssl().ERR_clear_error();
  const int done = call();
  if (done > 0) return static_cast<std::size_t>(done);
  const int kind = openssl().SSL_get_error(ssl_, done);
  if (kind == kErrorWantRead || kind == kErrorWantWrite) {
    wanted_ = kind == kErrorWantRead ? POLLIN : POLLOUT;
    return std::size_t{0};
  }
  return failed_ = failure(kind);
}

Status TlsStream::failure(int kind) {
  if (kind == kErrorZeroReturn || closed_) return closed_by_server();
  if (error_ == 0) return Status::io_error("TLS: ", take_openssl_error());
  const std::string reason = std::strerror(error_);
  // It may have said why before it went away, such as that it wants a certificate.
  char byte = 0;
  const bool hung_up = error_ == EPIPE || error_ == ECONNRESET;
  if (hung_up && openssl().SSL_peek(ssl_, &byte, 1) <= 0) {
    if (closed_) return closed_by_server();
    if (openssl().ERR_peek_error() != 0) return Status::io_error("TLS: ", take_openssl_error());
  }
  return Status::io_error("the connection is lost: ", reason);
}

Status TlsStream::wait(const Deadline& deadline, bool& timed_out) {
  if (!deadline.has_passed()) return wait_for(socket_.file(), wanted_, deadline, timed_out);
  timed_out = true;
  return Status::io_error("nothing within ", deadline.ms(), " ms");
}

// ---- The handshake ------------------------------------------------------------------------------

// Who the other end has to be.
Status TlsStream::prepare(const std::string& host) {
  const OpenSslUse use;
  if (!use) return Status::io_error("TLS: the process is at its end");
  const OpenSsl& ssl = openssl();
  ssl.ERR_clear_error();
  ssl_ = ssl.SSL_new(context_->context());
  BIO* bio = ssl_ == nullptr ? nullptr : ssl.BIO_new(context_->transport());
  if (bio == nullptr) return Status::io_error("TLS: ", take_openssl_error());
  ssl.BIO_set_data(bio, this);
  ssl.BIO_set_init(bio, 1);
  ssl.SSL_set_bio(ssl_, bio, bio);  // which owns it now
  X509_VERIFY_PARAM* wanted = ssl.SSL_get0_param(ssl_);
  std::string name = host.substr(0, host.find('%'));  // no zone of an address
  std::array<unsigned char, sizeof(in6_addr)> bytes;
  bool named = false;
  if (::inet_pton(AF_INET, name.c_str(), bytes.data()) == 1 ||
      ::inet_pton(AF_INET6, name.c_str(), bytes.data()) == 1) {
    named = ssl.X509_VERIFY_PARAM_set1_ip_asc(wanted, name.c_str()) == 1;
  } else {
    if (name.ends_with('.')) name.pop_back();
    ssl.X509_VERIFY_PARAM_set_hostflags(wanted, kNoPartialWildcards);
    named = ssl.X509_VERIFY_PARAM_set1_host(wanted, name.c_str(), name.size()) == 1 &&
            ssl.SSL_ctrl(ssl_, kSetServerName, 0, name.data()) == 1;
  }
  return named ? Status::ok() : Status::io_error("TLS: no name of a host: ", take_openssl_error());
}

// What the handshake found wrong with the certificate, or else what ended it.
Status TlsStream::refusal(const std::string& host, const Status& status) {
  const OpenSslUse use;
  const long found = use ? openssl().SSL_get_verify_result(ssl_) : 0;
  if (found == 0 || !context_->verifies()) return status.prefixed("no TLS handshake: ");
  const auto is_among = [&](std::span<const long> codes) {
    return std::find(codes.begin(), codes.end(), found) != codes.end();
  };
  const char* advice = is_among(kUnknownIssuers) ? "; name the authority that issued it by ca_file"
                       : is_among(kAnotherName)  ? "; connect by a name that it is for"
                                                 : "";
  return Status::io_error("the server's certificate is refused: ",
                          printable(openssl().X509_verify_cert_error_string(found)), " (for ", host,
                          ")", advice);
}

Status TlsStream::connect(const std::string& host, const Deadline& deadline, bool& timed_out) {
  if (Status status = prepare(host); !status) return status;
  for (;;) {
    const auto done = attempt(deadline, [&] { return openssl().SSL_connect(ssl_); });
    if (done && *done > 0) return Status::ok();
    if (!done) return refusal(host, done.status());
    if (Status status = wait(deadline, timed_out); !status) {
      return status.prefixed("no TLS handshake: ");
    }
  }
}

// ---- Data ---------------------------------------------------------------------------------------

Status TlsStream::write_all(const char* data, std::size_t size, const Deadline& deadline,
                            bool& timed_out) {
  while (size > 0) {
    const auto sent = attempt(deadline, [&] {
      return openssl().SSL_write(ssl_, data, static_cast<int>(std::min(size, kMostAtOnce)));
    });
    if (!sent) return sent.status();
    data += *sent;
    size -= *sent;
    if (*sent > 0 && !(deadline.has_passed() && size > 0)) continue;
    if (Status status = wait(deadline, timed_out); !status) return status.prefixed("not sent: ");
  }
  return Status::ok();
}

// Small pieces go together, up to a record; large ones from where they lie.
Status TlsStream::send(std::vector<iovec> pieces, const Deadline& deadline, bool& timed_out) {
  std::span<iovec> left = drop_front(pieces, 0);
  while (!left.empty()) {
    const char* data = static_cast<const char*>(left.front().iov_base);
    std::size_t size = left.front().iov_len;
    if (size < kRecordBytes) {
      size = 0;
      for (const iovec& piece : left) {
        const std::size_t part = std::min(piece.iov_len, kRecordBytes - size);
        if (part > 0) std::memcpy(record_.data() + size, piece.iov_base, part);
        size += part;
        if (size == kRecordBytes) break;
      }
      data = record_.data();
    }
    if (Status status = write_all(data, size, deadline, timed_out); !status) return status;
    left = drop_front(left, size);
  }
  return Status::ok();
}

Result<std::size_t> TlsStream::receive(std::span<const iovec> pieces, const Deadline& deadline,
                                       bool& timed_out) {
  std::size_t total = 0;
  for (const iovec& piece : pieces) {
    auto* at = static_cast<char*>(piece.iov_base);
    std::size_t left = piece.iov_len;
    while (left > 0) {
      const auto got = attempt(deadline, [&] {
        return openssl().SSL_read(ssl_, at, static_cast<int>(std::min(left, kMostAtOnce)));
      });
      if (got && *got > 0) {
        at += *got;
        left -= *got;
        total += *got;
        continue;
      }
      if (total > 0) return total;  // what is wrong is said by the next call
      if (!got) return got.status();
      if (Status status = wait(deadline, timed_out); !status) return status.prefixed("no answer: ");
    }
  }
  return total;
}

Result<std::size_t> TlsStream::peek(std::span<char> bytes, const Deadline& deadline) {
  return attempt(deadline, [&] {
    return openssl().SSL_peek(ssl_, bytes.data(), static_cast<int>(bytes.size()));
  });
}

// ---- The context --------------------------------------------------------------------------------

Status check_file(const char* option, const std::string& path) {
  if (path.find('\0') != path.npos) {
    return Status::invalid_argument(option, ": the path holds a zero byte");
  }
  std::error_code error;
  // Before it is opened, which waits for ever at what is no file.
  if (path.empty() || std::filesystem::is_regular_file(path, error)) return Status::ok();
  return Status::invalid_argument(option, ": ", path, ": ",
                                  error ? error.message() : "it is not a file");
}

}  // namespace

TlsContext::~TlsContext() {
  const OpenSslUse use;
  if (!use) return;
  if (context_ != nullptr) openssl().SSL_CTX_free(context_);
  if (transport_ != nullptr) openssl().BIO_meth_free(transport_);
}

Status TlsContext::set_up(const RemoteTlsOptions& options) {
  const OpenSslUse use;
  if (!use) return Status::io_error("TLS: the process is at its end");
  const OpenSsl& ssl = openssl();
  ssl.ERR_clear_error();
  context_ = ssl.SSL_CTX_new(ssl.TLS_client_method());
  transport_ = ssl.BIO_meth_new(kBioTypeSourceSink, "kvcache");
  if (context_ == nullptr || transport_ == nullptr ||
      ssl.SSL_CTX_ctrl(context_, kSetLeastVersion, kTls12, nullptr) != 1) {
    return Status::unsupported("TLS: OpenSSL fails: ", take_openssl_error());
  }
  ssl.BIO_meth_set_write(transport_, bio_write);
  ssl.BIO_meth_set_read(transport_, bio_read);
  ssl.BIO_meth_set_ctrl(transport_, bio_control);
  ssl.SSL_CTX_ctrl(context_, kSetMode, kModes, nullptr);
  ssl.SSL_CTX_ctrl(context_, kSetReadAhead, 1, nullptr);
  ssl.SSL_CTX_set_default_read_buffer_len(context_, kReadBytes);
  ssl.SSL_CTX_set_options(context_, kNoRenegotiation);
  ssl.SSL_CTX_set_default_passwd_cb(context_, refuse_password);
  verifies_ = options.verify;
  ssl.SSL_CTX_set_verify(context_, verifies_ ? kVerifyPeer : 0, nullptr);
  const auto wrong = [](const char* option, const std::string& path, const char* advice) {
    return Status::invalid_argument(option, ": ", path, ": ", take_openssl_error(), advice);
  };
  if (options.ca_file.empty()) {
    ssl.SSL_CTX_set_default_verify_paths(context_);  // none of them need be there
  } else if (ssl.SSL_CTX_load_verify_locations(context_, options.ca_file.c_str(), nullptr) != 1) {
    return wrong("ca_file", options.ca_file, "; expected certificates in PEM");
  }
  if (options.certificate.empty()) return Status::ok();
  const std::string& certificate = options.certificate;
  const std::string& key = options.key.empty() ? certificate : options.key;
  if (ssl.SSL_CTX_use_certificate_chain_file(context_, certificate.c_str()) != 1) {
    return wrong("certificate", certificate, "; expected a certificate in PEM, then its chain");
  }
  if (ssl.SSL_CTX_use_PrivateKey_file(context_, key.c_str(), kFormatPem) != 1 ||
      ssl.SSL_CTX_check_private_key(context_) != 1) {
    return wrong("key", key, "; expected the certificate's key in PEM, not encrypted");
  }
  return Status::ok();
}

Result<std::shared_ptr<const TlsContext>> TlsContext::create(const RemoteTlsOptions& options) {
  if (!options.key.empty() && options.certificate.empty()) {
    return Status::invalid_argument("key: there is no certificate that it is of");
  }
  for (const auto& [option, path] : {std::pair("ca_file", &options.ca_file),
                                     {"certificate", &options.certificate},
                                     {"key", &options.key}}) {
    if (Status status = check_file(option, *path); !status) return status;
  }
  if (Status status = find_openssl(); !status) return status;
  std::shared_ptr<TlsContext> made(new TlsContext);
  if (Status status = made->set_up(options); !status) return status;
  return std::shared_ptr<const TlsContext>(std::move(made));
}

Result<std::unique_ptr<Stream>> connect_tls(std::shared_ptr<const TlsContext> context,
                                            Socket socket, const std::string& host,
                                            const Deadline& deadline, bool& timed_out) {
  auto stream = std::make_unique<TlsStream>(std::move(context), std::move(socket));
  if (Status status = stream->connect(host, deadline, timed_out); !status) return status;
  return std::unique_ptr<Stream>(std::move(stream));
}

}  // namespace kvcache::remote
