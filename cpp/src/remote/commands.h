// Commands of RESP2, one behind another, to be sent at once. Large words are named where they lie.
// Thread safety: thread-compatible.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvcache::remote {

class Commands {
 public:
  // Begins a command of so many words, which the next calls of word() give.
  Commands& begin(std::size_t words);
  Commands& word(std::string_view text);
  // What is named must stay until it is sent.
  Commands& word(std::span<const iovec> pieces);

  Commands& add(std::initializer_list<std::string_view> words) {
    begin(words.size());
    for (const std::string_view each : words) word(each);
    return *this;
  }

  std::size_t count() const { return count_; }
  // All of it, in order; good until the next change.
  std::vector<iovec> pieces() const;

 private:
  struct Piece {
    const void* data = nullptr;  // null: the next bytes of `text_`
    std::size_t bytes = 0;
  };
  void append(std::string_view text);

  std::string text_;
  std::vector<Piece> pieces_;
  std::size_t count_ = 0;
};

}  // namespace kvcache::remote
