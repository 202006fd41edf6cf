// CRC-32C (Castagnoli; RFC 3720, appendix B.4): checksums of stored files. It finds every burst of
// up to 32 bits and misses other damage once in 2^32; it is no defence against an attacker.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvcache {

// Checksum of what `crc` covers followed by `bytes` more. Start with 0. Uses the instruction of
// SSE4.2, or carry-less products of AVX-512, where the machine has them.
std::uint32_t crc32c(std::uint32_t crc, const void* data, std::size_t bytes);

// Checksum of two pieces as one, from those of each: the second has `second_bytes`.
std::uint32_t crc32c_joined(std::uint32_t first, std::uint32_t second, std::uint64_t second_bytes);

// The same result without special instructions.
std::uint32_t crc32c_portable(std::uint32_t crc, const void* data, std::size_t bytes);

}  // namespace kvcache
