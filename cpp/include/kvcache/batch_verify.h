// Speculative decoding of many sequences: the rows of all of them run at once, ragged.
//
//   auto session = batch.begin_verify(drafts, counts, {});  // counts[i] + 1 rows of sequence i
//   ... run session->tokens() at session->positions(), split by session->offsets()
//   session->write(layer, {keys, values});                  // rows of all sequences
//   session->commit(accepted);                              // one number each; or rollback()
//
// What kvcache/verify.h says of the rows of one sequence holds for each. Every call is for all
// sequences or for none. Batch::block_table() answers as before, with the pages of the rows.
// Thread safety: thread-safe; its calls and those of the batch run one at a time. Once a sequence
// is closed the others can only be rolled back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kvcache/batch.h"
#include "kvcache/carry_table.h"
#include "kvcache/verify.h"

namespace kvcache {

class CacheCore;
class TokenTree;
class VerifyTable;
struct VerifyTableCore;

struct BatchVerifyOptions {
  // The trees that the drafts form, one after the other: counts[i] + 1 parents of sequence i, each
  // -1 for its root; none: each draft follows the one before it.
  std::optional<std::span<const std::int32_t>> parents = {};
  // Where kernels find the state; see kvcache/verify_table.h.
  VerifyTable* table = nullptr;
  VerifyStrategy strategy = VerifyStrategy::kSteps;
  // Where kernels find the state and store inputs, by another strategy; see kvcache/carry_table.h.
  CarryTable* carry = nullptr;
};

class BatchVerifySession {
 public:
  BatchVerifySession() = default;  // ended
  BatchVerifySession(BatchVerifySession&& other) noexcept;
  BatchVerifySession& operator=(BatchVerifySession&& other) noexcept;
  ~BatchVerifySession();  // rolls back, unless committed

  std::size_t size() const { return starts_.size(); }    // sequences
  std::uint64_t rows() const { return tokens_.size(); }  // of all of them
  const std::vector<std::int32_t>& tokens() const { return tokens_; }
  const std::vector<std::int64_t>& positions() const { return positions_; }
  // Rows [offsets[i], offsets[i + 1]) are those of sequence i: size() + 1 numbers, the first one 0.
  const std::vector<std::int32_t>& offsets() const { return offsets_; }
  // Where row 0 of each sequence is stored, and its row i at starts()[...] + i.
  const std::vector<std::int64_t>& starts() const { return starts_; }
  // kInvalidArgument: in a child of fork(); see Sequence::check_process().
  Status check_process() const;
  // False after commit() or rollback(), and in a child of fork().
  bool is_open() const;

  // As of VerifySession, rows or records of all sequences one after the other.
  Status write(std::int32_t layer, std::span<const codec::RowsView> components);
  Status write_records(std::int32_t layer, std::string_view name, const codec::RowsView& rows);
  Result<StateView> state(std::size_t sequence, std::uint64_t row, std::int32_t layer,
                          std::string_view name);
  Result<StateView> live(std::size_t sequence, std::int32_t layer, std::string_view name) const;
  Result<PendingRows> pending(std::size_t sequence, std::int32_t layer,
                              std::string_view name) const;
  Status stash(std::int32_t layer, std::string_view name, const StashInputs& inputs);
  VerifyStrategy strategy() const { return strategy_; }

  // Keeps the first accepted[i] rows of each sequence; 0 leaves it as it was before. Ends the
  // session and returns the lengths. `in_place`: kernels have stored the rows in the pages
  // themselves, which need no write() then. kInvalidArgument, naming the sequence, and nothing
  // changed: as of VerifySession::commit().
  Result<std::vector<std::uint64_t>> commit(std::span<const std::uint64_t> accepted,
                                            bool in_place = false);
  // The same for paths: counts[i] rows of sequence i, numbered from its root, one after the other.
  Result<std::vector<std::uint64_t>> commit_paths(std::span<const std::int32_t> rows,
                                                  std::span<const std::uint64_t> counts,
                                                  bool in_place = false);
  // Ends the session; the sequences are as they were before.
  Status rollback();

 private:
  friend class Batch;

  // Own: the locks of the batch and of its sequences are held.
  Status claim(const CacheCore& cache, const VerifyTable& table, std::size_t sequences,
               std::span<const std::uint64_t> counts);
  Status claim(const CacheCore& cache, const CarryTable& table, std::size_t sequences);
  void open_rows(const std::shared_ptr<BatchCore>& core, std::span<const std::int32_t> drafts,
                 std::span<const std::uint64_t> counts, std::vector<TokenTree> trees);
  void stage();
  void engage();  // what the carry table's kernels have stored counts as stashed
  // Own. kInvalidArgument: no such sequence, or the session cannot be used.
  Status check_member(std::string_view call, std::size_t sequence) const;
  Status check_open(std::string_view call) const;  // why the session cannot be used
  void end();                                      // takes the cache's lock
  // `paths` where they are not the first rows; takes the locks.
  Result<std::vector<std::uint64_t>> commit_rows(std::span<const std::uint64_t> counts,
                                                 std::optional<std::span<const std::int32_t>> paths,
                                                 bool in_place);

  std::shared_ptr<BatchCore> core_;
  bool open_ = false;                   // own
  std::vector<std::uint64_t> serials_;  // of each sequence's verify
  std::vector<std::int32_t> tokens_;
  std::vector<std::int64_t> positions_;
  std::vector<std::int32_t> offsets_;
  std::vector<std::int64_t> starts_;
  VerifyStrategy strategy_ = VerifyStrategy::kSteps;
  std::shared_ptr<VerifyTableCore> table_;  // own: that is claimed; else null
  std::shared_ptr<CarryTableCore> carry_;   // likewise
};

}  // namespace kvcache
