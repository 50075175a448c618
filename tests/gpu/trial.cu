// Kernels of test_gpu and bench_links only: reproducible data, a check independent of every
// engine's kernels, and the speed of links.
#include "gpu/abi/tile_args.hpp"
#include "gpu/device/bulk.cuh"

namespace plait::cuda {
namespace {

__device__ unsigned mixed(unsigned long long key) {  // Finalizer of splitmix64.
  key += 0x9e3779b97f4a7c15ull;
  key = (key ^ key >> 30) * 0xbf58476d1ce4e5b9ull;
  key = (key ^ key >> 27) * 0x94d049bb133111ebull;
  return static_cast<unsigned>(key >> 32);
}

/// Element `index` of rank `rank`: a value in [-1, 1) that uses all mantissa bits.
__device__ float value_of(unsigned seed, int rank, unsigned long long index) {
  const unsigned long long key = index * 64 + static_cast<unsigned>(rank);
  const unsigned bits = mixed(key + (static_cast<unsigned long long>(seed) << 48));
  return static_cast<float>(static_cast<int>(bits)) * (1.0f / 2147483648.0f);
}

__device__ unsigned bits_of(float value) { return __float_as_uint(value); }
__device__ unsigned bits_of(std::uint16_t value) { return value; }
__device__ unsigned bits_of(std::uint32_t value) { return value; }

/// The same as a number of the type; integers use all bits.
template <DataType kType>
__device__ typename DeviceNumber<kType>::Stored stored_value(unsigned seed, int rank,
                                                             unsigned long long index) {
  using N = DeviceNumber<kType>;
  if constexpr (N::kFloat)
    return N::down(static_cast<typename N::Wide>(value_of(seed, rank, index)));
  else
    return static_cast<typename N::Stored>(__float_as_uint(value_of(seed, rank, index)));
}

template <DataType kType>
__device__ void fill(typename DeviceNumber<kType>::Stored* data, unsigned long long count,
                     unsigned seed, int rank) {
  const unsigned long long stride = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
  for (unsigned long long i =
           static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < count; i += stride)
    data[i] = stored_value<kType>(seed, rank, i);
}

template <DataType kType>
__device__ void check(const typename DeviceNumber<kType>::Stored* data, unsigned long long count,
                      unsigned seed, int first_rank, int ranks, unsigned long long from,
                      unsigned long long* wrong) {
  using N = DeviceNumber<kType>;
  const unsigned long long stride = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
  for (unsigned long long i =
           static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < count; i += stride) {
    auto sum = N::up(stored_value<kType>(seed, first_rank, from + i));
    for (int rank = first_rank + 1; rank < first_rank + ranks; ++rank)
      sum = sum + N::up(stored_value<kType>(seed, rank, from + i));
    const auto expected = N::down(sum);
    if (bits_of(expected) != bits_of(data[i])) atomicAdd(wrong, 1ull);
  }
}

}  // namespace
}  // namespace plait::cuda

#define PLAIT_TRIAL(type)                                                                          \
  extern "C" __global__ void plait_fill_##type(                                                    \
      plait::cuda::DeviceNumber<plait::DataType::type>::Stored* data, unsigned long long count,    \
      unsigned seed, int rank) {                                                                   \
    plait::cuda::fill<plait::DataType::type>(data, count, seed, rank);                             \
  }                                                                                                \
  extern "C" __global__ void plait_check_##type(                                                   \
      const plait::cuda::DeviceNumber<plait::DataType::type>::Stored* data,                        \
      unsigned long long count, unsigned seed, int first_rank, int ranks, unsigned long long from, \
      unsigned long long* wrong) {                                                                 \
    plait::cuda::check<plait::DataType::type>(data, count, seed, first_rank, ranks, from, wrong);  \
  }
PLAIT_TRIAL(fp32)
PLAIT_TRIAL(bf16)
PLAIT_TRIAL(uint32)

// Measures links under kernel stores: block b moves chunks to (or from) peer b mod `peers`.
struct LinkArgs {
  ulonglong2* remote[plait::cuda::kMaxCudaRanks];
  ulonglong2* local;
  unsigned long long units;  // With each peer.
  int peers;
};
template <bool kPush>
__device__ void move_units(const LinkArgs& args) {
  const unsigned blocks = gridDim.x / args.peers;
  if (blockIdx.x / args.peers >= blocks) return;  // Too few blocks left for a block per peer.
  const unsigned long long stride = static_cast<unsigned long long>(blocks) * blockDim.x;
  ulonglong2* remote = args.remote[blockIdx.x % args.peers];
  ulonglong2* local = args.local + blockIdx.x % args.peers * args.units;
  ulonglong2* dst = kPush ? remote : local;
  const ulonglong2* src = kPush ? local : remote;
  unsigned long long i =
      static_cast<unsigned long long>(blockIdx.x / args.peers) * blockDim.x + threadIdx.x;
  for (; i + 3 * stride < args.units; i += 4 * stride) {
    ulonglong2 held[4];
#pragma unroll
    for (int u = 0; u < 4; ++u) held[u] = src[i + u * stride];
#pragma unroll
    for (int u = 0; u < 4; ++u) dst[i + u * stride] = held[u];
  }
  for (; i < args.units; i += stride) dst[i] = src[i];
}
extern "C" __global__ void plait_link_push(const __grid_constant__ LinkArgs args) {
  move_units<true>(args);
}
extern "C" __global__ void plait_link_pull(const __grid_constant__ LinkArgs args) {
  move_units<false>(args);
}
#if PLAIT_SM_90
/// A single thread per block moves pieces by bulk copies to (or from) each peer in turn, as a tiled
/// kernel pushes. GPUs run without synchronization.
template <bool kPush>
__device__ void move_in_bulk(const LinkArgs& args) {
  using namespace plait::cuda;
  extern __shared__ __align__(128) char room[];
  __shared__ unsigned long long barriers[kPushStages];
  if (threadIdx.x != 0) return;
  constexpr unsigned kAhead = 3, kUnits = kBulkBytes / 16;
  const auto peers = static_cast<unsigned>(args.peers);
  const unsigned long long all = args.units / kUnits;  // To each peer.
  if (blockIdx.x >= all) return;
  // Pieces of this block.
  const unsigned long long pieces = ((all - blockIdx.x - 1) / gridDim.x + 1) * peers;
  BulkRing<kPushStages> ring(room, barriers);
  const auto place = [&](unsigned long long i) {
    return (blockIdx.x + i / peers * gridDim.x) * kUnits;
  };
  const auto here = [&](unsigned long long i) {
    return reinterpret_cast<char*>(args.local + i % peers * args.units + place(i));
  };
  const auto there = [&](unsigned long long i) {
    return reinterpret_cast<char*>(args.remote[i % peers] + place(i));
  };
  for (unsigned long long put = 0, taken = 0; taken < pieces;) {
    if (put < pieces) {
      ring.load(kPush ? here(put) : there(put), kBulkBytes);
      ++put;
    }
    if (put < pieces && ring.held() <= kAhead) continue;
    ring.await_load();
    ring.store(kPush ? there(taken) : here(taken), kBulkBytes);
    ++taken;
  }
  ring.end();
}
extern "C" __global__ void plait_link_push_bulk(const __grid_constant__ LinkArgs args) {
  move_in_bulk<true>(args);
}
extern "C" __global__ void plait_link_pull_bulk(const __grid_constant__ LinkArgs args) {
  move_in_bulk<false>(args);
}
#endif  // PLAIT_SM_90

/// Barrier of GPUs, a warp per GPU. word[r]: address read by rank r for this rank's arrival. A wait
/// is given up after two seconds, and `late` counts it.
struct GateArgs {
  unsigned* word[plait::cuda::kMaxCudaRanks];
  unsigned* mine;  // By rank: number of arrivals.
  unsigned* late;
  unsigned count;
  int ranks;
};
extern "C" __global__ void plait_link_gate(const __grid_constant__ GateArgs args) {
  using namespace plait::cuda;
  constexpr unsigned long long kMostNs = 2'000'000'000;
  if (threadIdx.x >= static_cast<unsigned>(args.ranks)) return;
  store_flag(args.word[threadIdx.x], args.count);
  const unsigned long long began = now_ns();
  while (!reached(load_flag(args.mine + threadIdx.x), args.count))
    if (now_ns() - began > kMostNs) {
      atomicAdd(args.late, 1u);
      return;
    }
}

/// A step between copies of a rotation: waits for a flag, holds the stream for a time, and raises a
/// flag. Null = neither. A wait is given up after two seconds, and `late` counts it.
struct PortStep {
  const unsigned* awaited;
  unsigned* raised;
  unsigned* late;
  unsigned long long hold_ns;
  unsigned value;
};
extern "C" __global__ void plait_link_port(const __grid_constant__ PortStep step) {
  using namespace plait::cuda;
  constexpr unsigned long long kMostNs = 2'000'000'000;
  const unsigned long long began = now_ns();
  while (step.awaited != nullptr && !reached(load_flag(step.awaited), step.value))
    if (now_ns() - began > kMostNs) {
      atomicAdd(step.late, 1u);
      return;
    }
  const unsigned long long come = now_ns();
  while (now_ns() - come < step.hold_ns) {
  }
  if (step.raised == nullptr) return;
  __threadfence_system();
  store_flag(step.raised, step.value);
}
