// Reduces n sources of the same type with loops that compilers vectorise: loops run over elements
// only, so each element's order of additions is the written one. Sums of few sources stay in
// registers; sums of more use a block of accumulators that stays in the nearest caches. This
// version serves any processor; AVX2 and AVX-512 use reduce_groups.hpp.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cpu/numbers.hpp"

#define PLAIT_INLINE [[gnu::always_inline]] inline

namespace plait::reduce_loops {

// Elements of a block. Shorter runs of 8 fp16 sources (1 KiB each) were ten times slower; the cause
// is unknown, and later measurements do not point to the prefetchers.
template <class Stored>
inline constexpr std::uint64_t kBlock = sizeof(Stored) >= 4 ? 4096 : 8192;

struct LoopJob {
  ReduceOp op = ReduceOp::sum;
  std::byte* dst = nullptr;
  const std::byte* const* srcs = nullptr;
  int src_count = 0;
  std::uint64_t count = 0;
  int divisor = 1;                 ///< of avg; 1 = none
  const double* scales = nullptr;  ///< premul_sum; null = none
  bool in_pairs = false;           ///< floats: a power of two of sources, more than 2, in a tree
  bool rounds = false;             ///< each sum of two is rounded to the type
};

inline constexpr int kMostLevels = 6;  ///< of a tree: up to 64 sources

template <class T>
PLAIT_INLINE T load(const std::byte* from, std::uint64_t index) {
  T value;
  std::memcpy(&value, from + index * sizeof(T), sizeof(T));  // any alignment
  return value;
}

template <class T>
PLAIT_INLINE void store(std::byte* to, std::uint64_t index, T value) {
  std::memcpy(to + index * sizeof(T), &value, sizeof(T));
}

template <class Wide>
PLAIT_INLINE bool is_negative(Wide x) {
  if constexpr (sizeof(Wide) == 8)
    return (std::bit_cast<std::uint64_t>(x) >> 63) != 0;
  else
    return (std::bit_cast<std::uint32_t>(x) >> 31) != 0;
}

// a + b propagates NaNs, and Number::down makes them canonical. `|` and `&` avoid branches.
template <ReduceOp kOp, class Wide>
PLAIT_INLINE Wide combine_floats(Wide a, Wide b) {
  if constexpr (kOp == ReduceOp::prod) return a * b;
  if constexpr (kOp == ReduceOp::min || kOp == ReduceOp::max) {
    const bool better = kOp == ReduceOp::min ? b < a : b > a;
    const bool zero = (a == b) & (is_negative(b) == (kOp == ReduceOp::min));
    const Wide picked = better | zero ? b : a;
    return (a != a) | (b != b) ? a + b : picked;
  }
  return a + b;
}

template <ReduceOp kOp, class Wide>
PLAIT_INLINE Wide combine(Wide a, Wide b) {
  if constexpr (std::is_floating_point_v<Wide>) {
    return combine_floats<kOp>(a, b);
  } else {
    using Unsigned = std::conditional_t<sizeof(Wide) == 8, std::uint64_t, std::uint32_t>;
    const Unsigned x = static_cast<Unsigned>(a), y = static_cast<Unsigned>(b);
    if constexpr (kOp == ReduceOp::prod) return static_cast<Wide>(x * y);
    if constexpr (kOp == ReduceOp::min) return b < a ? b : a;
    if constexpr (kOp == ReduceOp::max) return b > a ? b : a;
    if constexpr (kOp == ReduceOp::bit_and) return static_cast<Wide>(x & y);
    if constexpr (kOp == ReduceOp::bit_or) return static_cast<Wide>(x | y);
    if constexpr (kOp == ReduceOp::bit_xor) return static_cast<Wide>(x ^ y);
    return static_cast<Wide>(x + y);
  }
}

// dst may be a source: element i is read before it is written, so no iteration depends on another.
template <class N, ReduceOp kOp, int kSources>
PLAIT_INLINE void whole(const LoopJob& job) {
  using Stored = typename N::Stored;
  std::byte* dst = job.dst;
  const std::byte* s0 = job.srcs[0];
  const std::byte* s1 = job.srcs[1];
  const std::byte* s2 = job.srcs[kSources > 2 ? 2 : 0];
  const std::byte* s3 = job.srcs[kSources > 3 ? 3 : 0];
  const std::byte* s4 = job.srcs[kSources > 4 ? 4 : 0];
  const std::byte* s5 = job.srcs[kSources > 5 ? 5 : 0];
  const std::byte* s6 = job.srcs[kSources > 6 ? 6 : 0];
  const std::byte* s7 = job.srcs[kSources > 7 ? 7 : 0];
  const std::uint64_t count = job.count;
#pragma GCC ivdep
  for (std::uint64_t i = 0; i < count; ++i) {
    auto total = combine<kOp>(N::up(load<Stored>(s0, i)), N::up(load<Stored>(s1, i)));
    if constexpr (kSources > 2) total = combine<kOp>(total, N::up(load<Stored>(s2, i)));
    if constexpr (kSources > 3) total = combine<kOp>(total, N::up(load<Stored>(s3, i)));
    if constexpr (kSources > 4) total = combine<kOp>(total, N::up(load<Stored>(s4, i)));
    if constexpr (kSources > 5) total = combine<kOp>(total, N::up(load<Stored>(s5, i)));
    if constexpr (kSources > 6) total = combine<kOp>(total, N::up(load<Stored>(s6, i)));
    if constexpr (kSources > 7) total = combine<kOp>(total, N::up(load<Stored>(s7, i)));
    store<Stored>(dst, i, N::down(total));
  }
}

template <class N, bool kScaled>
PLAIT_INLINE void start(typename N::Wide* total, const std::byte* src, std::uint64_t count,
                        typename N::Wide scale) {
  for (std::uint64_t i = 0; i < count; ++i) {
    total[i] = N::up(load<typename N::Stored>(src, i));
    if constexpr (kScaled) total[i] *= scale;
  }
}

template <class N, ReduceOp kOp, bool kScaled>
PLAIT_INLINE void more(typename N::Wide* total, const std::byte* src, std::uint64_t count,
                       typename N::Wide scale) {
  for (std::uint64_t i = 0; i < count; ++i) {
    typename N::Wide next = N::up(load<typename N::Stored>(src, i));
    if constexpr (kScaled) next *= scale;
    total[i] = combine<kOp>(total[i], next);
  }
}

template <class N>
PLAIT_INLINE void finish(std::byte* dst, const typename N::Wide* total, std::uint64_t count,
                         int divisor) {
  using Wide = typename N::Wide;
  if (divisor == 1) {
    for (std::uint64_t i = 0; i < count; ++i) store(dst, i, N::down(total[i]));
    return;
  }
  const auto by = static_cast<Divisor<Wide>>(divisor);
  for (std::uint64_t i = 0; i < count; ++i)
    store(dst, i, N::down(static_cast<Wide>(total[i] / by)));
}

template <class N, ReduceOp kOp, bool kScaled>
PLAIT_INLINE void blocks(const LoopJob& job) {
  using Wide = typename N::Wide;
  constexpr std::uint64_t kElements = kBlock<typename N::Stored>;
  alignas(64) Wide total[kElements];
  for (std::uint64_t at = 0; at < job.count; at += kElements) {
    const std::uint64_t count = std::min(job.count - at, kElements);
    const std::uint64_t skip = at * sizeof(typename N::Stored);
    const auto scale = [&](int s) { return static_cast<Wide>(kScaled ? job.scales[s] : 1.0); };
    start<N, kScaled>(total, job.srcs[0] + skip, count, scale(0));
    for (int s = 1; s < job.src_count; ++s)
      more<N, kOp, kScaled>(total, job.srcs[s] + skip, count, scale(s));
    finish<N>(job.dst + skip, total, count, job.divisor);
  }
}

template <class N, ReduceOp kOp>
PLAIT_INLINE void join(typename N::Wide* total, const typename N::Wide* next, std::uint64_t count,
                       bool rounds) {
  for (std::uint64_t i = 0; i < count; ++i)
    total[i] = rounds ? combine<kOp>(N::up(N::down(total[i])), N::up(N::down(next[i])))
                      : combine<kOp>(total[i], next[i]);
}

// Sums sources in pairs, and pairs of sums as soon as both are complete: level l holds a sum of 2^l
// sources.
template <class N, ReduceOp kOp, bool kScaled>
PLAIT_INLINE void tree_blocks(const LoopJob& job) {
  using Wide = typename N::Wide;
  constexpr std::uint64_t kElements = 512;
  alignas(64) Wide level[kMostLevels + 1][kElements];
  for (std::uint64_t at = 0; at < job.count; at += kElements) {
    const std::uint64_t count = std::min(job.count - at, kElements);
    const std::uint64_t skip = at * sizeof(typename N::Stored);
    const auto scale = [&](int s) { return static_cast<Wide>(kScaled ? job.scales[s] : 1.0); };
    int held = 0;  // sums that are complete, the last in level[held - 1]
    for (int s = 0; s < job.src_count; s += 2) {
      start<N, kScaled>(level[held], job.srcs[s] + skip, count, scale(s));
      more<N, kOp, kScaled>(level[held], job.srcs[s + 1] + skip, count, scale(s + 1));
      for (int bit = 2; (s & bit) != 0; bit *= 2, --held)
        join<N, kOp>(level[held - 1], level[held], count, job.rounds);
      ++held;
    }
    finish<N>(job.dst + skip, level[0], count, job.divisor);
  }
}

template <class N, ReduceOp kOp>
PLAIT_INLINE void run(const LoopJob& job) {
  if constexpr (N::kFloat && kOp == ReduceOp::sum)
    if (job.in_pairs && job.scales != nullptr) return tree_blocks<N, kOp, true>(job);
  if constexpr (N::kFloat && (kOp == ReduceOp::sum || kOp == ReduceOp::prod))
    if (job.in_pairs) return tree_blocks<N, kOp, false>(job);
  if constexpr (N::kFloat && kOp == ReduceOp::sum)
    if (job.scales != nullptr) return blocks<N, kOp, true>(job);
  if constexpr (kOp == ReduceOp::sum) {
    if (job.src_count == 2 && job.divisor == 1) return whole<N, kOp, 2>(job);
    if (job.src_count == 3 && job.divisor == 1) return whole<N, kOp, 3>(job);
    if (job.src_count == 4 && job.divisor == 1) return whole<N, kOp, 4>(job);
    if (job.src_count == 6 && job.divisor == 1) return whole<N, kOp, 6>(job);
    if (job.src_count == 8 && job.divisor == 1) return whole<N, kOp, 8>(job);
  }
  blocks<N, kOp, false>(job);
}

template <DataType kType>
PLAIT_INLINE void run_type(const LoopJob& job) {
  using N = Number<kType>;
  constexpr bool kSigned = std::is_signed_v<typename N::Wide> && !N::kFloat;  // see loops_type()
  constexpr bool kBits = !N::kFloat && !kSigned;
  switch (job.op) {
    case ReduceOp::prod:
      if constexpr (!kSigned) return run<N, ReduceOp::prod>(job);
      return;
    case ReduceOp::min: return run<N, ReduceOp::min>(job);
    case ReduceOp::max: return run<N, ReduceOp::max>(job);
    case ReduceOp::bit_and:
      if constexpr (kBits) return run<N, ReduceOp::bit_and>(job);
      return;
    case ReduceOp::bit_or:
      if constexpr (kBits) return run<N, ReduceOp::bit_or>(job);
      return;
    case ReduceOp::bit_xor:
      if constexpr (kBits) return run<N, ReduceOp::bit_xor>(job);
      return;
    case ReduceOp::sum:
    case ReduceOp::avg:
    case ReduceOp::premul_sum: return run<N, ReduceOp::sum>(job);
  }
}

}  // namespace plait::reduce_loops
