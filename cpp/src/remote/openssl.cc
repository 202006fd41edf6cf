#include "remote/openssl.h"

#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <thread>
#include <type_traits>

#include "base/process.h"
#include "remote/resp_reply.h"

namespace kvcache::remote {
namespace {

// A name without a version is not tried: it is whatever a compiler links, and on macOS a library
// of Apple's that ends the process.
constexpr const char* kNames[] = {
    "libssl.so.3",
    "libssl.so.1.1",
    "libssl.3.dylib",
    "/opt/homebrew/opt/openssl@3/lib/libssl.3.dylib",
    "/usr/local/opt/openssl@3/lib/libssl.3.dylib",
    "libssl.1.1.dylib",
};
constexpr std::chrono::seconds kLongestUse{2};

std::atomic<const OpenSsl*> found{nullptr};

// Who uses the library now: the process, as fork_generation() tells it, above their number. A child
// of fork() has none of the threads that its parent had.
std::atomic<std::uint64_t> users{0};
std::atomic<bool> ended{false};

std::uint64_t generation_bits() { return fork_generation() << 32; }

void end_use() {
  ended = true;
  const auto end = std::chrono::steady_clock::now() + kLongestUse;
  for (;;) {
    const std::uint64_t now = users;
    const bool used = now >> 32 == generation_bits() >> 32 && (now & UINT32_MAX) > 0;
    if (!used || std::chrono::steady_clock::now() >= end) return;
    std::this_thread::yield();
  }
}

}  // namespace

Result<OpenSsl> load_openssl(std::span<const char* const> names) {
  std::string tried;
  for (const char* name : names) {
    void* library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      tried += tried.empty() ? name : std::string(", ") + name;
      continue;
    }
    OpenSsl all;
    const char* missing = nullptr;
    const auto take = [&](auto& function, const char* symbol) {
      void* address = ::dlsym(library, symbol);
      if (address == nullptr) missing = symbol;
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
    };
#define KVCACHE_OPENSSL_TAKE(Result, name, Arguments) take(all.name, #name);
    KVCACHE_OPENSSL(KVCACHE_OPENSSL_TAKE)
#undef KVCACHE_OPENSSL_TAKE
    if (missing != nullptr) {
      ::dlclose(library);
      return Status::unsupported("TLS: ", name, " is no OpenSSL of version 1.1 or 3: it lacks ",
                                 missing);
    }
    return all;
  }
  return Status::unsupported(
      "TLS: this system has no OpenSSL 1.1 or 3, which is loaded when it is needed (", tried,
      "); install it: libssl3 on Debian and Ubuntu, openssl-libs on Fedora, openssl@3 of "
      "Homebrew on macOS");
}

// Without a lock, which a fork() in between would leave locked in the child: of two threads that
// load it at once, one is the first.
Status find_openssl() {
  if (found != nullptr) return Status::ok();
  auto loaded = load_openssl(kNames);
  if (!loaded) return loaded.status();
  auto table = std::make_unique<const OpenSsl>(*loaded);
  if (table->OPENSSL_init_ssl(0, nullptr) != 1) return Status::unsupported("TLS: OpenSSL fails");
  const OpenSsl* none = nullptr;
  if (!found.compare_exchange_strong(none, table.get())) return Status::ok();
  table.release();  // for the life of the process, like the library
  // After its own registration, so that this is called before.
  std::atexit(end_use);
  return Status::ok();
}

const OpenSsl& openssl() { return *found; }

OpenSslUse::OpenSslUse() noexcept {
  const std::uint64_t mine = generation_bits();
  std::uint64_t now = users;
  while (!users.compare_exchange_weak(now, (now >> 32 == mine >> 32 ? now : mine) + 1)) {
  }
  allowed_ = !ended;
}

OpenSslUse::~OpenSslUse() {
  std::uint64_t now = users;
  // One that began before fork() is not counted in the child.
  while (now >> 32 == generation_bits() >> 32 && (now & UINT32_MAX) > 0 &&
         !users.compare_exchange_weak(now, now - 1)) {
  }
}

std::string take_openssl_error() {
  const OpenSsl& ssl = openssl();
  const unsigned long code = ssl.ERR_get_error();  // the first, of which the others follow
  if (code == 0) return "unknown error";
  char text[256];
  const char* reason = ssl.ERR_reason_error_string(code);
  if (reason == nullptr) ssl.ERR_error_string_n(code, text, sizeof(text));
  const std::string shown = printable(reason != nullptr ? reason : text);
  ssl.ERR_clear_error();
  return shown;
}

}  // namespace kvcache::remote
