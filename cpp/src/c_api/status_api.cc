// Versions, statuses and their texts.
#include <string>

#include "c_api/handles.h"
#include "kvcache/version.h"

namespace {

thread_local std::string last_message;
thread_local const char* last_error = "";

}  // namespace

namespace kvcache::c_api {

kvcache_status fail_text(kvcache_status code, const char* literal) noexcept {
  last_error = literal;
  return code;
}

kvcache_status fail(const Status& status) noexcept {
  const auto code = static_cast<kvcache_status>(status.code());
  try {
    last_message = status.message();
  } catch (const std::exception&) {
    return fail_text(code, "no memory for a message");
  }
  last_error = last_message.c_str();
  return code;
}

}  // namespace kvcache::c_api

extern "C" {

const char* kvcache_version(void) { return KVCACHE_VERSION; }

uint32_t kvcache_abi(void) { return KVCACHE_ABI; }

const char* kvcache_last_error(void) { return last_error; }

const char* kvcache_status_name(kvcache_status status) {
  switch (status) {
    case KVCACHE_OK:
      return "ok";
    case KVCACHE_INVALID_ARGUMENT:
      return "invalid argument";
    case KVCACHE_NOT_FOUND:
      return "not found";
    case KVCACHE_OUT_OF_CAPACITY:
      return "out of capacity";
    case KVCACHE_CORRUPTION:
      return "corruption";
    case KVCACHE_UNSUPPORTED:
      return "unsupported";
    case KVCACHE_IO_ERROR:
      return "I/O error";
    case KVCACHE_NON_FINITE:
      return "not finite";
    case KVCACHE_INTERNAL:
      return "internal error";
  }
  return "unknown status";
}

}  // extern "C"
