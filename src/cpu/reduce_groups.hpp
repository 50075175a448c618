// Reduces n sources, four vectors of totals at a time: all sources are read in parallel (each is a
// forward stream that the processor prefetches), and totals stay in registers. Included once for
// each instruction set, inside the set's namespace. The namespace must define before: PLAIT_VECTOR
// (attributes of every function: target, always_inline), kVectorBytes, kRegistersForTwo, and
// Codec<kType> for floats of 16 and 8 bits. Deliberately without an include guard.

inline constexpr std::uint64_t kAheadBytes = 2048;

template <class T>
struct LanesOf {
  typedef T Type __attribute__((vector_size(kVectorBytes)));
  typedef T Anywhere __attribute__((vector_size(kVectorBytes), aligned(1), may_alias));
};
template <class T>
using Lanes = typename LanesOf<T>::Type;

/// Totals of a group.
template <class T>
struct GroupTotals {
  Lanes<T> part[4];
};

/// Types with equal storage and accumulation: integers, fp32, fp64.
template <class N>
struct PlainCodec {
  using Wide = typename N::Wide;
  using Total = GroupTotals<Wide>;
  using Anywhere = typename LanesOf<Wide>::Anywhere;
  static constexpr std::uint64_t kBytes = 4 * kVectorBytes;
  static constexpr std::uint64_t kElements = kBytes / sizeof(Wide);
  static constexpr bool kMarks = false;

  template <bool kExact>
  PLAIT_VECTOR static void up(Total& total, const std::byte* src) {
#pragma GCC unroll 4
    for (std::size_t j = 0; j < 4; ++j)
      total.part[j] = *reinterpret_cast<const Anywhere*>(src + kVectorBytes * j);
  }

  template <bool kExact>
  PLAIT_VECTOR static void down(std::byte* dst, Total& total) {
    if constexpr (N::kFloat) {
      const Lanes<Wide> nan = Lanes<Wide>{} + N::down(std::numeric_limits<Wide>::quiet_NaN());
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j)
        total.part[j] = total.part[j] == total.part[j] ? total.part[j] : nan;
    }
#pragma GCC unroll 4
    for (std::size_t j = 0; j < 4; ++j)
      *reinterpret_cast<Anywhere*>(dst + kVectorBytes * j) = total.part[j];
  }
};

template <DataType kType>
struct CodecOf {
  using Type = PlainCodec<Number<kType>>;
};
template <>
struct CodecOf<DataType::bf16> {
  using Type = Codec<DataType::bf16>;
};
template <>
struct CodecOf<DataType::fp16> {
  using Type = Codec<DataType::fp16>;
};
template <>
struct CodecOf<DataType::fp8e4m3> {
  using Type = Codec<DataType::fp8e4m3>;
};
template <>
struct CodecOf<DataType::fp8e5m2> {
  using Type = Codec<DataType::fp8e5m2>;
};

// -0 lies below +0; any NaN gives NaN.
template <ReduceOp kOp, class T>
PLAIT_VECTOR Lanes<T> pick_float(Lanes<T> a, Lanes<T> b) {
  using Bits = Lanes<std::conditional_t<sizeof(T) == 8, std::int64_t, std::int32_t>>;
  const Bits negative = __builtin_bit_cast(Bits, b) < 0;
  const Bits zero = (a == b) & (kOp == ReduceOp::min ? negative : ~negative);
  const Lanes<T> picked = ((kOp == ReduceOp::min ? b < a : b > a) | zero) ? b : a;
  return ((a != a) | (b != b)) ? a + b : picked;
}

// Integers wrap: additions and multiplications are unsigned.
template <ReduceOp kOp, class T>
PLAIT_VECTOR Lanes<T> combine(Lanes<T> a, Lanes<T> b) {
  if constexpr (kOp == ReduceOp::min || kOp == ReduceOp::max) {
    if constexpr (std::is_floating_point_v<T>)
      return pick_float<kOp, T>(a, b);
    else if constexpr (kOp == ReduceOp::min)
      return b < a ? b : a;
    else
      return b > a ? b : a;
  } else if constexpr (std::is_floating_point_v<T>) {
    if constexpr (kOp == ReduceOp::prod) return a * b;
    return a + b;
  } else {
    using Unsigned = Lanes<std::make_unsigned_t<T>>;
    const Unsigned x = __builtin_bit_cast(Unsigned, a), y = __builtin_bit_cast(Unsigned, b);
    if constexpr (kOp == ReduceOp::prod) return __builtin_bit_cast(Lanes<T>, x * y);
    if constexpr (kOp == ReduceOp::bit_and) return __builtin_bit_cast(Lanes<T>, x & y);
    if constexpr (kOp == ReduceOp::bit_or) return __builtin_bit_cast(Lanes<T>, x | y);
    if constexpr (kOp == ReduceOp::bit_xor) return __builtin_bit_cast(Lanes<T>, x ^ y);
    return __builtin_bit_cast(Lanes<T>, x + y);
  }
}

template <class T>
PLAIT_VECTOR void divide(GroupTotals<T>& total, int divisor) {
  const auto by = static_cast<Divisor<T>>(divisor);
  if constexpr (std::is_floating_point_v<T>) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) total.part[j] /= by;
  } else {  // processors have no division of integer vectors
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      T each[kVectorBytes / sizeof(T)];
      const Lanes<T> sum = total.part[j];
      std::memcpy(each, &sum, kVectorBytes);
      for (T& one : each) one = static_cast<T>(one / by);
      std::memcpy(&total.part[j], each, kVectorBytes);
    }
  }
}

// Hardware prefetch does not reach far enough, does not cross pages, and ignores lines that are
// only written (E-0102). Addresses past the end are harmless, since nothing is read.
PLAIT_VECTOR void prefetch(const std::byte* at, std::uint64_t bytes) {
#pragma GCC unroll 4
  for (std::uint64_t line = 0; line < bytes; line += 64)
    __builtin_prefetch(at + kAheadBytes + line);
}

// Loads source s of the group at `skip`. kCut: a shorter group goes through a copy, so that no byte
// outside the regions is accessed.
template <class C, bool kExact, bool kScaled, bool kCut>
PLAIT_VECTOR void take(typename C::Total& values, std::byte* copy, const LoopJob& job, int s,
                       std::uint64_t skip, std::uint64_t bytes) {
  const std::byte* src = job.srcs[s] + skip;
  if constexpr (kCut) src = static_cast<const std::byte*>(std::memcpy(copy, src, bytes));
  if constexpr (!kCut) prefetch(src, C::kBytes);
  C::template up<kExact>(values, src);
  if constexpr (kScaled) {
    const auto scale = static_cast<typename C::Wide>(job.scales[s]);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) values.part[j] *= scale;
  }
}

// Returns the totals of the group at `skip`.
template <class C, ReduceOp kOp, bool kScaled, bool kCut>
PLAIT_VECTOR typename C::Total totals(const LoopJob& job, std::uint64_t skip, std::uint64_t bytes) {
  using Wide = typename C::Wide;
  constexpr bool kExact = kScaled || kOp == ReduceOp::prod;
  alignas(64) std::byte copy[kCut ? C::kBytes : 1] = {};
  typename C::Total total;
  take<C, kExact, kScaled, kCut>(total, copy, job, 0, skip, bytes);
  for (int s = 1; s < job.src_count; ++s) {
    typename C::Total next;
    take<C, kExact, kScaled, kCut>(next, copy, job, s, skip, bytes);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) total.part[j] = combine<kOp, Wide>(total.part[j], next.part[j]);
    if constexpr (C::kMarks) C::mark(total, next);
  }
  if (kOp == ReduceOp::sum && job.divisor != 1) divide<Wide>(total, job.divisor);
  return total;
}

// Rounds totals to the type.
template <class C, bool kExact>
PLAIT_VECTOR void round_to_type(typename C::Total& total) {
  alignas(64) std::byte stored[C::kBytes];
  C::template down<kExact>(stored, total);
  C::template up<kExact>(total, stored);
}

// Returns the totals of the group at `skip`, summed in a tree: sources in pairs, and pairs of sums
// as soon as both are complete.
template <class C, ReduceOp kOp, bool kScaled, bool kCut>
PLAIT_VECTOR typename C::Total tree_totals(const LoopJob& job, std::uint64_t skip,
                                           std::uint64_t bytes) {
  using Wide = typename C::Wide;
  constexpr bool kExact = kScaled || kOp == ReduceOp::prod;
  alignas(64) std::byte copy[kCut ? C::kBytes : 1] = {};
  typename C::Total held[reduce_loops::kMostLevels + 1];
  int count = 0;
  for (int s = 0; s < job.src_count; s += 2) {
    typename C::Total& total = held[count];
    typename C::Total next;
    take<C, kExact, kScaled, kCut>(total, copy, job, s, skip, bytes);
    take<C, kExact, kScaled, kCut>(next, copy, job, s + 1, skip, bytes);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) total.part[j] = combine<kOp, Wide>(total.part[j], next.part[j]);
    if constexpr (C::kMarks) C::mark(total, next);
    for (int bit = 2; (s & bit) != 0; bit *= 2, --count) {
      if (job.rounds) {
        round_to_type<C, kExact>(held[count - 1]);
        round_to_type<C, kExact>(held[count]);
      }
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j)
        held[count - 1].part[j] = combine<kOp, Wide>(held[count - 1].part[j], held[count].part[j]);
      if constexpr (C::kMarks) C::mark(held[count - 1], held[count]);
    }
    ++count;
  }
  if (kOp == ReduceOp::sum && job.divisor != 1) divide<Wide>(held[0], job.divisor);
  return held[0];
}

// Prefetches cache lines of dst too, unless that would evict lines just fetched: arrays often begin
// at the same offset of a page, and then share sets of the 8-way first-level cache.
template <class C, bool kExact>
PLAIT_VECTOR void put(const LoopJob& job, std::uint64_t skip, typename C::Total& total) {
  if (job.src_count < 8) prefetch(job.dst + skip, C::kBytes);
  C::template down<kExact>(job.dst + skip, total);
}

// Copies vector by vector: a copied struct would go through memory.
template <class C>
PLAIT_VECTOR void replace(typename C::Total& held, const typename C::Total& next) {
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) held.part[j] = next.part[j];
  if constexpr (C::kMarks) held.sizes = next.sizes;
}

// Reduces the whole groups; returns the offset of the end. With registers for two groups, a group
// is written after the next is read, so that the processor, looking 100 to 200 instructions ahead,
// widens one group while narrowing the other. dst may still be a source, since a group is read
// before it is written.
template <class C, ReduceOp kOp, bool kScaled>
PLAIT_VECTOR std::uint64_t whole_groups(const LoopJob& job, std::uint64_t bytes) {
  constexpr bool kExact = kScaled || kOp == ReduceOp::prod;
  std::uint64_t at = 0;
  if constexpr (kRegistersForTwo) {
    if (bytes < C::kBytes) return at;
    typename C::Total held = totals<C, kOp, kScaled, false>(job, at, C::kBytes);
    for (at = C::kBytes; at + C::kBytes <= bytes; at += C::kBytes) {
      typename C::Total next = totals<C, kOp, kScaled, false>(job, at, C::kBytes);
      put<C, kExact>(job, at - C::kBytes, held);
      replace<C>(held, next);
    }
    put<C, kExact>(job, at - C::kBytes, held);
  } else {
    for (; at + C::kBytes <= bytes; at += C::kBytes) {
      typename C::Total total = totals<C, kOp, kScaled, false>(job, at, C::kBytes);
      put<C, kExact>(job, at, total);
    }
  }
  return at;
}

template <class N, class C, ReduceOp kOp, bool kScaled>
PLAIT_VECTOR void tree_groups(const LoopJob& job) {
  constexpr bool kExact = kScaled || kOp == ReduceOp::prod;
  const LoopJob own = job;  // a local copy, which stores to dst cannot alias
  const std::uint64_t bytes = own.count * sizeof(typename N::Stored);
  std::uint64_t at = 0;
  for (; at + C::kBytes <= bytes; at += C::kBytes) {
    typename C::Total total = tree_totals<C, kOp, kScaled, false>(own, at, C::kBytes);
    put<C, kExact>(own, at, total);
  }
  if (at == bytes) return;
  typename C::Total last = tree_totals<C, kOp, kScaled, true>(own, at, bytes - at);
  alignas(64) std::byte copy[C::kBytes];
  C::template down<kExact>(copy, last);
  std::memcpy(own.dst + at, copy, bytes - at);
}

template <class N, class C, ReduceOp kOp, bool kScaled>
PLAIT_VECTOR void groups(const LoopJob& job) {
  if constexpr (N::kFloat && (kOp == ReduceOp::sum || kOp == ReduceOp::prod))
    if (job.in_pairs) return tree_groups<N, C, kOp, kScaled>(job);
  const LoopJob own = job;  // a local copy, which stores to dst cannot alias
  const std::uint64_t bytes = own.count * sizeof(typename N::Stored);
  const std::uint64_t at = whole_groups<C, kOp, kScaled>(own, bytes);
  if (at == bytes) return;
  typename C::Total last = totals<C, kOp, kScaled, true>(own, at, bytes - at);
  alignas(64) std::byte copy[C::kBytes];
  C::template down<kScaled || kOp == ReduceOp::prod>(copy, last);
  std::memcpy(own.dst + at, copy, bytes - at);
}

template <DataType kType>
PLAIT_VECTOR void run_groups(const LoopJob& job) {
  using N = Number<kType>;
  using C = typename CodecOf<kType>::Type;
  constexpr bool kSigned = std::is_signed_v<typename N::Wide> && !N::kFloat;  // see loops_type()
  constexpr bool kBits = !N::kFloat && !kSigned;
  switch (job.op) {
    case ReduceOp::prod:
      if constexpr (!kSigned) groups<N, C, ReduceOp::prod, false>(job);
      return;
    case ReduceOp::min: return groups<N, C, ReduceOp::min, false>(job);
    case ReduceOp::max: return groups<N, C, ReduceOp::max, false>(job);
    case ReduceOp::bit_and:
      if constexpr (kBits) groups<N, C, ReduceOp::bit_and, false>(job);
      return;
    case ReduceOp::bit_or:
      if constexpr (kBits) groups<N, C, ReduceOp::bit_or, false>(job);
      return;
    case ReduceOp::bit_xor:
      if constexpr (kBits) groups<N, C, ReduceOp::bit_xor, false>(job);
      return;
    case ReduceOp::premul_sum:
      if constexpr (N::kFloat)
        if (job.scales != nullptr) return groups<N, C, ReduceOp::sum, true>(job);
      return groups<N, C, ReduceOp::sum, false>(job);
    case ReduceOp::sum:
    case ReduceOp::avg: return groups<N, C, ReduceOp::sum, false>(job);
  }
}
