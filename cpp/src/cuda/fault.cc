#include "cuda/fault.h"

#include "kvcache/cuda.h"

namespace kvcache::cuda {

Status fault_status(FaultWord word) {
  if (word == kNoFault) return Status::ok();
  const std::uint64_t index = word >> kFaultBits;
  switch (static_cast<Fault>(word & ((1U << kFaultBits) - 1))) {
    case Fault::kNonFinite:
      return Status::non_finite("row ", index, ": an element is not finite after F16 rounding");
    case Fault::kNoPage:
      return Status::invalid_argument("row ", index,
                                      ": its position lies behind the block table, or the table "
                                      "holds no id of a page there");
    case Fault::kNoItem:
      return Status::invalid_argument("pair ", index, ": an id is none of an item");
    case Fault::kNoState:
      break;
  }
  return Status::invalid_argument("sequence ", index, ": its id is none of a state");
}

}  // namespace kvcache::cuda
