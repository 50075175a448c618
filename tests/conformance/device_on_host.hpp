// What kernels need of CUDA, on a host's threads: a thread for each of a kernel's, a barrier a
// block, memory's orders by std::atomic's. Comes before any .cuh.
#pragma once
#include <algorithm>
#include <atomic>
#include <barrier>
#include <bit>
#include <chrono>
#include <cmath>
#include <thread>

#include "plait/plan.hpp"

#define PLAIT_PTX "conformance/ptx_on_host.hpp"
#define __device__
// Code that nvcc has looked at; gcc sees less in it.
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wdangling-else"

// Where a thread is in its kernel, and where it meets its block's.
struct PlaitIndex {
  unsigned x = 0;
};
inline thread_local PlaitIndex threadIdx, blockIdx, blockDim, gridDim;
namespace plait_test {
inline thread_local std::barrier<>* block_meets = nullptr;
/// Set where the stream of this thread's rank fails. Its kernels go on to their end, as the threads
/// of a GPU may for a moment: what they send meanwhile must not harm a peer.
inline thread_local std::atomic<bool>* stream_failed = nullptr;

/// A named barrier of some of a block's threads.
class TeamMeet {
 public:
  explicit TeamMeet(unsigned threads) : all_(threads) {}
  void meet() { all_.arrive_and_wait(); }
  bool any(bool mine) {
    if (mine) found_.store(true);
    meet();
    const bool found = found_.load();
    meet();
    found_.store(false);
    meet();
    return found;
  }

 private:
  std::barrier<> all_;
  std::atomic<bool> found_{false};
};
inline thread_local TeamMeet* team_meets = nullptr;
}  // namespace plait_test

struct alignas(16) ulonglong2 {
  unsigned long long x, y;
};
inline ulonglong2 make_ulonglong2(unsigned long long x, unsigned long long y) { return {x, y}; }
template <class T>
void __stcs(T* at, T value) {
  *at = value;
}
inline void __syncthreads() { plait_test::block_meets->arrive_and_wait(); }
inline void __threadfence_system() {  // one that ThreadSanitizer knows
  static std::atomic<unsigned> order{0};
  order.fetch_add(1);
}
inline unsigned atomicAdd(unsigned* at, unsigned value) {
  return std::atomic_ref(*at).fetch_add(value);
}
template <class Word>
Word atomicCAS(Word* at, Word expected, Word value) {
  std::atomic_ref(*at).compare_exchange_strong(expected, value);
  return expected;
}
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline double __longlong_as_double(long long bits) { return std::bit_cast<double>(bits); }
using std::min;
using std::signbit;
