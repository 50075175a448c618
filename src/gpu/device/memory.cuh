// Loads, stores, flags and deadlines of kernels. Every wait of a kernel goes through SpinTimeout.
// Orders follow the PTX memory model: a block publishes data by storing it, meeting at a CTA
// barrier, and letting a single thread release at system scope. volatile orders nothing.
#pragma once
#include "gpu/abi/call_args.hpp"
#ifndef PLAIT_PTX  // host emulation: tests/conformance/device_on_host.hpp
#define PLAIT_PTX "gpu/device/ptx.cuh"
#endif
#include PLAIT_PTX

namespace plait::cuda {

__device__ inline bool reached(unsigned a, unsigned b) { return static_cast<int>(a - b) >= 0; }

/// Returns the rank `k` after `rank` in the rotation, for 0 <= k <= ranks. Ranks visit peers in
/// this order, so no rank is the first target of all.
__device__ inline int rank_after(int rank, int k, int ranks) {
  const int at = rank + k;
  return at < ranks ? at : at - ranks;
}
/// True if 16-byte units from this address on can be loaded and stored whole.
__device__ inline bool is_aligned(const void* at) {
  return (reinterpret_cast<unsigned long long>(at) & 15) == 0;
}

/// Fails the stream after a wait was given up and reported to the host, unless the program has
/// aborted. No call may leave a wrong result behind a stream that reports success.
__device__ inline void fail_unless_aborted(unsigned failed) {
  if (failed != kFaultAborted) fail_stream();
}

/// Returns the FaultCode; not 0 = this rank's kernels exit, and the host can read the reason.
__device__ inline unsigned fault_of(const DeviceState* state) {
  const unsigned failed = *const_cast<const volatile unsigned*>(&state->failed);
  return failed == kFaultBeingReported ? unsigned{kNoFault} : failed;
}

/// Called at kernel start. True if a fault has been reported, after failing the stream unless the
/// program has aborted. False while the report is incomplete, since other blocks wait until then.
__device__ inline bool should_exit(const DeviceState* state) {
  const unsigned failed = fault_of(state);
  if (failed != kNoFault) fail_unless_aborted(failed);
  return failed != kNoFault;
}

/// Called at kernel end after a start-up load saw a fault pending. Kernels with this call do not
/// wait for that load at the start: the wait would cost a small call 0.1 us.
__device__ inline void fail_stream_at_end(const DeviceState* state) {
  unsigned failed = fault_of(state);
  // Waits until the report is complete.
  for (unsigned polls = 0; failed == kNoFault && polls < 1u << 20; ++polls)
    failed = fault_of(state);
  fail_unless_aborted(failed);
}

/// Records the first fault of this rank and reports the fault to the host. All other threads keep
/// waiting until the report is complete. Returns the code reported, or 0 if another thread is
/// reporting.
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

/// True if `time_ns` is 0 (unset) or ahead of `now`. The clock of a migrated or restored machine
/// may step back, and unsigned differences would then be huge.
__device__ inline bool is_not_past(unsigned long long time_ns, unsigned long long now) {
  return time_ns - 1 >= now;
}

/// Counts failed polls of a thread; gives up at the deadline or on the host's stop code. Host
/// memory is far, and tens of thousands of threads may wait at once. Therefore a single thread
/// reads host memory, at most once per millisecond, and all waiting threads see the outcome in
/// device memory.
struct SpinTimeout {
  static constexpr unsigned long long kLookNs = 1'000'000;
  unsigned polls = 0;
  unsigned long long began_ns = 0;

  /// Returns the host's stop FaultCode, or 0 if another thread has just looked. Clocks of SMs may
  /// differ slightly in both directions.
  __device__ static unsigned host_stop_code(DeviceState* state, StopPage* stop_page,
                                            unsigned long long now) {
    const unsigned long long looked = *const_cast<volatile unsigned long long*>(&state->looked_ns);
    if (now - looked + kLookNs < 2 * kLookNs) return kNoFault;
    if (atomicCAS(&state->looked_ns, looked, now) != looked) return kNoFault;
    return *const_cast<volatile unsigned*>(&stop_page->stop);
  }

  /// True if the last poll read the clock and the stop code, as few polls do.
  __device__ bool checked_host() const { return (polls & 255u) == 0; }
  /// Poll of a wait for threads of the same block. The awaited threads handle peers and deadlines.
  /// True once a fault is reported.
  __device__ bool failed_elsewhere(const DeviceState* state) {
    let_others_run();
    return (++polls & 255u) == 0 && fault_of(state) != kNoFault;
  }
  /// Polls; returns the FaultCode once the wait is over and the host can read the reason. For
  /// callers with work to do before the stream fails.
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
  /// Polls; returns true if the wait is over, after failing the stream unless the program has
  /// aborted.
  __device__ bool expired(DeviceState* state, StopPage* stop_page, unsigned long long wait_ns,
                          unsigned peer, unsigned where, unsigned lane) {
    const unsigned code = poll(state, stop_page, wait_ns, peer, where, lane);
    if (code != kNoFault) fail_unless_aborted(code);
    return code != kNoFault;
  }
};

/// Called at the end of a call. A peer that gives up sets `poisoned` before its queued copies could
/// reach this rank's memory, so no call succeeds with their data. poisoned: this rank's flag; null
/// = no peer copies into this rank.
__device__ inline void fail_if_poisoned(const unsigned* poisoned, DeviceState* state,
                                        StopPage* stop_page, unsigned long long wait_ns) {
  const unsigned said = poisoned == nullptr ? 0 : peek_flag(poisoned);
  if (said == 0) return;
  SpinTimeout timeout;
  while (!timeout.expired(state, stop_page, wait_ns, said - 1, 0, ~0u)) {
  }
}

/// Loads a unit of a buffer of any alignment; elements past `bytes` read as 0.
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

/// kOnce: the data is not read here again, so the cache may evict it first.
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
