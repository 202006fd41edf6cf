// A stream of bytes that lies in many places, taken from its front. Thread safety:
// thread-compatible.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <span>
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

// Takes `bytes` off the front.
inline std::span<iovec> drop_front(std::span<iovec> pieces, std::size_t bytes) {
  while (!pieces.empty() && bytes >= pieces.front().iov_len) {
    bytes -= pieces.front().iov_len;
    pieces = pieces.subspan(1);
  }
  if (bytes > 0) {
    pieces.front().iov_base = static_cast<std::byte*>(pieces.front().iov_base) + bytes;
    pieces.front().iov_len -= bytes;
  }
  return pieces;
}

}  // namespace kvcache::remote
