// Holds the processor's rounding mode at nearest-even while rows are converted: a host program may
// have changed it, and the codes are defined by it.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace kvcache::codec {

class NearestRounding {
 public:
  NearestRounding() : found_(read()) {
    if ((found_ & kRounding) != 0) write(found_ & ~kRounding);
  }
  ~NearestRounding() {
    if ((found_ & kRounding) != 0) write(found_);
  }
  NearestRounding(const NearestRounding&) = delete;
  NearestRounding& operator=(const NearestRounding&) = delete;

 private:
#if defined(__x86_64__)
  using Word = std::uint32_t;
  static constexpr Word kRounding = 3U << 13;  // MXCSR.RC
  static Word read() { return _mm_getcsr(); }
  static void write(Word word) { _mm_setcsr(word); }
#elif defined(__aarch64__)
  using Word = std::uint64_t;
  static constexpr Word kRounding = 3U << 22;  // FPCR.RMode
  static Word read() {
    Word word;
    __asm__ volatile("mrs %0, fpcr" : "=r"(word));
    return word;
  }
  static void write(Word word) { __asm__ volatile("msr fpcr, %0" : : "r"(word)); }
#else
  using Word = unsigned;
  static constexpr Word kRounding = 0;
  static Word read() { return 0; }
  static void write(Word) {}
#endif

  Word found_;
};

}  // namespace kvcache::codec
