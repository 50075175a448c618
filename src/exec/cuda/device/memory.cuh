// Loads, stores, flags and deadlines as kernels use them: every wait of a kernel goes through
// SpinTimeout. Orders follow the PTX memory model: who publishes data stores it, meets its block at
// a CTA barrier, and has one thread release at system scope. volatile orders nothing.
#pragma once
#include "exec/cuda/device/call_args.hpp"
#ifndef PLAIT_PTX  // tests play kernels on a host's threads (tests/conformance/device_on_host.hpp)
#define PLAIT_PTX "exec/cuda/device/ptx.cuh"
#endif
#include PLAIT_PTX

namespace plait::cuda {

__device__ inline bool reached(unsigned a, unsigned b) { return static_cast<int>(a - b) >= 0; }

/// The rank `k` after `rank` in the rotation, for 0 <= k <= ranks: peers are visited in this order,
/// so that no rank is everybody's first.
__device__ inline int rank_after(int rank, int k, int ranks) {
  const int at = rank + k;
  return at < ranks ? at : at - ranks;
}
/// Whether units of 16 bytes from here on can be loaded and stored whole.
__device__ inline bool is_aligned(const void* at) {
  return (reinterpret_cast<unsigned long long>(at) & 15) == 0;
}

/// A wait was given up, and the host can read why. No call may leave a wrong result behind a stream
/// that reports success: unless the program has aborted, the stream fails.
__device__ inline void fail_unless_aborted(unsigned failed) {
  if (failed != kFaultAborted) fail_stream();
}

/// FaultCode: not 0 = nothing goes on here any more, and the host can read why.
__device__ inline unsigned fault_of(const DeviceState* state) {
  const unsigned failed = *const_cast<const volatile unsigned*>(&state->failed);
  return failed == kFaultBeingReported ? unsigned{kNoFault} : failed;
}

/// At the beginning of a kernel: true where nothing goes on here any more; false still while a
/// fault is being told, as the others go on waiting until it is.
__device__ inline bool should_exit(const DeviceState* state) {
  const unsigned failed = fault_of(state);
  if (failed != kNoFault) fail_unless_aborted(failed);
  return failed != kNoFault;
}

/// At the end of a kernel that found at its beginning that a wait had been given up: who has to
/// know at once waits there for a load, 0.1 us of a small call.
__device__ inline void fail_stream_at_end(const DeviceState* state) {
  unsigned failed = fault_of(state);
  for (unsigned polls = 0; failed == kNoFault && polls < 1u << 20; ++polls)  // it is being told
    failed = fault_of(state);
  fail_unless_aborted(failed);
}

/// Nothing goes on here any more. The first one who says so tells the host why, and until that is
/// told the others go on waiting. Returns what is told.
__device__ inline unsigned record_fault(DeviceState* state, StopPage* stop_page, unsigned code,
                                        unsigned peer, unsigned where, unsigned lane) {
  if (atomicCAS(&state->failed, unsigned{kNoFault}, unsigned{kFaultBeingReported}) != kNoFault)
    return fault_of(state);
  volatile KernelFault* fault = &stop_page->fault;
  fault->peer = peer;
  fault->where = where;
  fault->lane = lane;
  __threadfence_system();
  fault->code = code;
  __threadfence_system();
  *const_cast<volatile unsigned*>(&state->failed) = code;
  return code;
}

/// Of a time that is 0 until it is known, or that lies ahead: the clock has stepped back since, as
/// that of a machine may that is moved or restored, and unsigned differences would be for ever.
__device__ inline bool is_not_past(unsigned long long time_ns, unsigned long long now) {
  return time_ns - 1 >= now;
}

/// Counts failed polls of one thread; gives up at the deadline or when the host says so. Host
/// memory is far, and tens of thousands of threads may wait at once: one of them looks there, at
/// most once a millisecond, and the others see in device memory what came of it.
struct SpinTimeout {
  static constexpr unsigned long long kLookNs = 1'000'000;
  unsigned polls = 0;
  unsigned long long began_ns = 0;

  /// FaultCode: what the host says, or nothing where somebody else has just looked, by a clock that
  /// may be a little behind or ahead.
  __device__ static unsigned host_stop_code(DeviceState* state, StopPage* stop_page,
                                            unsigned long long now) {
    const unsigned long long looked = *const_cast<volatile unsigned long long*>(&state->looked_ns);
    if (now - looked + kLookNs < 2 * kLookNs) return kNoFault;
    if (atomicCAS(&state->looked_ns, looked, now) != looked) return kNoFault;
    return *const_cast<volatile unsigned*>(&stop_page->stop);
  }

  /// Whether the last poll looked at the time and what the host says; few do.
  __device__ bool checked_host() const { return (polls & 255u) == 0; }
  /// For waits on threads of the same block, who see to peers and deadlines themselves.
  __device__ bool failed_elsewhere(const DeviceState* state) {
    let_others_run();
    return (++polls & 255u) == 0 && fault_of(state) != kNoFault;
  }
  /// FaultCode: not 0 = the wait is over, and the host can read why. For who has something left to
  /// do before the stream fails.
  __device__ unsigned poll(DeviceState* state, StopPage* stop_page, unsigned long long wait_ns,
                           unsigned peer, unsigned where, unsigned lane) {
    if ((++polls & 255u) != 0) return kNoFault;
    const unsigned long long now = now_ns();
    if (is_not_past(began_ns, now)) began_ns = now;
    const unsigned failed = fault_of(state);
    if (failed != kNoFault) return failed;
    const unsigned stop = host_stop_code(state, stop_page, now);
    if (stop == kNoFault && now - began_ns < wait_ns) return kNoFault;
    return record_fault(state, stop_page, stop != kNoFault ? stop : unsigned{kFaultDeadline}, peer,
                        where, lane);
  }
  /// True where the program has aborted; where it has not and the wait is over, the stream fails.
  __device__ bool expired(DeviceState* state, StopPage* stop_page, unsigned long long wait_ns,
                          unsigned peer, unsigned where, unsigned lane) {
    const unsigned code = poll(state, stop_page, wait_ns, peer, where, lane);
    if (code != kNoFault) fail_unless_aborted(code);
    return code != kNoFault;
  }
};

/// At the end of a call: a peer that has given up said so before what it had queued by copy engines
/// could come into this rank's memory, so no call ends with what may lie there. poisoned: this
/// rank's word; null = no peer's copies come here.
__device__ inline void fail_if_poisoned(const unsigned* poisoned, DeviceState* state,
                                        StopPage* stop_page, unsigned long long wait_ns) {
  const unsigned said = poisoned == nullptr ? 0 : peek_flag(poisoned);
  if (said == 0) return;
  SpinTimeout timeout;
  while (!timeout.expired(state, stop_page, wait_ns, said - 1, 0, ~0u)) {
  }
}

/// One unit of a buffer of any alignment; elements past `bytes` read as 0.
template <class Stored>
__device__ inline Unit load_unit(const char* base, unsigned long long unit,
                                 unsigned long long bytes, bool aligned) {
  const unsigned long long at = unit * 16;
  if (aligned && at + 16 <= bytes) {
    const ulonglong2 pair = load_plain(reinterpret_cast<const ulonglong2*>(base + at));
    return {pair.x, pair.y};
  }
  unsigned long long words[2] = {0, 0};
  for (int i = 0; i < static_cast<int>(16 / sizeof(Stored)); ++i) {
    const unsigned long long offset = at + static_cast<unsigned long long>(i) * sizeof(Stored);
    if (offset >= bytes) break;
    const Stored stored = load_plain(reinterpret_cast<const Stored*>(base + offset));
    unsigned long long part = 0;
    __builtin_memcpy(&part, &stored, sizeof(Stored));
    words[i * sizeof(Stored) / 8] |= part << (i * sizeof(Stored) % 8 * 8);
  }
  return {words[0], words[1]};
}

/// kOnce: not read here again, so the cache may let go of it first.
template <class Stored, bool kOnce = false>
__device__ inline void store_unit(char* base, unsigned long long unit, const Unit& value,
                                  unsigned long long bytes, bool aligned) {
  const unsigned long long at = unit * 16;
  if (aligned && at + 16 <= bytes) {
    auto* const whole = reinterpret_cast<ulonglong2*>(base + at);
    if constexpr (kOnce)
      __stcs(whole, make_ulonglong2(value.lo, value.hi));
    else
      store_plain(whole, make_ulonglong2(value.lo, value.hi));
    return;
  }
  for (int i = 0; i < static_cast<int>(16 / sizeof(Stored)); ++i) {
    const unsigned long long offset = at + static_cast<unsigned long long>(i) * sizeof(Stored);
    if (offset >= bytes) break;
    const unsigned long long word = i * sizeof(Stored) < 8 ? value.lo : value.hi;
    const unsigned long long part = word >> (i * sizeof(Stored) % 8 * 8);
    Stored stored;
    __builtin_memcpy(&stored, &part, sizeof(Stored));
    store_plain(reinterpret_cast<Stored*>(base + offset), stored);
  }
}

}  // namespace plait::cuda
