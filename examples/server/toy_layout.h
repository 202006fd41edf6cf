// The decoder state of toy (qwen3_next), attention rows as f32.
// Written by `kvcache plan --emit cpp`; emit it anew instead of editing it.
//
//   auto plan = toy_layout::plan();
//   kvcache::CacheOptions options;
//   options.costs = toy_layout::kCosts;
//   auto cache = kvcache::Cache::create(*std::move(plan), options);
//
// Thread safety: constants and pure functions.
// clang-format off
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvcache/request.h"
#include "kvcache/state_decl.h"
#include "kvcache/state_plan.h"
#include "kvcache/status.h"
#include "kvcache/types.h"

namespace toy_layout {

// kvcache::StateDecl, whose comments say what the fields are.
struct Declaration {
  std::string_view id;
  std::int32_t layer;
  std::string_view component;
  kvcache::StateKind kind;
  kvcache::Section section;
  kvcache::DType dtype;
  std::size_t axes;
  std::array<std::uint64_t, 4> shape;  // the first `axes` of them; paged state: [heads, width]
  std::uint32_t row_scale_bytes;
  std::uint32_t window;
  kvcache::VerifyRule verify;
  std::uint32_t record_tokens;
  bool chunked;
  std::uint32_t sinks;
  kvcache::Gate gate;
};

// Layers that share a block table, in the order of Sequence::block_table().
struct Group {
  std::uint32_t window;
  bool chunked;
  std::uint32_t sinks;
  std::uint32_t record_tokens;
  std::size_t components;
  std::uint64_t token_bytes;
  std::uint64_t page_bytes;
};

inline constexpr std::string_view kModelType = "qwen3_next";
inline constexpr std::string_view kFingerprint =
    "sha256:b93aec578390dd540f2b6ece433683ed842788795d2146ec21eee8a0c0170021";
inline constexpr std::uint32_t kBlockTokens = 16;
inline constexpr std::uint64_t kBlockBytes = 4096;  // one block of every group
inline constexpr std::uint64_t kSlotBytes = 9600;  // fixed-size state of one sequence
inline constexpr std::uint32_t kSequences = 64;
inline constexpr std::uint64_t kSequenceTokens = 2048;
// Most bytes that a sequence of kSequenceTokens takes from the budget, decoded one by one.
inline constexpr std::uint64_t kSequenceBytes = 585728U;
inline constexpr std::uint64_t kMemoryBytes = 37486592U;  // of 64 sequences, 0 snapshots
// FLOPs of recomputing a position, for CacheOptions::costs.
inline constexpr kvcache::CostModel kCosts{1.0, 0.0};

inline constexpr std::array<Declaration, 8> kDeclarations{{
    {"l0.state.convolution.0", 0, "state.convolution.0",
     kvcache::StateKind::kRecurrent, kvcache::Section::kMain, kvcache::DType::kF32,
     2, {{3, 96, 0, 0}}, 0, 0,
     kvcache::VerifyRule::kConvSteps, 1, false, 0, kvcache::Gate::kHead},
    {"l0.state.recurrent", 0, "state.recurrent",
     kvcache::StateKind::kRecurrent, kvcache::Section::kMain, kvcache::DType::kF32,
     3, {{2, 16, 16, 0}}, 0, 0,
     kvcache::VerifyRule::kHSteps, 1, false, 0, kvcache::Gate::kHead},
    {"l1.state.convolution.0", 1, "state.convolution.0",
     kvcache::StateKind::kRecurrent, kvcache::Section::kMain, kvcache::DType::kF32,
     2, {{3, 96, 0, 0}}, 0, 0,
     kvcache::VerifyRule::kConvSteps, 1, false, 0, kvcache::Gate::kHead},
    {"l1.state.recurrent", 1, "state.recurrent",
     kvcache::StateKind::kRecurrent, kvcache::Section::kMain, kvcache::DType::kF32,
     3, {{2, 16, 16, 0}}, 0, 0,
     kvcache::VerifyRule::kHSteps, 1, false, 0, kvcache::Gate::kHead},
    {"l2.state.convolution.0", 2, "state.convolution.0",
     kvcache::StateKind::kRecurrent, kvcache::Section::kMain, kvcache::DType::kF32,
     2, {{3, 96, 0, 0}}, 0, 0,
     kvcache::VerifyRule::kConvSteps, 1, false, 0, kvcache::Gate::kHead},
    {"l2.state.recurrent", 2, "state.recurrent",
     kvcache::StateKind::kRecurrent, kvcache::Section::kMain, kvcache::DType::kF32,
     3, {{2, 16, 16, 0}}, 0, 0,
     kvcache::VerifyRule::kHSteps, 1, false, 0, kvcache::Gate::kHead},
    {"l3.attention.keys", 3, "attention.keys",
     kvcache::StateKind::kPagedKv, kvcache::Section::kMain, kvcache::DType::kF32,
     2, {{2, 16, 0, 0}}, 0, 0,
     kvcache::VerifyRule::kNone, 1, false, 0, kvcache::Gate::kHead},
    {"l3.attention.values", 3, "attention.values",
     kvcache::StateKind::kPagedKv, kvcache::Section::kMain, kvcache::DType::kF32,
     2, {{2, 16, 0, 0}}, 0, 0,
     kvcache::VerifyRule::kNone, 1, false, 0, kvcache::Gate::kHead},
}};

inline constexpr std::array<Group, 1> kGroups{{
    {0, false, 0, 1, 2, 256, 4096},
}};

inline std::vector<kvcache::StateDecl> declarations() {
  std::vector<kvcache::StateDecl> decls;
  decls.reserve(kDeclarations.size());
  for (const Declaration& from : kDeclarations) {
    kvcache::StateDecl decl;
    decl.id = std::string(from.id);
    decl.layer = from.layer;
    decl.component = std::string(from.component);
    decl.kind = from.kind;
    decl.section = from.section;
    decl.dtype = from.dtype;
    decl.shape.assign(from.shape.data(), from.shape.data() + from.axes);
    decl.row_scale_bytes = from.row_scale_bytes;
    decl.window = from.window;
    decl.verify = from.verify;
    decl.record_tokens = from.record_tokens;
    decl.chunked = from.chunked;
    decl.sinks = from.sinks;
    decl.gate = from.gate;
    decls.push_back(std::move(decl));
  }
  return decls;
}

// What kvcache was asked to plan, to be changed and handed to plan().
inline kvcache::PlanOptions options() {
  kvcache::PlanOptions wanted;
  wanted.memory_bytes = kMemoryBytes;
  wanted.block_tokens = kBlockTokens;
  wanted.sequences = kSequences;
  return wanted;
}

// Errors of StatePlan::create(). kUnsupported: the library computes another layout than the one
// that wrote this header.
inline kvcache::Result<kvcache::StatePlan> plan(const kvcache::PlanOptions& wanted = options()) {
  auto made = kvcache::StatePlan::create(declarations(), wanted);
  if (made && made->fingerprint() != kFingerprint) {
    return kvcache::Status::unsupported("toy_layout: the library's fingerprint is ",
                                        made->fingerprint(), ", the header's is ", kFingerprint,
                                        "; emit the header anew");
  }
  return made;
}

}  // namespace toy_layout
