// Floating-point mode of this thread: rounding, flushing of subnormals, traps. A program may change
// the mode on some threads only. plait's results must not depend on the mode, or ranks of a call
// would differ in bits.
#pragma once
#include <cstdint>
#if !defined(__x86_64__) && !defined(__aarch64__)
#include <cfenv>
#endif

namespace plait {

#if defined(__x86_64__)
using FloatMode = std::uint32_t;  // MXCSR
// Round to nearest even, keep subnormals, no traps.
inline constexpr FloatMode kPlainFloats = 0x1f80;
inline constexpr FloatMode kFlushToZero = 0x8040;  // Results (FTZ) and operands (DAZ).
inline constexpr FloatMode kFloatEvents = 0x003f;  // Status flags, not part of the mode.
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
using FloatMode = int;  // C++ knows the rounding mode only.
inline constexpr FloatMode kPlainFloats = FE_TONEAREST;
inline constexpr FloatMode kFlushToZero = 0;
inline constexpr FloatMode kFloatEvents = 0;
inline FloatMode float_mode() { return std::fegetround(); }
inline void set_float_mode(FloatMode mode) { std::fesetround(mode); }
#endif

/// Sets the mode of plait's numerics for the object's life, then restores the former mode.
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
