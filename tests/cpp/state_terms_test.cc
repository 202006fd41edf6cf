#include "kvcache/state_terms.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kvcache/cache_terms.h"

namespace kvcache {
namespace {

constexpr std::uint64_t kHuge = std::uint64_t{1} << 63;

StateDecl state(std::string id, StateKind kind, DType dtype, std::vector<std::uint64_t> shape,
                VerifyRule verify = VerifyRule::kNone) {
  return {.id = std::move(id),
          .component = "state",
          .kind = kind,
          .dtype = dtype,
          .shape = std::move(shape),
          .verify = verify};
}

StateDecl paged(std::uint32_t window = 0, std::uint32_t record_tokens = 1) {
  StateDecl decl = state("k", StateKind::kPagedKv, DType::kF16, {2, 4});
  decl.window = window;
  decl.record_tokens = record_tokens;
  return decl;
}

TEST(StateTerms, WorkedExampleOfThreeStatesGivesItsSevenTerms) {
  const std::vector<StateDecl> decls = {
      state("h", StateKind::kRecurrent, DType::kF32, {1000}, VerifyRule::kHSteps),
      state("conv", StateKind::kRecurrent, DType::kF32, {30}, VerifyRule::kConvSteps),
      state("k", StateKind::kPagedKv, DType::kFp8, {1, 8}),
  };
  const auto terms = state_terms(decls, {5, VerifyCounts{{3, 1, 3}, 4}, BlockPool{10, 16}, {}});
  ASSERT_TRUE(terms.is_ok()) << terms.status().message();
  std::vector<std::pair<std::uint64_t, std::uint64_t>> found;
  for (const StateTerm& term : *terms) found.emplace_back(term.units, term.bytes);
  const std::vector<std::pair<std::uint64_t, std::uint64_t>> expected = {
      {5, 20000}, {7, 28000}, {3, 12000}, {5, 600}, {12, 1440}, {3, 360}, {160, 1280}};
  EXPECT_EQ(found, expected);
}

TEST(StateTerms, HalfPrecisionHalvesOnlyItsOwnTerms) {
  const auto bytes = [](DType dtype) {
    const auto terms = state_terms(
        {state("h", StateKind::kRecurrent, dtype, {1000}, VerifyRule::kHSteps),
         state("conv", StateKind::kRecurrent, DType::kF32, {30}, VerifyRule::kConvSteps)},
        {5, VerifyCounts{{3, 1, 3}, 4}, {}, {}});
    std::uint64_t of_h = 0;
    std::uint64_t of_conv = 0;
    for (const StateTerm& term : *terms) (term.decl == 0 ? of_h : of_conv) += term.bytes;
    return std::pair(of_h, of_conv);
  };
  EXPECT_EQ(bytes(DType::kF32).first, 2 * bytes(DType::kF16).first);
  EXPECT_EQ(bytes(DType::kF32).second, bytes(DType::kF16).second);
}

TEST(StateTerms, RecurrentStateWithoutARuleIsRejectedUnderVerifyAndNamed) {
  const std::vector<StateDecl> decls = {state("tail", StateKind::kRecurrent, DType::kF32, {4})};
  EXPECT_TRUE(state_terms(decls, {2, {}, {}, {}}).is_ok());
  const auto terms = state_terms(decls, {2, VerifyCounts{{1, 1}, 2}, {}, {}});
  ASSERT_FALSE(terms.is_ok());
  EXPECT_EQ(terms.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(terms.status().message().find("tail"), std::string::npos);
}

TEST(StateTerms, DraftStateIsSizedByTheDraftPoolAlone) {
  StateDecl draft = paged();
  draft.section = Section::kDraft;
  const auto without = state_terms({draft}, {1, {}, BlockPool{9, 16}, {}});
  EXPECT_TRUE(without->empty());
  const auto with = state_terms({draft}, {1, {}, BlockPool{9, 16}, BlockPool{2, 8}});
  EXPECT_EQ(with->at(0).units, 16U);
}

TEST(StateTerms, APoolThatSplitsARecordIsRejected) {
  EXPECT_FALSE(state_terms({paged(0, 3)}, {1, {}, BlockPool{1, 16}, {}}).is_ok());
  EXPECT_EQ(state_terms({paged(0, 4)}, {1, {}, BlockPool{1, 16}, {}})->at(0).units, 4U);
}

TEST(StateTerms, OverflowIsAnErrorThatNamesTheState) {
  const std::vector<StateDecl> decls = {
      state("h", StateKind::kRecurrent, DType::kF32, {4}, VerifyRule::kHSteps)};
  for (const StateInputs& inputs :
       {StateInputs{kHuge, {}, {}, {}}, StateInputs{1, VerifyCounts{{kHuge, kHuge}, 1}, {}, {}},
        StateInputs{1, VerifyCounts{{kHuge}, 1}, {}, {}}}) {
    const auto terms = state_terms(decls, inputs);
    ASSERT_FALSE(terms.is_ok());
    EXPECT_NE(terms.status().message().find("h: "), std::string::npos) << terms.status().message();
  }
  EXPECT_FALSE(state_terms({paged()}, {1, {}, BlockPool{kHuge, 2}, {}}).is_ok());
}

TEST(RetainedBytes, EqualBruteForceOverPositions) {
  for (const std::uint32_t window : {0, 1, 3, 8}) {
    for (const std::uint32_t record : {1, 2, 5}) {
      for (std::uint64_t tokens = 0; tokens < 40; ++tokens) {
        std::uint64_t kept = 0;
        for (std::uint64_t p = 0; p < tokens; ++p) kept += window == 0 || p + window >= tokens;
        const auto bytes = retained_bytes(paged(window, record), tokens, 1);
        EXPECT_EQ(*bytes, kept / record * 16) << window << ' ' << record << ' ' << tokens;
      }
    }
  }
}

TEST(RetainedBytes, OnlyUnwindowedStateIsRoundedToBlocks) {
  EXPECT_EQ(*retained_units(paged(), 17, 16), 32U);
  EXPECT_EQ(*retained_units(paged(8), 17, 16), 8U);
  EXPECT_EQ(*retained_units(state("h", StateKind::kRecurrent, DType::kF32, {4}), 17, 16), 1U);
}

TEST(RetainedBytes, CachesZeroBlocksAndOverflowsAreRejected) {
  EXPECT_FALSE(retained_units(paged(), 1, 0).is_ok());
  EXPECT_FALSE(retained_units(paged(0, 0), 1, 1).is_ok());
  EXPECT_FALSE(
      retained_units(state("m", StateKind::kTokenTreeMask, DType::kU8, {1}), 1, 1).is_ok());
  EXPECT_FALSE(retained_bytes(paged(), UINT64_MAX, 1).is_ok());
  EXPECT_FALSE(retained_units(paged(), UINT64_MAX, 16).is_ok());
  EXPECT_FALSE(retained_bytes({paged(), paged()}, std::uint64_t{1} << 59, 1).is_ok());
}

std::uint64_t only(StateKind kind, DType dtype, std::vector<std::uint64_t> shape,
                   const CacheInputs& inputs) {
  const auto terms = cache_terms({state("s", kind, dtype, std::move(shape))}, inputs);
  EXPECT_TRUE(terms.is_ok());
  return terms->at(0).bytes;
}

TEST(CacheTerms, EachKindFollowsItsWorkedExample) {
  CacheInputs inputs;
  inputs.prefix_snapshot_slots = 256;
  inputs.ring = {8, 3};
  inputs.carry = {2, 128};
  inputs.verify_table_rows = 128;
  inputs.capture_rows = 32768;
  inputs.lookup = CacheInputs::Lookup{2, 1000};
  inputs.tree = CacheInputs::Tree{4, 16};
  inputs.drafts = CacheInputs::Drafts{4, 16};
  EXPECT_EQ(only(StateKind::kPrefixSnapshot, DType::kF32, {786432}, inputs), 805306368U);
  EXPECT_EQ(only(StateKind::kRingSnapshot, DType::kF32, {10}, inputs), 960U);
  EXPECT_EQ(only(StateKind::kCarryStash, DType::kF32, {98688}, inputs), 789504U);
  EXPECT_EQ(only(StateKind::kCarryTable, DType::kU64, {3}, inputs), 3072U);
  EXPECT_EQ(only(StateKind::kVerifyTable, DType::kU64, {16}, inputs), 16384U);
  EXPECT_EQ(only(StateKind::kAcceptStash, DType::kBf16, {5120}, inputs), 1310720U);
  EXPECT_EQ(only(StateKind::kHiddenCapture, DType::kBf16, {5120}, inputs), 335544320U);
  EXPECT_EQ(only(StateKind::kTokenTreeMask, DType::kU8, {1}, inputs), 1024U);
  EXPECT_EQ(only(StateKind::kDraftTokens, DType::kI32, {1}, inputs), 256U);
  EXPECT_EQ(only(StateKind::kPromptLookupIndex, DType::kU64, {2}, inputs), 69664U);
}

TEST(CacheTerms, AbsentInputsGiveTermsOfZeroBytes) {
  std::vector<StateDecl> decls;
  for (int kind = 0; kind < 12; ++kind) {
    decls.push_back(state("s", static_cast<StateKind>(kind), DType::kF32, {4}));
  }
  const auto terms = cache_terms(decls, {});
  ASSERT_TRUE(terms.is_ok());
  EXPECT_EQ(terms->size(), 10U);
  for (const CacheTerm& term : *terms) EXPECT_EQ(term.units + term.bytes, 0U);
}

TEST(CacheTerms, OnlyThePromptLookupIndexLivesOnTheHost) {
  const auto terms = cache_terms({state("a", StateKind::kPromptLookupIndex, DType::kU64, {2}),
                                  state("b", StateKind::kTokenTreeMask, DType::kU8, {1})},
                                 {});
  EXPECT_TRUE(terms->at(0).host);
  EXPECT_FALSE(terms->at(1).host);
}

TEST(CacheTerms, OverflowNamesTheState) {
  CacheInputs inputs;
  inputs.ring = {kHuge, 2};
  inputs.tree = CacheInputs::Tree{1, std::uint64_t{1} << 32};
  inputs.lookup = CacheInputs::Lookup{kHuge, 1};
  for (const StateKind kind :
       {StateKind::kRingSnapshot, StateKind::kTokenTreeMask, StateKind::kPromptLookupIndex}) {
    const auto terms = cache_terms({state("wide", kind, DType::kU64, {2})}, inputs);
    ASSERT_FALSE(terms.is_ok());
    EXPECT_NE(terms.status().message().find("wide"), std::string::npos);
  }
}

TEST(HashTable, FollowsItsGrowthRule) {
  const std::pair<std::uint64_t, std::uint64_t> sizes[] = {{0, 0},
                                                           {1, 84},
                                                           {3, 84},
                                                           {4, 152},
                                                           {7, 152},
                                                           {8, 288},
                                                           {14, 288},
                                                           {15, 560},
                                                           {1000, 34832},
                                                           {32768, 1114128},
                                                           {std::uint64_t{1} << 20, 35651600}};
  for (const auto& [entries, bytes] : sizes) EXPECT_EQ(*hash_table_bytes(entries, 16), bytes);
  EXPECT_FALSE(hash_table_bytes(UINT64_MAX, 16).is_ok());
  EXPECT_FALSE(hash_table_bytes(std::uint64_t{1} << 60, 16).is_ok());
  EXPECT_FALSE(hash_table_bytes(kHuge, 1).is_ok());
}

}  // namespace
}  // namespace kvcache
