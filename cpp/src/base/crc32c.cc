#include "base/crc32c.h"

#include <array>
#include <cstring>

namespace kvcache {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // reflected

// tables[k][b]: the effect of byte b when k more bytes follow it.
using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    for (std::size_t k = 1; k < 8; ++k) {
      const std::uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

std::uint64_t load_u64(const unsigned char* p) {
  std::uint64_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t crc32c_sse42(std::uint32_t crc, const void* data,
                                                             std::size_t bytes) {
  const auto* p = static_cast<const unsigned char*>(data);
  std::uint64_t state = ~crc;
  for (; bytes >= 8; bytes -= 8, p += 8) state = __builtin_ia32_crc32di(state, load_u64(p));
  auto last = static_cast<std::uint32_t>(state);
  for (; bytes > 0; --bytes, ++p) last = __builtin_ia32_crc32qi(last, *p);
  return ~last;
}
#endif

using Function = std::uint32_t (*)(std::uint32_t, const void*, std::size_t);

Function choose() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return crc32c_sse42;
#endif
  return crc32c_portable;
}

}  // namespace

std::uint32_t crc32c_portable(std::uint32_t crc, const void* data, std::size_t bytes) {
  const auto* p = static_cast<const unsigned char*>(data);
  crc = ~crc;
  for (; bytes >= 8; bytes -= 8, p += 8) {
    std::uint64_t word = load_u64(p) ^ crc;
    crc = 0;
    for (std::size_t k = 8; k-- > 0; word >>= 8) crc ^= kTables[k][word & 0xff];
  }
  for (; bytes > 0; --bytes, ++p) crc = (crc >> 8) ^ kTables[0][(crc ^ *p) & 0xff];
  return ~crc;
}

std::uint32_t crc32c(std::uint32_t crc, const void* data, std::size_t bytes) {
  static const Function function = choose();
  return function(crc, data, bytes);
}

}  // namespace kvcache
