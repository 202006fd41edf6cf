// A stream of bytes that lies in many places, taken from its front. Thread safety:
// thread-compatible.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace kvcache::remote {

class Pieces {
 public:
  explicit Pieces(std::vector<iovec> pieces) : pieces_(std::move(pieces)) {}

  // The next bytes, fewer at the end.
  std::vector<iovec> take(std::size_t bytes) {
    std::vector<iovec> taken;
    while (bytes > 0 && at_ < pieces_.size()) {
      iovec& piece = pieces_[at_];
      const std::size_t part = std::min(bytes, piece.iov_len);
      if (part > 0) taken.push_back({piece.iov_base, part});
      piece.iov_base = static_cast<std::byte*>(piece.iov_base) + part;
      piece.iov_len -= part;
      bytes -= part;
      if (piece.iov_len == 0) ++at_;
    }
    return taken;
  }

 private:
  std::vector<iovec> pieces_;
  std::size_t at_ = 0;
};

}  // namespace kvcache::remote
