// A vector that grows by chunks: elements stay where they are, growing copies nothing, and no more
// than a chunk of memory lies idle at its end.
// Thread safety: thread-compatible.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace kvcache::base {

template <typename T, std::size_t kChunk = 256>
class ChunkedVector {
  static_assert((kChunk & (kChunk - 1)) == 0, "a power of two");

 public:
  T& operator[](std::size_t at) { return chunks_[at / kChunk][at % kChunk]; }
  const T& operator[](std::size_t at) const { return chunks_[at / kChunk][at % kChunk]; }
  std::size_t size() const { return size_; }
  // With default elements up to `size`, which is not less than it was.
  void grow_to(std::size_t size) {
    while (chunks_.size() * kChunk < size) chunks_.push_back(std::make_unique<T[]>(kChunk));
    size_ = size;
  }
  void clear() noexcept {
    chunks_.clear();
    size_ = 0;
  }

 private:
  std::vector<std::unique_ptr<T[]>> chunks_;
  std::size_t size_ = 0;
};

}  // namespace kvcache::base
