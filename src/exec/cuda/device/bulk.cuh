// Bulk asynchronous copies (sm_90): one thread moves memory to memory by way of shared memory, many
// pieces under way at once, while the other threads of its block compute. Sixteen such threads fill
// a link that wants all 132 blocks of loads and stores (E-0002).
// Source: PTX ISA, cp.async.bulk and mbarrier.
#pragma once
#include "exec/cuda/device/memory.cuh"
#include "exec/cuda/tiles/tile_args.hpp"

#if PLAIT_SM_90
namespace plait::cuda {

__device__ inline unsigned shared_address(const void* at) {
  return static_cast<unsigned>(__cvta_generic_to_shared(at));
}
/// What was read or written by loads and stores comes before later bulk copies.
__device__ inline void bulk_follows() { asm volatile("fence.proxy.async;" ::: "memory"); }

/// Until at most `pending` of this thread's bulk stores are under way: those before have been read
/// out of shared memory (kRead), or are there for all who see a later release of this thread.
template <bool kRead>
__device__ inline void wait_bulk_stores(unsigned pending) {
#define PLAIT_WAIT(n)                                                     \
  case n:                                                                 \
    if (kRead)                                                            \
      asm volatile("cp.async.bulk.wait_group.read " #n ";" ::: "memory"); \
    else                                                                  \
      asm volatile("cp.async.bulk.wait_group " #n ";" ::: "memory");      \
    break
  switch (pending) {
    PLAIT_WAIT(0);
    PLAIT_WAIT(1);
    PLAIT_WAIT(2);
    PLAIT_WAIT(3);
    PLAIT_WAIT(4);
    PLAIT_WAIT(5);
    PLAIT_WAIT(6);
    default:  // a ring has no more
      asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
#undef PLAIT_WAIT
}

/// Pieces on their way through shared memory, first in first out; one thread's. Addresses and sizes
/// are multiples of 16 bytes.
template <unsigned kStages>
class BulkRing {
  static_assert(kStages <= 7);

 public:
  __device__ BulkRing(char* buffer, unsigned long long* barriers)
      : buffer_(buffer), barriers_(barriers) {
    for (unsigned i = 0; i < kStages; ++i)
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barriers + i))
                   : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    bulk_follows();
  }
  __device__ unsigned held() const { return loaded_ - stored_; }
  __device__ unsigned stored() const { return stored_; }
  /// Only while fewer than kStages are held.
  __device__ void load(const char* src, unsigned bytes) {
    if (loaded_ >= kStages) wait_bulk_stores<true>(stored_ + kStages - 1 - loaded_);
    const unsigned stage = loaded_++ % kStages, barrier = shared_address(barriers_ + stage);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(shared_address(buffer_ + stage * kBulkBytes)),
        "l"(src), "r"(bytes), "r"(barrier)
        : "memory");
  }
  /// The oldest piece held has been read. It has been told to be there, so no peer is waited for.
  __device__ void await_load() const {
    const unsigned barrier = shared_address(barriers_ + stored_ % kStages);
    unsigned done = 0;
    while (done == 0)
      asm volatile(
          "{ .reg .pred p;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
          "selp.u32 %0, 1, 0, p; }"
          : "=r"(done)
          : "r"(barrier), "r"(stored_ / kStages & 1)
          : "memory");
  }
  /// The oldest piece held goes to one place more; after the last of them comes pass().
  __device__ void put(char* dst, unsigned bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst),
                 "r"(shared_address(buffer_ + stored_ % kStages * kBulkBytes)), "r"(bytes)
                 : "memory");
  }
  __device__ void pass() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    ++stored_;
  }
  __device__ void store(char* dst, unsigned bytes) {
    put(dst, bytes);
    pass();
  }
  /// Nothing is under way any more; what is held is lost.
  __device__ void end() {
    for (; held() != 0; ++stored_) await_load();
    wait_bulk_stores<false>(0);
    for (unsigned i = 0; i < kStages; ++i)  // so that another ring may lie there
      asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(shared_address(barriers_ + i))
                   : "memory");
  }

 private:
  char* const buffer_;
  unsigned long long* const barriers_;
  unsigned loaded_ = 0, stored_ = 0;
};

}  // namespace plait::cuda
#endif  // PLAIT_SM_90
