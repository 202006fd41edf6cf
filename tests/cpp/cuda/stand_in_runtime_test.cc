// The calls that need the CUDA runtime but no kernel, with a stand-in for the runtime: memory of
// the device is memory of the host, and work is done at once. Its functions are linked in place of
// the runtime's.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "cuda_values.h"
#include "kvcache/cuda.h"

namespace {

struct StandIn {
  cudaError_t answer = cudaSuccess;  // of every call
  std::vector<std::string> calls;
};
StandIn stand_in;

cudaError_t answered(const char* call) {
  stand_in.calls.emplace_back(call);
  return stand_in.answer;
}

}  // namespace

extern "C" {

const char* cudaGetErrorName(cudaError_t) { return "cudaErrorName"; }
const char* cudaGetErrorString(cudaError_t) { return "what it means"; }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return answered("count");
}
cudaError_t cudaMemsetAsync(void* at, int value, size_t bytes, cudaStream_t) {
  std::memset(at, value, bytes);
  return answered("set");
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t) {
  EXPECT_EQ(kind, cudaMemcpyDefault);
  std::memcpy(to, from, bytes);
  return answered("copy");
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t) {
  EXPECT_EQ(kind, cudaMemcpyDefault);
  EXPECT_LE(width, std::min(to_pitch, from_pitch));
  for (size_t i = height; i-- > 0;) {  // in no order that a caller may rely on
    std::memcpy(static_cast<char*>(to) + i * to_pitch,
                static_cast<const char*>(from) + i * from_pitch, width);
  }
  return answered("copy run");
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return answered("wait for stream"); }
cudaError_t cudaHostRegister(void*, size_t, unsigned) { return answered("register"); }
cudaError_t cudaHostUnregister(void*) { return answered("unregister"); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(&stand_in);
  return answered("create");
}
cudaError_t cudaEventDestroy(cudaEvent_t) { return answered("destroy"); }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return answered("record"); }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return answered("block"); }
cudaError_t cudaEventQuery(cudaEvent_t) { return answered("query"); }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return answered("wait"); }

}  // extern "C"

namespace kvcache::cuda::testing {
namespace {

using Calls = std::vector<std::string>;

class CudaStandIn : public ::testing::Test {
 protected:
  void SetUp() override { stand_in = {}; }
};

TEST_F(CudaStandIn, MovesAreThoseOfMemcpyAndNeighboursGoTogether) {
  Random random(10);
  for (int round = 0; round < 500; ++round) {
    const std::size_t count = between(random, 1, 12);
    const std::size_t bytes = between(random, 1, 70);
    const std::size_t from_stride = bytes + below(random, 9);
    const std::size_t to_stride = bytes + below(random, 9);
    std::vector<char> from(count * from_stride);
    for (char& byte : from) byte = static_cast<char>(random());
    std::vector<char> to(count * to_stride, 5);
    std::vector<char> expected = to;
    std::vector<ItemPair> pairs;
    std::size_t runs = 0;
    while (pairs.size() < 8) {  // runs of one to four, in the order given
      const std::size_t length = between(random, 1, std::min<std::size_t>(count, 4));
      const auto source = static_cast<std::int32_t>(below(random, count - length + 1));
      const auto target = static_cast<std::int32_t>(below(random, count - length + 1));
      const bool joins =
          !pairs.empty() && pairs.back().from + 1 == source && pairs.back().to + 1 == target;
      runs += joins ? 0 : 1;
      for (std::int32_t i = 0; i < static_cast<std::int32_t>(length); ++i) {
        pairs.push_back({source + i, target + i});
      }
    }
    for (const ItemPair& pair : pairs) {
      std::memcpy(&expected[static_cast<std::size_t>(pair.to) * to_stride],
                  &from[static_cast<std::size_t>(pair.from) * from_stride], bytes);
    }
    stand_in.calls.clear();
    ASSERT_TRUE(move_items({from.data(), count, from_stride}, {to.data(), count, to_stride}, bytes,
                           pairs, nullptr));
    ASSERT_EQ(to, expected);
    ASSERT_EQ(stand_in.calls.size(), runs);
  }
}

TEST_F(CudaStandIn, MovesWithinOneMemoryKeepTheirOrder) {
  for (const std::vector<ItemPair>& pairs : std::vector<std::vector<ItemPair>>{
           {{0, 1}, {1, 2}, {2, 3}}, {{1, 0}, {2, 1}, {3, 2}}, {{0, 4}, {1, 5}, {4, 2}}}) {
    std::string memory = "abcdefg";
    std::string expected = memory;
    for (const auto& [from, to] : pairs) {
      expected[static_cast<std::size_t>(to)] = expected[static_cast<std::size_t>(from)];
    }
    const Items items{memory.data(), memory.size(), 1};
    ASSERT_TRUE(move_items(items, items, 1, pairs, nullptr));
    EXPECT_EQ(memory, expected);
  }
}

TEST_F(CudaStandIn, AMoveOfAWrongIdMovesNothing) {
  char memory[8] = "abcdefg";
  const Items items{memory, 8, 1};
  const std::vector<ItemPair> pairs = {{0, 1}, {2, 8}};
  EXPECT_EQ(move_items(items, items, 1, pairs, nullptr).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(move_items(items, items, 1, {}, nullptr));
  EXPECT_STREQ(memory, "abcdefg");
  EXPECT_TRUE(stand_in.calls.empty());
}

TEST_F(CudaStandIn, MemoryIsUnregisteredBeforeItsOwnerGoes) {
  char memory[16];
  std::shared_ptr<void> owner(memory, [](void*) { answered("owner gone"); });
  auto pinned = PinnedMemory::create(memory, sizeof memory, owner);
  ASSERT_TRUE(pinned);
  {
    const PinnedMemory copy = *pinned;
    owner.reset();
  }
  EXPECT_EQ(stand_in.calls, Calls{"register"});
  pinned = Status::internal("no more");
  EXPECT_EQ(stand_in.calls, (Calls{"register", "unregister", "owner gone"}));
}

TEST_F(CudaStandIn, MemoryThatIsRefusedIsNotUnregistered) {
  char memory[16];
  EXPECT_EQ(PinnedMemory::create(nullptr, 16).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(PinnedMemory::create(memory, 0).status().code(), StatusCode::kInvalidArgument);
  stand_in.answer = cudaErrorMemoryAllocation;
  EXPECT_EQ(PinnedMemory::create(memory, 16).status().code(), StatusCode::kOutOfCapacity);
  stand_in.answer = cudaErrorHostMemoryAlreadyRegistered;
  EXPECT_EQ(PinnedMemory::create(memory, 16).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(stand_in.calls, (Calls{"register", "register"}));
}

TEST_F(CudaStandIn, AnEventIsDestroyedOnce) {
  {
    auto event = Event::create();
    ASSERT_TRUE(event);
    Event copy = *event;
    EXPECT_TRUE(copy.record(nullptr));
    EXPECT_TRUE(event->block(nullptr));
    EXPECT_TRUE(*event->is_done());
    stand_in.answer = cudaErrorNotReady;
    EXPECT_FALSE(*event->is_done());
    stand_in.answer = cudaErrorIllegalAddress;
    EXPECT_EQ(event->is_done().status().code(), StatusCode::kIoError);
    EXPECT_EQ(event->wait().code(), StatusCode::kIoError);
  }
  EXPECT_EQ(stand_in.calls,
            (Calls{"create", "record", "block", "query", "query", "query", "wait", "destroy"}));
}

TEST_F(CudaStandIn, AFaultWordIsClearedAndRead) {
  FaultWord word = 9 << 2;
  EXPECT_EQ(check_faults(&word, nullptr).code(), StatusCode::kNonFinite);
  EXPECT_TRUE(clear_faults(&word, nullptr));
  EXPECT_EQ(word, kNoFault);
  EXPECT_TRUE(check_faults(&word, nullptr));
  stand_in.answer = cudaErrorInvalidValue;
  EXPECT_EQ(clear_faults(&word, nullptr).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(check_faults(&word, nullptr).message(),
            "CUDA refused check_faults: what it means (cudaErrorName)");
}

TEST_F(CudaStandIn, NoDeviceOrNoDriverIsUnsupported) {
  EXPECT_TRUE(available());
  for (const cudaError_t error : {cudaErrorNoDevice, cudaErrorInsufficientDriver}) {
    stand_in.answer = error;
    EXPECT_FALSE(available());
    EXPECT_EQ(availability().code(), StatusCode::kUnsupported);
    EXPECT_EQ(Event::create().status().code(), StatusCode::kUnsupported);
  }
}

}  // namespace
}  // namespace kvcache::cuda::testing
