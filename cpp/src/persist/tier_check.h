// What is in the directory of a disk tier, and whether every byte of it is right, without the cache
// that wrote it. Changes nothing.
// Thread safety: functions are thread-safe.
#pragma once

#include <string>

#include "kvcache/disk_tier.h"
#include "kvcache/status.h"
#include "persist/system.h"

namespace kvcache::persist {

// `deep`: reads every byte, otherwise headers and footers only. kNotFound: no tier is there.
// kCorruption, kUnsupported: its marker is damaged or of another version. kIoError: the system
// refused to list it.
Result<TierReport> check_tier(System& system, const std::string& path, bool deep);

}  // namespace kvcache::persist
