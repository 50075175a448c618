// Bulk asynchronous copies (sm_90): a thread moves many pieces at once from memory to memory
// through shared memory, while the remaining threads of the block compute. Sixteen moving threads
// fill a link that needs all 132 blocks when threads load and store (E-0002). Source: PTX ISA,
// cp.async.bulk and mbarrier.
#pragma once
#include "gpu/abi/tile_args.hpp"
#include "gpu/device/memory.cuh"

#if PLAIT_SM_90
namespace plait::cuda {

/// Orders earlier loads and stores before later bulk copies.
__device__ inline void bulk_follows() { asm volatile("fence.proxy.async;" ::: "memory"); }

/// Waits until at most `pending` of this thread's bulk stores are in flight. kRead: all older
/// stores have been read out of shared memory; otherwise all older stores are visible to all that
/// acquire a later release of this thread.
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
    default:  // A ring has no more.
      asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
#undef PLAIT_WAIT
}

/// FIFO of pieces in flight through shared memory, owned by a single thread. Addresses and sizes
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
  /// Needs fewer than kStages held pieces.
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
  /// Waits until the oldest held piece is loaded. This waits for no peer, since the piece's data is
  /// already visible.
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
  /// Stores the oldest held piece.
  __device__ void store(char* dst, unsigned bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst),
                 "r"(shared_address(buffer_ + stored_ % kStages * kBulkBytes)), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    ++stored_;
  }
  /// Waits until nothing is in flight; held pieces are dropped.
  __device__ void end() {
    for (; held() != 0; ++stored_) await_load();
    wait_bulk_stores<false>(0);
    for (unsigned i = 0; i < kStages; ++i)  // Another ring may then use the memory.
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
