// The sizing laws of the ten cache kinds: copies, stashes, tables and host indexes that no layer
// updates itself. An input that is absent makes a term of 0 bytes; nothing is guessed.
// Thread safety: pure functions of their arguments.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kvcache/state_decl.h"
#include "kvcache/status.h"

namespace kvcache {

struct CacheInputs {
  struct Ring {
    std::uint64_t depth = 0;  // ring slots of each sequence slot
    std::uint64_t sequences = 0;
  };
  struct Carry {
    std::uint64_t slots = 0;  // verify slots, dummy included
    std::uint64_t table_rows = 0;
  };
  struct Lookup {
    std::uint64_t sequences = 0;
    std::uint64_t history_tokens = 0;  // indexed tokens of each sequence
  };
  struct Tree {
    std::uint64_t verify_slots = 0;
    std::uint64_t nodes = 0;  // nodes of one token tree
  };
  struct Drafts {
    std::uint64_t verify_slots = 0;
    std::uint64_t positions = 0;  // draft positions of one slot
  };

  std::uint64_t prefix_snapshot_slots = 0;
  Ring ring;
  Carry carry;
  std::uint64_t verify_table_rows = 0;
  std::uint64_t capture_rows = 0;
  std::optional<Lookup> lookup;
  std::optional<Tree> tree;
  std::optional<Drafts> drafts;
};

struct CacheTerm {
  std::uint32_t decl = 0;  // index into the declarations
  std::uint64_t units = 0;
  std::uint64_t bytes = 0;
  bool host = false;  // lives in host memory
};

// One term for each cache declaration, in order; recurrent and paged state give none.
// kInvalidArgument: a bad declaration, or bytes beyond 64 bits; the message names the state.
Result<std::vector<CacheTerm>> cache_terms(const std::vector<StateDecl>& decls,
                                           const CacheInputs& inputs);

// Bytes of an open-addressing hash table that grew to hold `entries`: power-of-two buckets at a
// load of at most 7/8, one control byte each, entries first and aligned for the 16-byte groups
// (the growth rule of hashbrown). kInvalidArgument: more than 64 bits.
Result<std::uint64_t> hash_table_bytes(std::uint64_t entries, std::uint64_t entry_bytes);

}  // namespace kvcache
