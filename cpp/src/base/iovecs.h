// Pieces of memory that are moved as one stream.
// Thread safety: pure functions.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>

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

}  // namespace kvcache
