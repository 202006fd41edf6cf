// Checked arithmetic and SHA-256.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "base/checked.h"
#include "base/sha256.h"

namespace kvcache {
namespace {

constexpr std::uint64_t kMax = UINT64_MAX;

TEST(Checked, AddAndMulRefuseWhatDoesNotFit) {
  EXPECT_EQ(checked_add(kMax, 0), kMax);
  EXPECT_EQ(checked_add(kMax, 1), std::nullopt);
  EXPECT_EQ(checked_mul(std::uint64_t{1} << 32, (std::uint64_t{1} << 32) - 1),
            kMax - (std::uint64_t{1} << 32) + 1);
  EXPECT_EQ(checked_mul(std::uint64_t{1} << 32, std::uint64_t{1} << 32), std::nullopt);
  EXPECT_EQ(checked_mul(0, kMax), 0U);
}

TEST(Checked, CeilDivDoesNotOverflowNearTheTop) {
  EXPECT_EQ(ceil_div(kMax, 2), kMax / 2 + 1);
  EXPECT_EQ(ceil_div(kMax, kMax), 1U);
  EXPECT_EQ(ceil_div(0, 7), 0U);
  EXPECT_EQ(ceil_div(14, 7), 2U);
  EXPECT_EQ(round_up(15, 7), 21U);
}

// FIPS 180-4 examples, and the million letters of the NIST test set.
TEST(Sha256, PublishedVectors) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_hex(std::string(1000000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PiecesOfAnyLengthGiveTheDigestOfTheWhole) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>(i * 7);
  for (std::size_t length : {0, 1, 55, 56, 57, 63, 64, 65, 119, 120, 128, 300}) {
    const std::string whole = text.substr(0, length);
    for (const std::size_t piece : {1, 3, 63, 64, 65}) {
      Sha256 hash;
      for (std::size_t at = 0; at < length; at += piece) {
        hash.update(whole.data() + at, std::min(piece, length - at));
      }
      EXPECT_EQ(hex(hash.finish()), sha256_hex(whole)) << length << " in pieces of " << piece;
    }
  }
}

}  // namespace
}  // namespace kvcache
