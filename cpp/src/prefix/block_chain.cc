#include "prefix/block_chain.h"

#include <algorithm>
#include <bit>
#include <string_view>

#include "base/check.h"
#include "prefix/common_prefix.h"

namespace kvcache::prefix {
namespace {

static_assert(std::endian::native == std::endian::little, "digests are of little-endian tokens");

void update_number(Sha256& sha, std::uint64_t number) { sha.update(&number, sizeof(number)); }

std::uint64_t name_of(const Sha256::Digest& digest) {
  std::uint64_t name = 0;
  for (std::size_t i = 0; i < 8; ++i) name = name << 8 | digest[i];
  return name;
}

}  // namespace

const BlockChain::Digest& BlockChain::before(std::uint64_t block) const {
  return block == 0 ? root_ : digests_[block - 1];
}

// Of tokens [begin, end), which begin with a block and lie in it.
BlockChain::Digest BlockChain::link(std::uint64_t begin, std::uint64_t end) const {
  Sha256 sha;
  const Digest& parent = before(begin / block_tokens_);
  sha.update(parent.data(), parent.size());
  update_number(sha, end - begin);
  sha.update(tokens_.data() + begin, (end - begin) * sizeof(tokens_[0]));
  auto item = std::partition_point(media_.begin(), media_.end(),
                                   [=](const MediaSpan& each) { return each.start < begin; });
  for (; item != media_.end() && item->start < end; ++item) {
    for (const std::uint64_t number : {item->start - begin, item->length}) {
      update_number(sha, number);
    }
    update_number(sha, item->digest.size());
    sha.update(item->digest.data(), item->digest.size());
  }
  return sha.finish();
}

void BlockChain::update(const SpaceRef& space, std::span<const std::int32_t> tokens,
                        std::uint64_t block_tokens) {
  if (block_tokens_ == 0) {
    constexpr std::string_view kPurpose = "kvcache block names, version 1";
    block_tokens_ = block_tokens;
    Sha256 sha;
    sha.update(kPurpose.data(), kPurpose.size());
    update_number(sha, block_tokens);
    sha.update(space.key.data(), space.key.size());
    root_ = sha.finish();
  }
  std::uint64_t known =
      common_prefix(tokens_.data(), tokens.data(), std::min(tokens_.size(), tokens.size()));
  // Tokens agree up to there; media items must as well, both ways.
  const auto parted =
      std::mismatch(media_.begin(), media_.end(), space.media.begin(), space.media.end());
  if (parted.first != media_.end()) known = std::min(known, parted.first->start);
  if (parted.second != space.media.end()) known = std::min(known, parted.second->start);
  const std::uint64_t kept = std::min<std::uint64_t>(known / block_tokens, names_.size());
  names_.resize(kept);
  digests_.resize(kept);
  tokens_.assign(tokens.begin(), tokens.end());
  media_.assign(space.media.begin(), space.media.end());
  const std::uint64_t whole = tokens.size() / block_tokens;
  names_.reserve(whole);
  digests_.reserve(whole);
  for (std::uint64_t block = kept; block < whole; ++block) {
    digests_.push_back(link(block * block_tokens, (block + 1) * block_tokens));
    names_.push_back(name_of(digests_.back()));
  }
}

BlockChain::Digest BlockChain::digest_at(std::uint64_t position) const {
  KVCACHE_CHECK(position <= tokens_.size());
  const std::uint64_t block = position / block_tokens_;
  const std::uint64_t begin = block * block_tokens_;
  return begin == position ? before(block) : link(begin, position);
}

std::uint64_t BlockChain::name_at(std::uint64_t position) const {
  KVCACHE_CHECK(position > 0);
  return name_of(digest_at(position));
}

}  // namespace kvcache::prefix
