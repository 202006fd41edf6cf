// The instruction sets this build holds, and the choice among them.
#pragma once

#include <span>
#include <string_view>

#include "codec/kernels.h"
#include "kvcache/status.h"

namespace kvcache::codec {

// Best first; the scalar row is last and runs everywhere.
std::span<const Kernels* const> compiled_kernels();

// `requested` empty: the best row this processor runs. Otherwise the row of that name.
// kInvalidArgument: no such name. kUnsupported: not in this build, or not on this processor.
Result<const Kernels*> choose_kernels(std::string_view requested);

// choose_kernels(KVCACHE_ISA), settled on first use.
const Result<const Kernels*>& active_kernels();

}  // namespace kvcache::codec
