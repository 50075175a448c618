// Functions of gpu/device/ptx.cuh for kernels on host threads. A pair of words is two
// separate words here: no kernel may rely on a pair arriving at once.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "conformance/trace.hpp"
#include "gpu/device/numbers.cuh"

namespace plait::cuda {

#define PLAIT_NOINLINE inline
#define PLAIT_SM_90 1
#define PLAIT_DYNAMIC_SHARED(name) char* const name = nullptr  // no kernel needs any
#define PLAIT_SHARED(Type, name) Type& name = plait_test::block_shared->at<Type>([] {})

/// NaN becomes 0x7fff in either half, as on a GPU.
inline unsigned pair_of(unsigned first, bool first_is_nan, unsigned second, bool second_is_nan) {
  return (first_is_nan ? 0x7fffu : first) | (second_is_nan ? 0x7fffu : second) << 16;
}
inline unsigned pair_of_bf16(float first, float second) {
  const auto rounded = [](float value) {
    const unsigned bits = __float_as_uint(value);
    return static_cast<unsigned>((bits + std::uint64_t{0x7fff} + (bits >> 16 & 1)) >> 16);
  };
  return pair_of(rounded(first), first != first, rounded(second), second != second);
}
inline unsigned pair_of_fp16(float first, float second) {
  const auto rounded = narrow<5, 10, true>;
  return pair_of(rounded(first), first != first, rounded(second), second != second);
}
inline float from_fp16(std::uint16_t code) { return widen<5, 10, true>(code); }

inline void sync_threads(unsigned id, unsigned) {
  (*plait_test::team_barriers)[id]->arrive_and_wait();
}
inline bool any_of_threads(unsigned id, unsigned, bool mine) {
  return (*plait_test::team_barriers)[id]->any(mine);
}
inline bool any_of_warp(bool mine) { return plait_test::warp_barrier->any(mine); }
inline unsigned cluster_blocks() {
  return static_cast<unsigned>(plait_test::cluster->shared.size());
}
inline unsigned block_of_cluster() { return blockIdx.x % cluster_blocks(); }
inline unsigned cluster_of_grid() { return blockIdx.x / cluster_blocks(); }
inline unsigned grid_clusters() { return gridDim.x / cluster_blocks(); }
inline void cluster_arrive() {
  plait_test::cluster_arrival.emplace(plait_test::cluster->barrier.arrive());
}
inline void cluster_wait() {
  plait_test::cluster->barrier.wait(std::move(*plait_test::cluster_arrival));
  plait_test::cluster_arrival.reset();
}
using ByteCounter = unsigned long long;
/// State of an mbarrier of one arrival a phase. A phase ends with its arrival and all bytes that
/// the arrival expects.
struct BarrierState {
  std::uint16_t phases;    ///< ended phases
  std::uint16_t arrivals;  ///< in this phase
  std::int32_t missing;    ///< bytes; negative = bytes came before the arrival
};
inline BarrierState state_of(const ByteCounter* counter) {
  return std::bit_cast<BarrierState>(std::atomic_ref(*const_cast<ByteCounter*>(counter)).load());
}
inline void change_barrier(ByteCounter* counter, std::uint16_t arrivals, std::int32_t missing) {
  ByteCounter before = std::atomic_ref(*counter).load(), after = 0;
  do {
    auto state = std::bit_cast<BarrierState>(before);
    if (arrivals != 0 && state.arrivals != 0)
      plait_test::cluster->report("an mbarrier got two arrivals in a phase");
    state.arrivals = static_cast<std::uint16_t>(state.arrivals + arrivals);
    state.missing += missing;
    if (state.arrivals != 0 && state.missing == 0)
      state = {static_cast<std::uint16_t>(state.phases + 1), 0, 0};
    after = std::bit_cast<ByteCounter>(state);
  } while (!std::atomic_ref(*counter).compare_exchange_weak(before, after));
}
inline void init_bytes(ByteCounter* counter) {
  std::atomic_ref(*counter).store(0);
  plait_test::cluster->add_counter(counter, [](const void* at) {
    const BarrierState state = state_of(static_cast<const ByteCounter*>(at));
    return state.arrivals == 0 && state.missing == 0;
  });
}
inline void expect_bytes(ByteCounter* counter, unsigned bytes) {
  change_barrier(counter, 1, static_cast<std::int32_t>(bytes));
}
inline void store_in_block(float* shared, ByteCounter* counter, unsigned block, float value) {
  auto& mine = *plait_test::block_shared;
  auto& other = *plait_test::cluster->shared[block];
  std::atomic_ref(*static_cast<float*>(mine.same_place(shared, other))).store(value);
  change_barrier(static_cast<ByteCounter*>(mine.same_place(counter, other)), 0, -4);
}
inline void let_others_run();
/// Reports a wait whose parity stands for another phase: a GPU would go on too early, or never.
inline void await_bytes(ByteCounter* counter, unsigned use) {
  plait_test::EmulatedCluster& mine = *plait_test::cluster;
  const auto end = std::chrono::steady_clock::now() + mine.patience;
  while (!mine.has_fault()) {
    const auto ended = static_cast<std::uint16_t>(state_of(counter).phases - use);
    if (ended == 1) return;
    if (ended != 0) return mine.report("a wait at an mbarrier names another phase");
    if (std::chrono::steady_clock::now() > end)
      return mine.report("a phase of an mbarrier lacks its arrival or bytes");
    let_others_run();
  }
}
/// A polling thread yields or sleeps at every 16th look, since threads outnumber cores.
inline void let_others_run() {
  thread_local unsigned looks = 0;
  if (++looks % 16 != 0) return;
  if (looks % 32 != 0)
    std::this_thread::yield();
  else
    std::this_thread::sleep_for(std::chrono::microseconds(50));
}
/// Aborts on a misaligned address or size, since a GPU would end the process.
inline void must_be_multiple(std::uintptr_t value, std::size_t bytes) {
  if (value % bytes == 0) return;
  std::fprintf(stderr, "wanted an address or a size that is a multiple of %zu, found %#zx\n", bytes,
               static_cast<std::size_t>(value));
  std::abort();
}
inline void must_be_aligned(const void* at, std::size_t bytes) {
  must_be_multiple(reinterpret_cast<std::uintptr_t>(at), bytes);
}
template <class Type>
Type load_plain(const Type* at) {
  must_be_aligned(at, sizeof *at);
  const Type value = plait_test::load_data(at);
  plait_test::note(plait_test::Touch::load, at, &value, sizeof value);
  return value;
}
template <class Type>
void store_plain(Type* at, Type value) {
  must_be_aligned(at, sizeof *at);
  plait_test::note(plait_test::Touch::store, at, &value, sizeof value);
  plait_test::store_data(at, value);
}
/// Reads a byte, so that a sanitizer sees a prefetch outside of a buffer.
inline void fetch_ahead(const void* at) { (void)*static_cast<const volatile char*>(at); }
inline void wait_for_grid_before() {}
inline void issue_loads() {}
inline void let_next_grid_start() {}
inline void store_word(unsigned long long* at, unsigned long long word) {
  if (word == ~0ull && plait_test::late_clears != nullptr)
    return plait_test::late_clears->store(at);
  std::atomic_ref(*at).store(word, std::memory_order_relaxed);
}
inline void store_pair(void* at, unsigned long long lo, unsigned long long hi) {
  must_be_aligned(at, 16);
  auto* const words = static_cast<unsigned long long*>(at);
  const unsigned long long pair[2] = {lo, hi};
  plait_test::note(plait_test::Touch::store, at, pair, sizeof pair);
  store_word(words + 1, hi);
  store_word(words, lo);
}
inline void store_relaxed_64(void* at, unsigned long long word) {
  plait_test::note(plait_test::Touch::store, at, &word, sizeof word);
  store_word(static_cast<unsigned long long*>(at), word);
}
inline unsigned long long load_relaxed_64(const void* at) {
  auto* const word = static_cast<unsigned long long*>(const_cast<void*>(at));
  const auto value = std::atomic_ref(*word).load(std::memory_order_relaxed);
  plait_test::note(plait_test::Touch::load, at, &value, sizeof value);
  return value;
}
inline void add_relaxed_64(void* at, unsigned long long value) {
  std::atomic_ref(*static_cast<unsigned long long*>(at)).fetch_add(value);
}
inline unsigned peek_flag(const unsigned* at) {
  let_others_run();
  return std::atomic_ref(*const_cast<unsigned*>(at)).load(std::memory_order_relaxed);
}
inline unsigned load_flag(const unsigned* at) {
  let_others_run();
  return std::atomic_ref(*const_cast<unsigned*>(at)).load(std::memory_order_acquire);
}
inline unsigned long long load_flag_64(const unsigned long long* at) {
  let_others_run();
  return std::atomic_ref(*const_cast<unsigned long long*>(at)).load(std::memory_order_acquire);
}
inline void store_flag(unsigned* at, unsigned value) {
  plait_test::note(plait_test::Touch::raise, at, &value, sizeof value);
  std::atomic_ref(*at).store(value, std::memory_order_release);
}
inline void store_flag_relaxed(unsigned* at, unsigned value) { store_flag(at, value); }
inline Unit load_pair(const void* at) {
  must_be_aligned(at, 16);
  let_others_run();
  auto* const words = static_cast<unsigned long long*>(const_cast<void*>(at));
  unsigned long long pair[2] = {std::atomic_ref(words[0]).load(std::memory_order_relaxed)};
  pair[1] = std::atomic_ref(words[1]).load(std::memory_order_relaxed);
  plait_test::note(plait_test::Touch::load, at, pair, sizeof pair);
  return {pair[0], pair[1]};
}
inline void fail_stream() {
  if (plait_test::stream_failed != nullptr) plait_test::stream_failed->store(true);
}
inline void fence_before_flags() { __threadfence_system(); }
inline unsigned long long now_ns() {
  return static_cast<unsigned long long>(
      std::chrono::steady_clock::now().time_since_epoch().count() - plait_test::clock_behind_ns);
}

}  // namespace plait::cuda
