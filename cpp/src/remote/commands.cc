#include "remote/commands.h"

namespace kvcache::remote {

void Commands::append(std::string_view text) {
  text_ += text;
  if (pieces_.empty() || pieces_.back().data != nullptr) pieces_.push_back({});
  pieces_.back().bytes += text.size();
}

Commands& Commands::begin(std::size_t words) {
  ++count_;
  append("*" + std::to_string(words) + "\r\n");
  return *this;
}

Commands& Commands::word(std::string_view text) {
  append("$" + std::to_string(text.size()) + "\r\n");
  append(text);
  append("\r\n");
  return *this;
}

Commands& Commands::word(std::span<const iovec> pieces) {
  std::size_t bytes = 0;
  for (const iovec& piece : pieces) bytes += piece.iov_len;
  append("$" + std::to_string(bytes) + "\r\n");
  for (const iovec& piece : pieces) {
    if (piece.iov_len > 0) pieces_.push_back({piece.iov_base, piece.iov_len});
  }
  append("\r\n");
  return *this;
}

std::vector<iovec> Commands::pieces() const {
  std::vector<iovec> all;
  all.reserve(pieces_.size());
  std::size_t at = 0;
  for (const Piece& piece : pieces_) {
    const void* data = piece.data;
    if (data == nullptr) {
      data = text_.data() + at;
      at += piece.bytes;
    }
    all.push_back({const_cast<void*>(data), piece.bytes});
  }
  return all;
}

}  // namespace kvcache::remote
