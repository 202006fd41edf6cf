// As much of OpenSSL as a client of TLS needs, taken from the library of the system when TLS is
// first asked for. The core is not linked with it: the same wheel and archive run where there is no
// OpenSSL, in version 1.1 or in 3, and get its security updates from the system; a library of the
// wheel's own would be a second one beside that of the interpreter, and an option of the build one
// more wheel. What is called is in both versions and has kept its types since 1.1.0.
// Thread safety: thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "kvcache/status.h"

namespace kvcache::remote {

struct SSL;
struct SSL_CTX;
struct SSL_METHOD;
struct BIO;
struct BIO_METHOD;
struct X509_VERIFY_PARAM;

// clang-format off
#define KVCACHE_OPENSSL(X)                                                                  \
  X(int, OPENSSL_init_ssl, (std::uint64_t, const void*))                                    \
  X(unsigned long, ERR_get_error, ())                                                       \
  X(unsigned long, ERR_peek_error, ())                                                      \
  X(void, ERR_clear_error, ())                                                              \
  X(void, ERR_error_string_n, (unsigned long, char*, std::size_t))                          \
  X(const char*, ERR_reason_error_string, (unsigned long))                                  \
  X(const SSL_METHOD*, TLS_client_method, ())                                               \
  X(SSL_CTX*, SSL_CTX_new, (const SSL_METHOD*))                                             \
  X(void, SSL_CTX_free, (SSL_CTX*))                                                         \
  X(long, SSL_CTX_ctrl, (SSL_CTX*, int, long, void*))                                       \
  X(std::uint64_t, SSL_CTX_set_options, (SSL_CTX*, std::uint64_t))                          \
  X(void, SSL_CTX_set_default_read_buffer_len, (SSL_CTX*, std::size_t))                     \
  X(void, SSL_CTX_set_default_passwd_cb, (SSL_CTX*, int (*)(char*, int, int, void*)))       \
  X(int, SSL_CTX_set_default_verify_paths, (SSL_CTX*))                                      \
  X(int, SSL_CTX_load_verify_locations, (SSL_CTX*, const char*, const char*))               \
  X(int, SSL_CTX_use_certificate_chain_file, (SSL_CTX*, const char*))                       \
  X(int, SSL_CTX_use_PrivateKey_file, (SSL_CTX*, const char*, int))                         \
  X(int, SSL_CTX_check_private_key, (const SSL_CTX*))                                       \
  X(void, SSL_CTX_set_verify, (SSL_CTX*, int, int (*)(int, void*)))                         \
  X(SSL*, SSL_new, (SSL_CTX*))                                                              \
  X(void, SSL_free, (SSL*))                                                                 \
  X(long, SSL_ctrl, (SSL*, int, long, void*))                                               \
  X(void, SSL_set_bio, (SSL*, BIO*, BIO*))                                                  \
  X(X509_VERIFY_PARAM*, SSL_get0_param, (SSL*))                                             \
  X(long, SSL_get_verify_result, (const SSL*))                                              \
  X(int, SSL_get_error, (const SSL*, int))                                                  \
  X(int, SSL_connect, (SSL*))                                                               \
  X(int, SSL_read, (SSL*, void*, int))                                                      \
  X(int, SSL_peek, (SSL*, void*, int))                                                      \
  X(int, SSL_write, (SSL*, const void*, int))                                               \
  X(int, SSL_has_pending, (const SSL*))                                                     \
  X(int, X509_VERIFY_PARAM_set1_host, (X509_VERIFY_PARAM*, const char*, std::size_t))       \
  X(int, X509_VERIFY_PARAM_set1_ip_asc, (X509_VERIFY_PARAM*, const char*))                  \
  X(void, X509_VERIFY_PARAM_set_hostflags, (X509_VERIFY_PARAM*, unsigned int))              \
  X(const char*, X509_verify_cert_error_string, (long))                                     \
  X(BIO_METHOD*, BIO_meth_new, (int, const char*))                                          \
  X(void, BIO_meth_free, (BIO_METHOD*))                                                     \
  X(int, BIO_meth_set_write, (BIO_METHOD*, int (*)(BIO*, const char*, int)))                \
  X(int, BIO_meth_set_read, (BIO_METHOD*, int (*)(BIO*, char*, int)))                       \
  X(int, BIO_meth_set_ctrl, (BIO_METHOD*, long (*)(BIO*, int, long, void*)))                \
  X(BIO*, BIO_new, (const BIO_METHOD*))                                                     \
  X(void, BIO_set_init, (BIO*, int))                                                        \
  X(void, BIO_set_data, (BIO*, void*))                                                      \
  X(void*, BIO_get_data, (BIO*))                                                            \
  X(void, BIO_set_flags, (BIO*, int))                                                       \
  X(void, BIO_clear_flags, (BIO*, int))
// clang-format on

struct OpenSsl {
#define KVCACHE_OPENSSL_MEMBER(Result, name, Arguments) Result(*name) Arguments = nullptr;
  KVCACHE_OPENSSL(KVCACHE_OPENSSL_MEMBER)
#undef KVCACHE_OPENSSL_MEMBER
};

// The first library of these names that can be loaded; it stays for the life of the process.
// kUnsupported: there is none, or none that is OpenSSL.
Result<OpenSsl> load_openssl(std::span<const char* const> names);

// The system's. kUnsupported: it has none; the text says what to install.
Status find_openssl();
// REQUIRES: find_openssl() has been ok.
const OpenSsl& openssl();

// Held while the library is called. At the exit of the process it cleans itself up, whoever still
// uses it: that waits for who holds one of these, which must not block, and lets nobody else in.
class OpenSslUse {
 public:
  OpenSslUse() noexcept;
  OpenSslUse(const OpenSslUse&) = delete;
  OpenSslUse& operator=(const OpenSslUse&) = delete;
  ~OpenSslUse();
  // False: it must not be called any more, not even to free what it has given.
  explicit operator bool() const { return allowed_; }

 private:
  bool allowed_;
};

// What went wrong last on this thread, in OpenSSL's words. REQUIRES: OpenSslUse.
std::string take_openssl_error();

}  // namespace kvcache::remote
