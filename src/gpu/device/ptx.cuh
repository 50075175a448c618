// PTX instructions for loads, stores, flags and launches, as functions: all that fused kernels need
// beyond C++ and CUDA's functions. Host emulations replace this file.
// Source: PTX ISA, memory consistency model and griddepcontrol.
#pragma once
#include "gpu/device/numbers.cuh"

/// Not inlined, so that loops with a call stay small.
#define PLAIT_NOINLINE __noinline__
/// Shared memory of a block.
#define PLAIT_SHARED(Type, name) __shared__ Type name
/// Dynamic shared memory of the launch.
#define PLAIT_DYNAMIC_SHARED(name) extern __shared__ __align__(128) char name[]

/// Compute capability 9.0 introduced bulk copies and programmatic launches. Code for older GPUs has
/// no kernels with bulk copies, and the host requests no programmatic launch on older GPUs.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define PLAIT_SM_90 1
#else
#define PLAIT_SM_90 0
#endif

namespace plait::cuda {

/// Named barrier: waits until `threads` threads of the block have come to barrier `id`.
__device__ inline void sync_threads(unsigned id, unsigned threads) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/// The same; returns whether any thread passed true.
__device__ inline bool any_of_threads(unsigned id, unsigned threads, bool mine) {
  unsigned found;
  asm volatile(
      "{ .reg .pred p, q;\n"
      "setp.ne.u32 p, %3, 0;\n"
      "barrier.cta.red.or.pred q, %1, %2, p;\n"
      "selp.u32 %0, 1, 0, q; }"
      : "=r"(found)
      : "r"(id), "r"(threads), "r"(mine ? 1u : 0u)
      : "memory");
  return found != 0;
}

/// Declared in numbers.cuh.
__device__ inline unsigned pair_of_bf16(float first, float second) {
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}
__device__ inline unsigned pair_of_fp16(float first, float second) {
  unsigned pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}
__device__ inline float from_fp16(std::uint16_t code) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(code));
  return value;
}

/// Two floats as fp8e4m3, the first in the lower byte. Values above the range become 448, as in
/// PyTorch's and vLLM's quantisation.
__device__ inline unsigned pair_of_e4m3(float first, float second) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
  std::uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(second), "f"(first));
  return pair;
#else
  return saturated_e4m3(first) | saturated_e4m3(second) << 8;
#endif
}

/// The value of the lane whose number differs in `mask`. All threads of the warp call it.
__device__ inline float from_lane(float value, unsigned mask) {
  return __shfl_xor_sync(~0u, value, static_cast<int>(mask));
}

/// True if any thread of the warp passes true. All threads of the warp call it.
__device__ inline bool any_of_warp(bool mine) { return __any_sync(~0u, mine ? 1 : 0) != 0; }

#if PLAIT_SM_90
/// Thread-block clusters. A launch without clusters has clusters of one block.
__device__ inline unsigned block_of_cluster() {
  unsigned block;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(block));
  return block;
}
__device__ inline unsigned cluster_blocks() {
  unsigned blocks;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  return blocks;
}
__device__ inline unsigned cluster_of_grid() {
  unsigned cluster;
  asm("mov.u32 %0, %%clusterid.x;" : "=r"(cluster));
  return cluster;
}
__device__ inline unsigned grid_clusters() {
  unsigned clusters;
  asm("mov.u32 %0, %%nclusterid.x;" : "=r"(clusters));
  return clusters;
}
/// Barrier of all threads of a cluster, in two halves, which orders no memory but init_bytes(): a
/// release waits for all stores of the thread, also those to peers.
__device__ inline void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
__device__ inline void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

/// Counter of bytes that blocks of the cluster store in this block's shared memory; used again and
/// again. One thread calls init_bytes() before cluster_arrive(), and expect_bytes() in each use.
using ByteCounter = unsigned long long;
__device__ inline unsigned shared_address(const void* at) {
  return static_cast<unsigned>(__cvta_generic_to_shared(at));
}
__device__ inline void init_bytes(ByteCounter* counter) {
  asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(counter)) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void expect_bytes(ByteCounter* counter, unsigned bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(counter)),
      "r"(bytes)
      : "memory");
}
/// Stores to the place of `shared`, this block's shared memory, in block `block` of the cluster,
/// and counts the bytes there.
__device__ inline void store_in_block(float* shared, ByteCounter* counter, unsigned block,
                                      float value) {
  asm volatile(
      "{\n\t"
      ".reg .b32 at, counter;\n\t"
      "mapa.shared::cluster.u32 at, %0, %2;\n\t"
      "mapa.shared::cluster.u32 counter, %1, %2;\n\t"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [at], %3, [counter];\n\t"
      "}" ::"r"(shared_address(shared)),
      "r"(shared_address(counter)), "r"(block), "f"(value)
      : "memory");
}
/// Waits until all bytes of a use have come. use: uses of the counter before this one.
__device__ inline void await_bytes(ByteCounter* counter, unsigned use) {
  asm volatile(
      "{\n\t"
      ".reg .pred here;\n\t"
      "again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 here, [%0], %1;\n\t"
      "@!here bra again;\n\t"
      "}" ::"r"(shared_address(counter)),
      "r"(use & 1)
      : "memory");
}
#endif

/// Issues the loads so far before the loads behind: ptxas would move loads from an address that is
/// the same in all threads to the front, and their waits with them. Called by whole warps.
__device__ inline void issue_loads() { __syncwarp(); }

/// Programmatic dependent launch: wait for the previous kernel (no effect on ordinary launches),
/// and let the next kernel be placed meanwhile.
__device__ inline void wait_for_grid_before() {
#if PLAIT_SM_90
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ inline void let_next_grid_start() {
#if PLAIT_SM_90
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Access to buffers and slots, ordered by flags, LL packets or barriers.
template <class Type>
__device__ inline Type load_plain(const Type* at) {
  return *at;
}
template <class Type>
__device__ inline void store_plain(Type* at, Type value) {
  *at = value;
}

/// Prefetches into L2 without waiting.
__device__ inline void fetch_ahead(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

__device__ inline void store_pair(void* at, unsigned long long lo, unsigned long long hi) {
  asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(at), "l"(lo), "l"(hi)
               : "memory");
}
__device__ inline Unit load_pair(const void* at) {
  Unit unit;
  asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];"
               : "=l"(unit.lo), "=l"(unit.hi)
               : "l"(at)
               : "memory");
  return unit;
}
__device__ inline void store_relaxed_64(void* at, unsigned long long word) {
  asm volatile("st.relaxed.sys.global.b64 [%0], %1;" ::"l"(at), "l"(word) : "memory");
}
__device__ inline unsigned long long load_relaxed_64(const void* at) {
  unsigned long long word;
  asm volatile("ld.relaxed.sys.global.b64 %0, [%1];" : "=l"(word) : "l"(at) : "memory");
  return word;
}
/// Atomic add in this GPU's memory, without waiting for an answer.
__device__ inline void add_relaxed_64(void* at, unsigned long long value) {
  asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}
__device__ inline unsigned load_flag(const unsigned* at) {
  unsigned value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}
__device__ inline unsigned long long load_flag_64(const unsigned long long* at) {
  unsigned long long value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}
/// Relaxed load for polling: each acquire would empty the L1 cache of the whole SM. A single
/// load_flag() follows the last poll.
__device__ inline unsigned peek_flag(const unsigned* at) {
  unsigned value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}
__device__ inline void store_flag(unsigned* at, unsigned value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}
/// For several flags behind a single fence_before_flags().
__device__ inline void store_flag_relaxed(unsigned* at, unsigned value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}
__device__ inline void fence_before_flags() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
/// Ends the kernel with an error, and all work of this process on the GPU: no later copy or kernel
/// runs, and every wait for the stream reports the error. Under MPS all clients of the server on
/// this GPU fail too. A load from an odd address, rejected by every GPU, does this: on an H200 with
/// 32 hardware queues the driver had handled the load 0.1 s later, and a trap 3.2 s later (E-0218).
/// The trap follows in case the load returns.
__device__ inline void fail_stream() {
  asm volatile(
      "{\n\t"
      ".reg .u32 found;\n\t"
      ".reg .pred again;\n\t"
      "wait: ld.volatile.global.u32 found, [%0];\n\t"
      "setp.eq.u32 again, found, 1;\n\t"
      "@again bra wait;\n\t"
      "trap;\n\t"
      "}" ::"l"(1ull)
      : "memory");
}
/// Called in waits for threads of the same block: in a host emulation the awaited threads may need
/// the core.
__device__ inline void let_others_run() {}
__device__ inline unsigned long long now_ns() {
  unsigned long long ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

}  // namespace plait::cuda
