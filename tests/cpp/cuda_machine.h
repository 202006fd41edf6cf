// What runs the calls of kvcache/cuda.h in a test: a simulated grid on the host, or a device.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#include "kvcache/cuda.h"

namespace kvcache::cuda::testing {

class Machine {
 public:
  virtual ~Machine() = default;

  // Memory of the machine, aligned to 256 bytes.
  virtual std::shared_ptr<void> allocate(std::size_t bytes) = 0;
  virtual void write(void* to, const void* from, std::size_t bytes) = 0;
  virtual void read(void* to, const void* from, std::size_t bytes) = 0;

  virtual Status encode_int8(const codec::RowsView& in, std::int8_t* codes, float* scales,
                             FaultWord* faults) = 0;
  virtual Status decode_int8(const std::int8_t* codes, const float* scales,
                             const codec::MutableRowsView& out) = 0;
  virtual Status scatter(const codec::RowsView& in, const Pages& to, const BlockTables& at,
                         FaultWord* faults) = 0;
  virtual Status gather(const Pages& from, const BlockTables& at, const codec::MutableRowsView& out,
                        FaultWord* faults) = 0;
  virtual Status copy_items(const Items& from, const Items& to, std::uint64_t bytes,
                            const ItemPair* pairs, std::size_t count, FaultWord* faults) = 0;
  virtual Status fold(const codec::FoldState& state, const codec::FoldRows& rows,
                      codec::FoldRounding rounding, const FoldBatch& batch, FaultWord* faults) = 0;
};

// A copy of host memory on a machine.
class Held {
 public:
  Held(Machine& machine, const void* data, std::size_t bytes)
      : machine_(machine),
        memory_(machine.allocate(std::max<std::size_t>(bytes, 1))),
        bytes_(bytes) {
    if (bytes > 0) machine.write(memory_.get(), data, bytes);
  }
  template <typename T>
  Held(Machine& machine, const std::vector<T>& data)
      : Held(machine, data.data(), data.size() * sizeof(T)) {}

  template <typename T = char>
  T* at(std::ptrdiff_t offset = 0) const {
    return reinterpret_cast<T*>(static_cast<char*>(memory_.get()) + offset);
  }
  std::vector<char> bytes() const {
    std::vector<char> out(bytes_);
    if (bytes_ > 0) machine_.read(out.data(), memory_.get(), bytes_);
    return out;
  }

 private:
  Machine& machine_;
  std::shared_ptr<void> memory_;
  std::size_t bytes_;
};

// A fault word of its own.
class Faults {
 public:
  explicit Faults(Machine& machine) : held_(machine, &kNoFault, sizeof kNoFault) {}
  FaultWord* word() const { return held_.at<FaultWord>(); }
  FaultWord found() const {
    FaultWord value = 0;
    std::memcpy(&value, held_.bytes().data(), sizeof value);
    return value;
  }
  Status status() const { return fault_status(found()); }

 private:
  Held held_;
};

}  // namespace kvcache::cuda::testing
