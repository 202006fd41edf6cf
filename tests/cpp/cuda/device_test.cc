// The kernels on a device: the same cases as on the simulated grid, and what needs a device at all.
// Skipped where there is none.
#include <cuda_runtime_api.h>

#include "cuda_row_cases.h"
#include "cuda_state_cases.h"
#include "kvcache/page_pool.h"

namespace kvcache::cuda::testing {
namespace {

void expect_done(cudaError_t error) { EXPECT_EQ(error, cudaSuccess) << cudaGetErrorString(error); }

class Device : public Machine {
 public:
  std::shared_ptr<void> allocate(std::size_t bytes) override {
    void* data = nullptr;
    expect_done(cudaMalloc(&data, bytes));
    return {data, [](void* at) { expect_done(cudaFree(at)); }};
  }
  void write(void* to, const void* from, std::size_t bytes) override {
    expect_done(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
  }
  void read(void* to, const void* from, std::size_t bytes) override {
    expect_done(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
  }

  Status encode_int8(const RowsView& in, std::int8_t* codes, float* scales,
                     FaultWord* faults) override {
    return done(cuda::encode_int8(in, codes, scales, faults, nullptr));
  }
  Status decode_int8(const std::int8_t* codes, const float* scales,
                     const MutableRowsView& out) override {
    return done(cuda::decode_int8(codes, scales, out, nullptr));
  }
  Status scatter(const RowsView& in, const Pages& to, const BlockTables& at,
                 FaultWord* faults) override {
    return done(cuda::scatter(in, to, at, faults, nullptr));
  }
  Status gather(const Pages& from, const BlockTables& at, const MutableRowsView& out,
                FaultWord* faults) override {
    return done(cuda::gather(from, at, out, faults, nullptr));
  }
  Status copy_items(const Items& from, const Items& to, std::uint64_t bytes, const ItemPair* pairs,
                    std::size_t count, FaultWord* faults) override {
    return done(cuda::copy_items(from, to, bytes, pairs, count, faults, nullptr));
  }
  Status fold(const codec::FoldState& state, const codec::FoldRows& rows,
              codec::FoldRounding rounding, const FoldBatch& batch, FaultWord* faults) override {
    return done(cuda::fold(state, rows, rounding, batch, faults, nullptr));
  }

 private:
  static Status done(Status launched) {
    expect_done(cudaDeviceSynchronize());
    return launched;
  }
};

class CudaDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const Status why = availability(); !why) GTEST_SKIP() << why.message();
  }
  Device device;
};

TEST_F(CudaDevice, ContiguousInt8IsTheCodecs) { contiguous_int8_is_the_codecs(device, 600); }
TEST_F(CudaDevice, PagedRowsAreTheCodecs) { paged_rows_are_the_codecs(device, 900); }
TEST_F(CudaDevice, AWrongTableIsAFaultOfItsRows) {
  a_wrong_table_is_a_fault_of_its_rows(device, 600);
}
TEST_F(CudaDevice, CopiesAreThoseOfMemcpy) { copies_are_those_of_memcpy(device, 400); }
TEST_F(CudaDevice, FoldsAreTheCpus) { folds_are_the_cpus(device, 1500); }

TEST_F(CudaDevice, AFaultWordIsClearedAndReadInTheStreamsOrder) {
  const FaultWord fault = 5;
  const Held word(device, &fault, sizeof fault);
  EXPECT_EQ(check_faults(word.at<FaultWord>(), nullptr).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(clear_faults(word.at<FaultWord>(), nullptr));
  EXPECT_TRUE(check_faults(word.at<FaultWord>(), nullptr));
}

TEST_F(CudaDevice, PagesOfAPinnedPoolGoThereAndBack) {
  constexpr std::uint64_t kBlocks = 64;
  constexpr std::uint64_t kBytes = 5000;
  auto pool = PagePool::create(
      {.blocks = kBlocks, .block_bytes = kBytes, .memory = {.prefault_threads = 1}});
  ASSERT_TRUE(pool);
  const auto host = (*pool)->memory();
  ASSERT_TRUE(host);
  ASSERT_TRUE(host->settled);
  auto pinned = PinnedMemory::create(host->data, host->bytes, host->owner);
  ASSERT_TRUE(pinned) << pinned.status().message();
  std::vector<std::int32_t> ids(kBlocks);
  ASSERT_TRUE((*pool)->allocate_many(ids));
  Random random(9);
  for (const std::int32_t id : ids) {
    auto* block = reinterpret_cast<char*>(*(*pool)->data(id));
    for (std::uint64_t i = 0; i < kBytes; ++i) block[i] = static_cast<char>(random());
  }
  const std::vector<char> before(reinterpret_cast<char*>(host->data),
                                 reinterpret_cast<char*>(host->data) + host->bytes);
  const Held far(device, std::vector<char>(kBlocks * kBytes));
  const Items near{host->data, kBlocks, host->stride};
  const Items there{far.at(), kBlocks, kBytes};
  std::vector<ItemPair> out;
  std::vector<ItemPair> back;
  for (const std::int32_t id : ids) {
    const std::int32_t place = id < 40 ? id : 103 - id;  // a run, and then backwards
    out.push_back({id, place});
    back.push_back({place, id});
  }
  cudaStream_t stream = nullptr;
  expect_done(cudaStreamCreate(&stream));
  auto event = Event::create();
  ASSERT_TRUE(event);
  ASSERT_TRUE(move_items(near, there, kBytes, out, stream));
  ASSERT_TRUE(event->record(stream));
  ASSERT_TRUE(event->wait());
  EXPECT_TRUE(*event->is_done());
  for (const std::int32_t id : ids) std::memset(*(*pool)->data(id), 0, kBytes);
  ASSERT_TRUE(event->block(stream));
  ASSERT_TRUE(move_items(there, near, kBytes, back, stream));
  expect_done(cudaStreamSynchronize(stream));
  for (const std::int32_t id : ids) {
    const std::uint64_t at = static_cast<std::uint64_t>(id) * host->stride;
    ASSERT_EQ(std::memcmp(*(*pool)->data(id), before.data() + at, kBytes), 0) << id;
  }
  expect_done(cudaStreamDestroy(stream));
}

}  // namespace
}  // namespace kvcache::cuda::testing
