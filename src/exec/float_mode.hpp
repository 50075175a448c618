// How this thread's processor computes with floats: the rounding, whether subnormals are flushed to
// zero, what traps. A program may have set that, on some threads and not on others; what plait
// computes must not depend on it, or ranks of one call differ in bits.
#pragma once
#include <cstdint>
#if !defined(__x86_64__) && !defined(__aarch64__)
#include <cfenv>
#endif

namespace plait {

#if defined(__x86_64__)
using FloatMode = std::uint32_t;                   // MXCSR
inline constexpr FloatMode kPlainFloats = 0x1f80;  // to nearest even, subnormals kept, no traps
inline constexpr FloatMode kFlushToZero = 0x8040;  // results (FTZ) and operands (DAZ)
inline constexpr FloatMode kFloatEvents = 0x003f;  // what has happened: no mode
inline FloatMode float_mode() {
  FloatMode mode;
  asm volatile("stmxcsr %0" : "=m"(mode) : : "memory");
  return mode;
}
inline void set_float_mode(FloatMode mode) { asm volatile("ldmxcsr %0" : : "m"(mode) : "memory"); }
#elif defined(__aarch64__)
using FloatMode = std::uint64_t;  // FPCR
inline constexpr FloatMode kPlainFloats = 0;
inline constexpr FloatMode kFlushToZero = 0x1080000;  // FZ, FZ16
inline constexpr FloatMode kFloatEvents = 0;
inline FloatMode float_mode() {
  FloatMode mode;
  asm volatile("mrs %0, fpcr" : "=r"(mode) : : "memory");
  return mode;
}
inline void set_float_mode(FloatMode mode) {
  asm volatile("msr fpcr, %0" : : "r"(mode) : "memory");
}
#else
using FloatMode = int;  // the rounding is all that C++ knows of
inline constexpr FloatMode kPlainFloats = FE_TONEAREST;
inline constexpr FloatMode kFlushToZero = 0;
inline constexpr FloatMode kFloatEvents = 0;
inline FloatMode float_mode() { return std::fegetround(); }
inline void set_float_mode(FloatMode mode) { std::fesetround(mode); }
#endif

/// While it lives, this thread computes as plait's numerics want it; then as before.
class PlainFloats {
 public:
  PlainFloats() : before_(float_mode()) {
    if (differs()) set_float_mode(kPlainFloats);
  }
  ~PlainFloats() {
    if (differs()) set_float_mode(before_);
  }
  PlainFloats(const PlainFloats&) = delete;
  PlainFloats& operator=(const PlainFloats&) = delete;

 private:
  bool differs() const { return (before_ & ~kFloatEvents) != kPlainFloats; }
  const FloatMode before_;
};

}  // namespace plait
