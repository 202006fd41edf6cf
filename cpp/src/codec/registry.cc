#include "codec/registry.h"

#include <cstdlib>
#include <string>

namespace kvcache::codec {

extern const Kernels kKernelsScalar;
#ifdef KVCACHE_HAVE_AVX2
extern const Kernels kKernelsAvx2;
#endif
#ifdef KVCACHE_HAVE_AVX512
extern const Kernels kKernelsAvx512;
#endif
#ifdef KVCACHE_HAVE_NEON
extern const Kernels kKernelsNeon;
#endif

namespace {

constexpr const Kernels* kCompiled[] = {
#ifdef KVCACHE_HAVE_AVX512
    &kKernelsAvx512,
#endif
#ifdef KVCACHE_HAVE_AVX2
    &kKernelsAvx2,
#endif
#ifdef KVCACHE_HAVE_NEON
    &kKernelsNeon,
#endif
    &kKernelsScalar,
};

constexpr std::string_view kNames[] = {"scalar", "avx2", "avx512", "neon"};

std::string runnable_names() {
  std::string names;
  for (const Kernels* kernels : kCompiled) {
    if (!kernels->supported()) continue;
    if (!names.empty()) names += ", ";
    names += kernels->name;
  }
  return names;
}

}  // namespace

std::span<const Kernels* const> compiled_kernels() { return kCompiled; }

Result<const Kernels*> choose_kernels(std::string_view requested) {
  for (const Kernels* kernels : kCompiled) {
    if (!requested.empty() && requested != kernels->name) continue;
    if (kernels->supported()) return kernels;
    if (!requested.empty()) {
      return Status::unsupported("KVCACHE_ISA=", requested, ": this processor lacks it; it runs ",
                                 runnable_names());
    }
  }
  for (std::string_view name : kNames) {
    if (name != requested) continue;
    return Status::unsupported("KVCACHE_ISA=", requested, ": not in this build; it holds ",
                               runnable_names());
  }
  return Status::invalid_argument("KVCACHE_ISA=", requested,
                                  ": unknown; use scalar, avx2, avx512 or neon, or unset it");
}

const Result<const Kernels*>& active_kernels() {
  static const Result<const Kernels*> active = [] {
    const char* requested = std::getenv("KVCACHE_ISA");
    return choose_kernels(requested == nullptr ? std::string_view() : requested);
  }();
  return active;
}

}  // namespace kvcache::codec
