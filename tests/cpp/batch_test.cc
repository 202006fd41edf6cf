#include "kvcache/batch.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <numeric>
#include <thread>

#include "content.h"
#include "kvcache/cache.h"

namespace kvcache {
namespace {

using content::keys;
using content::kRow;

std::unique_ptr<Cache> make_cache(std::uint64_t capacity_blocks = 0, bool int8 = false) {
  auto plan = StatePlan::create({keys(0, 0, int8), keys(1, 6)},
                                {.memory_bytes = 16 << 20, .block_tokens = 4, .sequences = 16});
  EXPECT_TRUE(plan.is_ok()) << plan.status().message();
  auto cache = Cache::create(std::move(plan).value(), {.capacity_blocks = capacity_blocks});
  EXPECT_TRUE(cache.is_ok()) << cache.status().message();
  return std::move(cache).value();
}

// Consecutive small integers, which float16 holds exactly.
std::vector<float> numbers(std::size_t rows, int from) {
  std::vector<float> values(rows * kRow);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>((from + static_cast<int>(i)) % 2000);
  }
  return values;
}

codec::RowsView view_of(const std::vector<float>& values) {
  return content::view_of<codec::RowsView>(values.data(), values.size() / kRow);
}

codec::MutableRowsView view_of(std::vector<float>& values) {
  return content::view_of<codec::MutableRowsView>(values.data(), values.size() / kRow);
}

Status write(Batch& batch, std::int32_t layer, std::span<const std::uint64_t> counts,
             const std::vector<float>& values) {
  const std::array<codec::RowsView, 1> components = {view_of(values)};
  return batch.write(layer, *batch.lengths(), counts, components);
}

struct Opened {
  explicit Opened(Cache& cache, std::size_t count = 3) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::array<std::int32_t, 1> token = {static_cast<std::int32_t>(i)};
      sequences.push_back(std::move(cache.open(token, {})).value());
    }
    for (Sequence& sequence : sequences) pointers.push_back(&sequence);
  }
  std::vector<Sequence> sequences;
  std::vector<Sequence*> pointers;
};

TEST(Batch, ReadsWhatWasWritten) {
  const auto cache = make_cache();
  Opened opened(*cache);
  auto batch = std::move(Batch::create(opened.pointers)).value();
  const std::array<std::int32_t, 6> more = {7, 7, 7, 8, 8, 9};
  const std::array<std::uint64_t, 3> extra = {3, 2, 1};
  ASSERT_TRUE(batch.extend(more, extra));
  const std::array<std::uint64_t, 3> counts = {4, 0, 2};
  for (const std::int32_t layer : {0, 1}) {
    ASSERT_TRUE(write(batch, layer, counts, numbers(6, 100 * layer)));
  }
  ASSERT_TRUE(batch.advance(counts));
  EXPECT_EQ(*batch.lengths(), (std::vector<std::uint64_t>{4, 0, 2}));
  std::vector<float> back(6 * kRow);
  const std::array<codec::MutableRowsView, 1> out = {view_of(back)};
  const std::array<std::uint64_t, 3> starts = {0, 0, 0};
  for (const std::int32_t layer : {0, 1}) {
    ASSERT_TRUE(batch.read(layer, starts, counts, out));
    EXPECT_EQ(back, numbers(6, 100 * layer));
  }
}

TEST(Batch, KernelsStoreRowsInPreparedPages) {
  const auto cache = make_cache();
  Opened opened(*cache);
  auto batch = std::move(Batch::create(opened.pointers)).value();
  const auto memory = cache->pages(0, "attention.keys");
  ASSERT_TRUE(memory.is_ok());
  for (int step = 0; step < 20; ++step) {
    ASSERT_TRUE(batch.prepare({}));
    const auto table = batch.block_table(memory->group);
    ASSERT_TRUE(table.is_ok());
    const auto block = static_cast<std::size_t>(step / 4);
    for (std::size_t row = 0; row < 3; ++row) {
      const std::int32_t page = table->data[row * table->columns + block];
      const std::array<std::uint16_t, kRow> values = {static_cast<std::uint16_t>(step * 3 + row)};
      std::memcpy(memory->rows + static_cast<std::uint64_t>(page) * memory->page_stride +
                      static_cast<std::uint64_t>(step % 4) * sizeof values,
                  values.data(), sizeof values);
    }
    ASSERT_TRUE(batch.advance_in_place({}));
    const std::array<std::int32_t, 3> next = {1, 2, 3};
    ASSERT_TRUE(batch.extend(next, {}));
  }
  const auto views = opened.sequences[1].views(0, 0, 20);
  ASSERT_TRUE(views.is_ok());
  ASSERT_EQ((*views)[0].size(), 5U);
  for (std::uint64_t position = 0; position < 20; ++position) {
    const PageView& page = (*views)[0][position / 4];
    std::uint16_t value = 0;
    std::memcpy(&value, page.rows + position % 4 * kRow * 2, 2);
    EXPECT_EQ(value, position * 3 + 1);
  }
}

TEST(Batch, PagesAreForAllOrForNone) {
  const auto cache = make_cache(5);
  Opened opened(*cache);
  auto batch = std::move(Batch::create(opened.pointers)).value();
  const std::vector<std::int32_t> tokens(24, 1);
  const std::array<std::uint64_t, 3> counts = {8, 8, 8};
  ASSERT_TRUE(batch.extend(tokens, counts));
  EXPECT_EQ(batch.prepare(counts).code(), StatusCode::kOutOfCapacity);
  EXPECT_EQ(cache->stats().pages, 0U);
  EXPECT_EQ(write(batch, 0, counts, numbers(24, 0)).code(), StatusCode::kOutOfCapacity);
  EXPECT_EQ(cache->stats().pages, 0U);
  for (const Sequence& sequence : opened.sequences) EXPECT_EQ(*sequence.written(0), 0U);
}

TEST(Batch, ARowThatIsNotFiniteLeavesNothingReadable) {
  const auto cache = make_cache(0, true);
  Opened opened(*cache);
  auto batch = std::move(Batch::create(opened.pointers)).value();
  std::vector<float> rows = numbers(3, 0);
  rows[2 * kRow + 3] = std::numeric_limits<float>::infinity();
  const Status status = write(batch, 0, {}, rows);
  EXPECT_EQ(status.code(), StatusCode::kNonFinite);
  EXPECT_EQ(status.message().find("sequences[2]: "), 0U) << status.message();
  for (const Sequence& sequence : opened.sequences) EXPECT_EQ(*sequence.written(0), 0U);
}

TEST(Batch, RefusesWhatIsNoBatch) {
  const auto cache = make_cache();
  const auto other = make_cache();
  Opened opened(*cache);
  Opened strangers(*other, 1);
  Sequence closed;
  EXPECT_FALSE(Batch::create({}));
  for (Sequence* wrong :
       {static_cast<Sequence*>(nullptr), &closed, strangers.pointers[0], opened.pointers[0]}) {
    const std::array<Sequence*, 2> members = {opened.pointers[0], wrong};
    EXPECT_EQ(Batch::create(members).status().code(), StatusCode::kInvalidArgument);
  }
}

// Run under TSan: members of several batches, single calls, views and the end of a sequence.
TEST(Batch, ThreadsShareSequences) {
  const auto cache = make_cache();
  Opened opened(*cache, 6);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&, thread] {
      std::vector<Sequence*> members = opened.pointers;
      std::rotate(members.begin(), members.begin() + thread, members.end());
      auto batch = std::move(Batch::create(members)).value();
      const std::vector<std::int32_t> tokens(members.size(), thread);
      for (int step = 0; step < 60; ++step) {
        ASSERT_TRUE(batch.extend(tokens, {}));
        ASSERT_TRUE(batch.prepare({}));
        ASSERT_TRUE(batch.block_table(0).is_ok());
        // Another thread may have advanced into the next block, or forked, in between.
        while (!batch.advance_in_place({})) ASSERT_TRUE(batch.prepare({}));
      }
    });
  }
  threads.emplace_back([&] {
    for (int step = 0; step < 200; ++step) {
      Sequence& sequence = opened.sequences[static_cast<std::size_t>(step) % 6];
      const auto views = sequence.views(0, 0, sequence.length());
      ASSERT_TRUE(views.is_ok()) << views.status().message();
      ASSERT_TRUE(sequence.fork().is_ok());
    }
  });
  for (std::thread& thread : threads) thread.join();
  for (const Sequence& sequence : opened.sequences) EXPECT_EQ(sequence.length(), 180U);
  opened.sequences.clear();
  EXPECT_EQ(cache->stats().pages, 0U);
}

TEST(Views, PinPagesBeyondTheCache) {
  std::vector<std::vector<PageView>> views;
  {
    auto cache = make_cache();
    Opened opened(*cache, 1);
    const std::vector<float> rows = numbers(1, 5);
    const std::array<codec::RowsView, 1> components = {view_of(rows)};
    ASSERT_TRUE(opened.sequences[0].write(0, 0, components));
    views = std::move(opened.sequences[0].views(0, 0, 1)).value();
    opened.sequences.clear();
    EXPECT_EQ(cache->stats().pages, 1U);
    Opened others(*cache, 8);
    auto batch = std::move(Batch::create(others.pointers)).value();
    ASSERT_TRUE(write(batch, 0, {}, numbers(8, 900)));
  }
  std::uint16_t half = 0;
  std::memcpy(&half, views[0][0].rows, 2);
  EXPECT_EQ(half, 0x4500);  // 5
}

TEST(WriteLayers, AreForAllOrForNone) {
  const auto cache = make_cache(1);
  Opened opened(*cache, 1);
  Sequence& sequence = opened.sequences[0];
  const std::vector<std::int32_t> tokens(7, 2);
  ASSERT_TRUE(sequence.extend(tokens));
  const std::vector<float> rows = numbers(8, 0);
  const std::array<codec::RowsView, 1> eight = {view_of(rows)};
  std::array<LayerRows, 2> layers = {{{0, eight}, {1, eight}}};
  EXPECT_EQ(sequence.write_layers(0, layers).code(), StatusCode::kOutOfCapacity);
  EXPECT_EQ(cache->stats().pages, 0U);
  const std::vector<float> few = numbers(4, 0);
  const std::array<codec::RowsView, 1> four = {view_of(few)};
  layers = {{{0, four}, {0, four}}};
  EXPECT_EQ(sequence.write_layers(0, layers).code(), StatusCode::kInvalidArgument);
  layers = {{{0, four}, {1, four}}};
  ASSERT_TRUE(sequence.write_layers(0, layers));
  std::vector<float> back(4 * kRow);
  const std::array<codec::MutableRowsView, 1> out = {view_of(back)};
  const std::array<MutableLayerRows, 1> read = {{{1, out}}};
  ASSERT_TRUE(sequence.read_layers(0, read));
  EXPECT_EQ(back, few);
}

}  // namespace
}  // namespace kvcache
