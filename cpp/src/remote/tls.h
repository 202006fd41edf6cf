// TLS 1.2 and later over a socket, with OpenSSL as remote/openssl.h finds it. OpenSSL makes records
// and reads them; the bytes are moved by our own calls, which raise no SIGPIPE and do not block.
// Thread safety: TlsContext is immutable.
#pragma once

#include <memory>
#include <string>

#include "kvcache/remote_tier.h"
#include "kvcache/status.h"
#include "remote/connect.h"
#include "remote/deadline.h"
#include "remote/stream.h"

namespace kvcache::remote {

struct BIO_METHOD;
struct SSL_CTX;

// Whom to trust, and as whom to come: made once, for all connections.
class TlsContext {
 public:
  // Reads the files. kInvalidArgument: one cannot be read, or is not what it should be.
  // kUnsupported: the system has no OpenSSL.
  static Result<std::shared_ptr<const TlsContext>> create(const RemoteTlsOptions& options);
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;
  ~TlsContext();

  SSL_CTX* context() const { return context_; }
  const BIO_METHOD* transport() const { return transport_; }
  bool verifies() const { return verifies_; }

 private:
  TlsContext() = default;
  Status set_up(const RemoteTlsOptions& options);

  SSL_CTX* context_ = nullptr;
  BIO_METHOD* transport_ = nullptr;
  bool verifies_ = true;
};

// A connection on which the server has shown who it is: that its certificate is of `host`, a name
// or an address. kIoError: it is not, or the server speaks no TLS, or not in time.
Result<std::unique_ptr<Stream>> connect_tls(std::shared_ptr<const TlsContext> context,
                                            Socket socket, const std::string& host,
                                            const Deadline& deadline, bool& timed_out);

}  // namespace kvcache::remote
