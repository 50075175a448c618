// The parts of CUDA that kernels need, on host threads: a thread per kernel thread, a barrier per
// block, memory orders by std::atomic. To be included before any .cuh.
#pragma once
#include <algorithm>
#include <atomic>
#include <barrier>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "conformance/host_threads.hpp"
#include "conformance/trace.hpp"
#include "plait/plan.hpp"

#define PLAIT_PTX "conformance/ptx_on_host.hpp"
#define PLAIT_BULK "conformance/bulk_on_host.hpp"
#define __device__
// nvcc checks this code; these warnings of gcc would be false.
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wdangling-else"

// Indices of a thread in the kernel, and the barriers of the block.
struct PlaitIndex {
  unsigned x = 0;
};
inline thread_local PlaitIndex threadIdx, blockIdx, blockDim, gridDim;
namespace plait_test {
/// Set if the stream of this thread's rank fails. Kernels of the rank run to the end, as threads of
/// a GPU may for a moment: data sent meanwhile must not harm a peer.
inline thread_local std::atomic<bool>* stream_failed = nullptr;
/// Time by which the GPUs' clock has stepped back so far.
inline std::atomic<long long> clock_behind_ns{0};

/// While an object lives, the clock steps back again and again, faster than time passes.
class SteppingClock {
 public:
  SteppingClock() {
    steps_ = std::thread([this] {
      while (!ends_) {
        clock_behind_ns += 100'000'000;
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    });
  }
  ~SteppingClock() {
    ends_ = true;
    steps_.join();
    clock_behind_ns = 0;
  }
  SteppingClock(const SteppingClock&) = delete;
  SteppingClock& operator=(const SteppingClock&) = delete;

 private:
  std::atomic<bool> ends_{false};
  std::thread steps_;
};

inline thread_local ThreadBarrier* block_barrier = nullptr;
inline thread_local ThreadBarrier* warp_barrier = nullptr;  ///< of the thread's 32 lanes
inline thread_local std::vector<std::unique_ptr<ThreadBarrier>>* team_barriers =
    nullptr;  // by number

/// Shared memory of a block, with storage for each of a kernel's variables.
class BlockShared {
 public:
  template <class Type, class Place>
  Type& at(Place) {
    static char place;  // a separate place per lambda
    const std::lock_guard<std::mutex> hold(guard_);
    Variable& found = places_[&place];
    if (found.at == nullptr) found = {std::make_shared<Type>(), sizeof(Type)};
    return *static_cast<Type*>(found.at.get());
  }
  /// Returns the address in `other` that lies where `at` lies here. Aborts if the other block has
  /// not begun, since a GPU would end the process.
  void* same_place(void* at, BlockShared& other) {
    if (&other == this) return at;
    const std::scoped_lock hold(guard_, other.guard_);
    for (const auto& [place, mine] : places_) {
      const auto offset = static_cast<std::size_t>(static_cast<const char*>(at) -
                                                   static_cast<const char*>(mine.at.get()));
      if (offset >= mine.bytes) continue;
      const auto found = other.places_.find(place);
      if (found == other.places_.end()) break;
      return static_cast<char*>(found->second.at.get()) + offset;
    }
    std::fprintf(stderr, "wanted shared memory of a running block, found none at %p\n", at);
    std::abort();
  }

 private:
  struct Variable {
    std::shared_ptr<void> at;
    std::size_t bytes = 0;
  };
  std::mutex guard_;
  std::map<const void*, Variable> places_;
};
inline thread_local BlockShared* block_shared = nullptr;

/// A cluster of blocks: shared memory, the barrier of all threads, and the use of mbarriers.
class EmulatedCluster {
 public:
  EmulatedCluster(unsigned threads, std::chrono::milliseconds most_wait)
      : barrier(threads), patience(most_wait) {}
  std::barrier<> barrier;
  std::vector<BlockShared*> shared;          ///< by block
  const std::chrono::milliseconds patience;  ///< most time of a wait at an mbarrier

  using IsAtRest = bool (*)(const void* counter);
  /// Registers an mbarrier in shared memory. No phase may be open when the kernel ends.
  void add_counter(const void* counter, IsAtRest is_at_rest) {
    const std::lock_guard<std::mutex> hold(guard_);
    counters_.emplace_back(counter, is_at_rest);
  }
  /// Records the first fault of the kernel. Waits at mbarriers end then.
  void report(const char* fault) {
    const char* none = nullptr;
    fault_.compare_exchange_strong(none, fault);
  }
  bool has_fault() const { return fault_ != nullptr; }
  /// Returns the fault of a kernel that has ended; null = no fault.
  const char* fault() {
    for (const auto& [counter, is_at_rest] : counters_)
      if (!is_at_rest(counter)) report("a phase of an mbarrier is open at the end of the kernel");
    return fault_;
  }

 private:
  std::mutex guard_;
  std::vector<std::pair<const void*, IsAtRest>> counters_;
  std::atomic<const char*> fault_{nullptr};
};
inline thread_local EmulatedCluster* cluster = nullptr;
inline thread_local std::optional<std::barrier<>::arrival_token> cluster_arrival;

/// Stores of all ones by a rank to memory behind a bus: each lands as late as the memory model
/// allows, at the rank's next fence of the system. Other stores land at once.
class LateClears {
 public:
  void store(unsigned long long* word) {
    const std::lock_guard<std::mutex> hold(guard_);
    late_.push_back(word);
  }
  void land() {
    const std::lock_guard<std::mutex> hold(guard_);
    for (unsigned long long* word : late_)
      std::atomic_ref(*word).store(~0ull, std::memory_order_relaxed);
    late_.clear();
  }

 private:
  std::mutex guard_;
  std::vector<unsigned long long*> late_;
};
inline thread_local LateClears* late_clears = nullptr;  ///< null: clears land at once

/// Data that a rank stores into the GPU memory of its island lands as late as the memory model
/// allows: at the next fence of the system by a thread of the block that has stored. The rank
/// itself sees its stores at once.
class LateStores {
 public:
  void cover(const void* begin, std::size_t bytes) { covered_.push_back({address(begin), bytes}); }
  bool covers(const void* at) const {
    return std::any_of(covered_.begin(), covered_.end(),
                       [at](const auto& one) { return address(at) - one.first < one.second; });
  }
  /// bytes: at most 16, within a unit.
  void store(void* at, const void* value, std::size_t bytes) {
    Late late{blockIdx.x, static_cast<char*>(at), {}, bytes};
    std::copy_n(static_cast<const char*>(value), bytes, late.value);
    const std::lock_guard<std::mutex> hold(guard_);
    late_.emplace(address(at) / kUnit, late);
  }
  /// Lands the stores to the unit of `at`, which this rank loads.
  void see(const void* at) {
    const std::lock_guard<std::mutex> hold(guard_);
    const auto [first, last] = late_.equal_range(address(at) / kUnit);
    for (auto one = first; one != last; ++one) land(one->second);
    late_.erase(first, last);
  }
  /// Lands the stores of the calling thread's block.
  void land_of_block() {
    land_if([](const Late& one) { return one.block == blockIdx.x; });
  }
  void land_all() {
    land_if([](const Late&) { return true; });
  }

 private:
  static constexpr std::uintptr_t kUnit = 16;
  struct Late {
    unsigned block;
    char* at;
    char value[kUnit];
    std::size_t bytes;
  };
  static std::uintptr_t address(const void* at) { return reinterpret_cast<std::uintptr_t>(at); }
  static void land(const Late& one) { std::copy_n(one.value, one.bytes, one.at); }
  template <class Test>
  void land_if(const Test& lands) {
    const std::lock_guard<std::mutex> hold(guard_);
    std::erase_if(late_, [&](const auto& one) {
      if (lands(one.second)) land(one.second);
      return lands(one.second);
    });
  }

  std::mutex guard_;
  std::vector<std::pair<std::uintptr_t, std::size_t>> covered_;
  std::multimap<std::uintptr_t, Late> late_;  ///< by unit, in the order of the stores
};
inline thread_local LateStores* late_stores = nullptr;  ///< null: stores land at once

/// A bulk store of this thread that has not landed (bulk_on_host.hpp).
struct BulkPiece {
  char* dst;
  std::vector<char> bytes;
};
inline thread_local std::deque<BulkPiece> bulk_stores;

/// Takes from this thread what a kernel has left.
inline void end_kernel_thread() {
  trace = nullptr;
  looks = nullptr;
  stream_failed = nullptr;
  late_clears = nullptr;
  late_stores = nullptr;
  cluster_arrival.reset();
  bulk_stores.clear();
}

template <class Type>
void store_data(Type* at, Type value) {
  if (late_stores != nullptr && late_stores->covers(at))
    late_stores->store(at, &value, sizeof value);
  else
    *at = value;
}
template <class Type>
Type load_data(const Type* at) {
  if (late_stores != nullptr && late_stores->covers(at)) late_stores->see(at);
  return *at;
}

/// A launch.
struct Grid {
  unsigned blocks = 1, threads = 1;
  std::vector<unsigned> teams;  ///< threads of each named barrier
  std::atomic<bool>* stream_failed = nullptr;
  unsigned resident = ~0u;  ///< blocks at a time: the next start when these have ended
  unsigned cluster = 1;     ///< blocks of a cluster
  /// Gets the fault in the use of an mbarrier; null = a fault ends the process.
  std::atomic<const char*>* barrier_fault = nullptr;
  std::chrono::milliseconds barrier_patience{60'000};
};

/// Runs body() in each thread.
template <class Body>
void launch(const Grid& grid, const Body& body) {
  struct EmulatedBlock {
    explicit EmulatedBlock(const Grid& grid) : barrier(grid.threads) {
      for (const unsigned threads : grid.teams)
        teams.push_back(std::make_unique<ThreadBarrier>(threads));
      for (unsigned lane = 0; lane < grid.threads; lane += 32)
        warps.push_back(std::make_unique<ThreadBarrier>(std::min(32u, grid.threads - lane)));
    }
    ThreadBarrier barrier;
    std::vector<std::unique_ptr<ThreadBarrier>> teams, warps;
    BlockShared shared;
  };
  for (unsigned first = 0; first < grid.blocks;) {
    const unsigned end = first + std::min(grid.resident, grid.blocks - first);
    std::vector<std::unique_ptr<EmulatedBlock>> blocks;
    std::vector<std::unique_ptr<EmulatedCluster>> clusters;
    for (unsigned block = first; block < end; ++block) {
      blocks.push_back(std::make_unique<EmulatedBlock>(grid));
      if ((block - first) % grid.cluster == 0)
        clusters.push_back(
            std::make_unique<EmulatedCluster>(grid.threads * grid.cluster, grid.barrier_patience));
      clusters.back()->shared.push_back(&blocks.back()->shared);
    }
    HostThreads::run((end - first) * grid.threads, [&](unsigned number) {
      const unsigned at = number / grid.threads, thread = number % grid.threads;
      EmulatedBlock& one = *blocks[at];
      threadIdx.x = thread, blockDim.x = grid.threads;
      blockIdx.x = first + at, gridDim.x = grid.blocks;
      block_barrier = &one.barrier, team_barriers = &one.teams, block_shared = &one.shared;
      warp_barrier = one.warps[thread / 32].get();
      cluster = clusters[at / grid.cluster].get();
      stream_failed = grid.stream_failed;
      body();
      end_kernel_thread();
    });
    for (const auto& one : clusters) {
      const char* const fault = one->fault();
      if (fault == nullptr) continue;
      if (grid.barrier_fault == nullptr) {
        std::fprintf(stderr, "%s\n", fault);
        std::abort();
      }
      grid.barrier_fault->store(fault);
    }
    first = end;
  }
}
}  // namespace plait_test

struct alignas(16) ulonglong2 {
  unsigned long long x, y;
};
inline ulonglong2 make_ulonglong2(unsigned long long x, unsigned long long y) { return {x, y}; }
template <class T>
T __ldcs(const T* at) {
  return plait_test::load_data(at);
}
template <class T>
void __stcs(T* at, T value) {
  plait_test::note(plait_test::Touch::store, at, &value, sizeof value);
  plait_test::store_data(at, value);
}
inline void __syncthreads() { plait_test::block_barrier->arrive_and_wait(); }
inline int __syncthreads_or(int mine) { return plait_test::block_barrier->any(mine != 0) ? 1 : 0; }
inline int __ffsll(long long bits) {
  return bits == 0 ? 0 : std::countr_zero(static_cast<unsigned long long>(bits)) + 1;
}
inline int __ffs(int bits) { return std::countr_zero(static_cast<unsigned>(bits)) + 1; }
inline void __threadfence() {  // a fence that ThreadSanitizer understands
  static std::atomic<unsigned> order{0};
  order.fetch_add(1);
}
inline void __threadfence_system() {
  if (plait_test::late_clears != nullptr) plait_test::late_clears->land();
  if (plait_test::late_stores != nullptr) plait_test::late_stores->land_of_block();
  __threadfence();
}
/// A warp is the first team of its block.
inline int __any_sync(unsigned, int mine) {
  return (*plait_test::team_barriers)[0]->any(mine != 0);
}
inline void __syncwarp() { (*plait_test::team_barriers)[0]->arrive_and_wait(); }
inline void __threadfence_block() { __threadfence(); }
inline unsigned atomicAdd(unsigned* at, unsigned value) {
  return std::atomic_ref(*at).fetch_add(value);
}
inline unsigned long long atomicOr(unsigned long long* at, unsigned long long bits) {
  return std::atomic_ref(*at).fetch_or(bits);
}
inline unsigned long long atomicAnd(unsigned long long* at, unsigned long long bits) {
  return std::atomic_ref(*at).fetch_and(bits);
}
template <class Word>
Word atomicCAS(Word* at, Word expected, Word value) {
  std::atomic_ref(*at).compare_exchange_strong(expected, value);
  return expected;
}
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline double __longlong_as_double(long long bits) { return std::bit_cast<double>(bits); }
using std::max;
using std::min;
using std::signbit;
