// SHA-256 (FIPS 180-4): identities of plans, prefixes and payloads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvcache {

class Sha256 {
 public:
  using Digest = std::array<std::uint8_t, 32>;

  Sha256();
  void update(const void* data, std::size_t bytes);
  Digest finish();  // the object is spent afterwards

 private:
  void compress(const std::uint8_t* block);

  std::array<std::uint32_t, 8> state_;
  std::array<std::uint8_t, 64> buffer_{};
  std::size_t buffered_ = 0;
  std::uint64_t total_ = 0;
};

std::string hex(const Sha256::Digest& digest);
Sha256::Digest sha256(std::string_view bytes);
std::string sha256_hex(std::string_view bytes);

}  // namespace kvcache
