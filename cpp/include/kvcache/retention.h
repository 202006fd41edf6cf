// Which of its past positions a layer needs to go on: the one law behind block tables, hits, sizes
// and files. `end` is a length: positions [0, end) are complete and the query at `end` comes next.
//
//   full            [0, end)
//   sliding         the last window - 1 of them, since the query itself counts as one
//   chunked         those from the last multiple of the window on (Llama 4, chunked attention)
//   sliding, sinks  the first ones as well (StreamingLLM, arXiv:2309.17453)
//
// Sinks and window are two ranges, [0, sink_end(end)) and [live_start(end), end); the second may be
// empty, and they touch while nothing lies between them.
// Thread safety: values and pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

namespace kvcache {

// Blocks [first, last).
struct BlockRange {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
};

struct Retention {
  std::uint32_t window = 0;         // positions a query sees, itself included; 0: all of them
  bool chunked = false;             // the window starts anew at each multiple of its length
  std::uint32_t sinks = 0;          // first positions that a sliding window sees as well
  std::uint32_t record_tokens = 1;  // positions that one row stands for; a row is there once
                                    // they all are

  // Whether positions are ever let go.
  constexpr bool forgets() const { return window != 0; }

  constexpr std::uint64_t live_start(std::uint64_t end) const {
    if (window == 0) return 0;
    if (chunked) return end - end % window;
    return end < window ? 0 : end - (window - 1);
  }
  constexpr std::uint64_t sink_end(std::uint64_t end) const {
    return std::min<std::uint64_t>(sinks, live_start(end));
  }
  // Whether the query at `end` needs all positions from `start` on, up to `stop`.
  constexpr bool sees(std::uint64_t start, std::uint64_t stop, std::uint64_t end) const {
    const std::uint64_t live = live_start(end);
    return start >= live || stop <= sink_end(end) || sink_end(end) == live;
  }

  // Rows of the first `end` positions: their number, or that of complete records.
  constexpr std::uint64_t rows(std::uint64_t end) const {
    return record_tokens == 1 ? end : end / record_tokens;  // what is asked for each decoded token
  }
  // Rows that the query at `end` needs.
  constexpr std::uint64_t needed_rows(std::uint64_t end) const {
    return rows(end) - rows(live_start(end)) + sink_end(end);
  }
  // Most positions that the query at or before the end of `tokens` positions sees, itself included.
  constexpr std::uint64_t most_seen(std::uint64_t tokens) const {
    return window == 0 ? tokens : std::min(tokens, std::uint64_t{window} + sinks);
  }

  // Blocks with rows in the window at `end`. A block that `end` falls into is one of them even when
  // none of its rows is needed any more: who goes on writes in it, and its page must hold true rows
  // from its first one, for it may serve a hit further back. A window of 1 never reads a page.
  constexpr BlockRange live_blocks(std::uint64_t end, std::uint64_t block_tokens) const {
    const std::uint64_t last = blocks(rows(end) * record_tokens, block_tokens);
    return {window == 1 ? last : std::min(live_start(end) / block_tokens, last), last};
  }
  // Blocks that take the rows which positions [start, stop) complete; maybe none.
  constexpr BlockRange row_blocks(std::uint64_t start, std::uint64_t stop,
                                  std::uint64_t block_tokens) const {
    const std::uint64_t first = rows(start), last = rows(stop);
    if (first >= last) return {};
    const std::uint64_t begin = first * record_tokens / block_tokens;
    const std::uint64_t end = last * record_tokens;
    const bool within_one = end <= (begin + 1) * block_tokens;
    return {begin, within_one ? begin + 1 : blocks(end, block_tokens)};
  }
  // Blocks with sinks, [0, ...); the last of them may be in the window too.
  constexpr std::uint64_t sink_blocks(std::uint64_t end, std::uint64_t block_tokens) const {
    return blocks(sink_end(end), block_tokens);
  }
  // Blocks that a sequence at `end` may let go; empty when first >= last.
  constexpr BlockRange dead_blocks(std::uint64_t end, std::uint64_t block_tokens) const {
    return {blocks(sinks, block_tokens), live_start(end) / block_tokens};
  }
  // Most blocks held at `tokens` positions or before, while `step_tokens` are written at a time.
  constexpr std::uint64_t most_blocks(std::uint64_t tokens, std::uint64_t step_tokens,
                                      std::uint64_t block_tokens) const {
    const std::uint64_t all = blocks(tokens, block_tokens);
    if (window == 0 || step_tokens >= tokens || tokens - step_tokens < window) return all;
    // Window and step may start and end inside a block.
    const std::uint64_t moving = blocks(step_tokens + (window - 1), block_tokens) + 1;
    return std::min(all, moving + blocks(sinks, block_tokens));
  }

 private:
  static constexpr std::uint64_t blocks(std::uint64_t tokens, std::uint64_t block_tokens) {
    return tokens / block_tokens + (tokens % block_tokens != 0);
  }
};

}  // namespace kvcache
