// Pieces of memory that are moved as one stream.
// Thread safety: pure functions, PieceStream is thread-compatible.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/crc32c.h"

namespace kvcache {

// What is left of pieces when so many bytes of them are done. Leaves out empty ones in front.
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

// Of all pieces, behind what `crc` is of.
inline std::uint32_t crc32c(std::uint32_t crc, std::span<const iovec> pieces) {
  for (const iovec& piece : pieces) crc = crc32c(crc, piece.iov_base, piece.iov_len);
  return crc;
}

// A stream that is taken from its front, a part at a time.
class PieceStream {
 public:
  explicit PieceStream(std::vector<iovec> pieces) : pieces_(std::move(pieces)) {}

  // The next bytes, in so many pieces at most; fewer at the end.
  std::vector<iovec> take(std::size_t bytes, std::size_t most_pieces = SIZE_MAX) {
    std::vector<iovec> taken;
    while (bytes > 0 && at_ < pieces_.size() && taken.size() < most_pieces) {
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

}  // namespace kvcache
