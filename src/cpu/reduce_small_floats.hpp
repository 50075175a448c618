// Converts floats of 16 and 8 bits to a group's four vectors of fp32 and back, for vectors of any
// length. fp8 is widened through fp16: e5m2 is fp16's upper byte; e4m3 shifted into place is fp16
// of a value 2^-8 times as large, so sums, min and max keep that scale and only exact mode
// multiplies. To narrow, a float of the right size is added, leaving the rounded mantissa in the
// sum's low bits. No operand is subnormal then: subnormals can cost a hundred cycles each. Included
// once for each instruction set, inside the set's namespace, after reduce_groups.hpp; the namespace
// must define Ints, Floats, and names of its instructions before. Deliberately without an include
// guard.

inline constexpr std::uint64_t kLanes = kVectorBytes / 4;

template <int kStoredBytes>
struct SmallCodec {
  using Wide = float;
  static constexpr std::uint64_t kElements = 4 * kLanes;
  static constexpr std::uint64_t kBytes = kElements * kStoredBytes;
  static constexpr bool kMarks = false;
};

PLAIT_VECTOR Floats canonical(Floats x) {
  return instead_of_nans(x, as_floats(every32(static_cast<int>(kNan32))));
}

template <>
struct Codec<DataType::fp16> : SmallCodec<2> {
  using Total = GroupTotals<float>;

  template <bool kExact>
  PLAIT_VECTOR static void up(Total& total, const std::byte* src) {
#pragma GCC unroll 4
    for (std::size_t j = 0; j < 4; ++j) total.part[j] = halves_up(src + 2 * kLanes * j);
  }

  template <bool kExact>
  PLAIT_VECTOR static void down(std::byte* dst, Total& total) {
#pragma GCC unroll 4
    for (std::size_t j = 0; j < 4; ++j) halves_down(dst + 2 * kLanes * j, canonical(total.part[j]));
  }
};

template <>
struct Codec<DataType::bf16> : SmallCodec<2> {
  using Total = GroupTotals<float>;

  template <bool kExact>
  PLAIT_VECTOR static void up(Total& total, const std::byte* src) {
#pragma GCC unroll 2
    for (std::size_t half = 0; half < 2; ++half) {
      const Ints codes = load(src + kVectorBytes * half);
      total.part[2 * half] = as_floats(low_words(Ints{}, codes));
      total.part[2 * half + 1] = as_floats(high_words(Ints{}, codes));
    }
  }

  PLAIT_VECTOR static Ints rounded(Floats x) {
    const Ints bits = as_ints(canonical(x));
    const Ints odd = shifted_down<16>(bits) & every32(1);
    return shifted_down<16>(sum32(sum32(bits, every32(0x7fff)), odd));
  }

  template <bool kExact>
  PLAIT_VECTOR static void down(std::byte* dst, Total& total) {
#pragma GCC unroll 2
    for (std::size_t half = 0; half < 2; ++half)
      store(dst + kVectorBytes * half,
            packed_words(rounded(total.part[2 * half]), rounded(total.part[2 * half + 1])));
  }
};

// Packs codes of the four parts to bytes (127 at most), in the order of in-lane packing; in_order()
// restores the elements' order.
PLAIT_VECTOR Ints packed(Ints part0, Ints part1, Ints part2, Ints part3) {
  return packed_bytes(packed_shorts(part0, part2), packed_shorts(part1, part3));
}

// Returns the sign bits of negative totals as bytes: packing with saturation keeps signs.
PLAIT_VECTOR Ints signs_of(const GroupTotals<float>& total) {
  return packed(as_ints(total.part[0]), as_ints(total.part[1]), as_ints(total.part[2]),
                as_ints(total.part[3])) &
         every8(-128);
}

// Converts 16-bit words, the lower halves of each lane's bytes first, to floats. The words go
// through memory: a conversion from memory is one micro-operation, from a register two.
PLAIT_VECTOR void words_to_floats(GroupTotals<float>& total, Ints low, Ints high) {
  alignas(kVectorBytes) std::byte words[2 * kVectorBytes];
  store(words, low);
  store(words + kVectorBytes, high);
  asm("" : "+m"(words));
#pragma GCC unroll 4
  for (std::size_t j = 0; j < 4; ++j) total.part[j] = halves_up(words + 2 * kLanes * j);
}

template <>
struct Codec<DataType::fp8e4m3> : SmallCodec<1> {
  static constexpr bool kMarks = true;
  struct Total : GroupTotals<float> {
    Ints sizes;  ///< greatest code so far, without sign: 0x7f is NaN, which widens to 480
  };

  PLAIT_VECTOR static void mark(Total& total, const Total& next) {
    total.sizes = greater_bytes(total.sizes, next.sizes);
  }

  template <bool kExact>
  PLAIT_VECTOR static void up(Total& total, const std::byte* src) {
    const Ints codes = load(src), keep = every16(-0x4001);
    total.sizes = codes & every8(0x7f);
    words_to_floats(total, halved_words(low_bytes(Ints{}, codes)) & keep,
                    halved_words(high_bytes(Ints{}, codes)) & keep);
    if constexpr (kExact) {
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) total.part[j] *= 256.0f;
    }
  }

  template <bool kExact>
  PLAIT_VECTOR static void down(std::byte* dst, Total& total) {
    if constexpr (kExact) {
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) total.part[j] *= 1.0f / 256;
    }
    const Ints nan = every8(0x7f);  // values from 2 on (at scale 2^-8), and NaN, give 128
    const Ints codes =
        packed(rounded_to<3>(total.part[0], 2.0f), rounded_to<3>(total.part[1], 2.0f),
               rounded_to<3>(total.part[2], 2.0f), rounded_to<3>(total.part[3], 2.0f));
    const Ints all = codes | bytes_unless_equal(signs_of(total), codes, nan);
    store(dst, bytes_where_equal(in_order(all), total.sizes, nan, nan));
  }
};

template <>
struct Codec<DataType::fp8e5m2> : SmallCodec<1> {
  using Total = GroupTotals<float>;

  template <bool kExact>
  PLAIT_VECTOR static void up(Total& total, const std::byte* src) {
    const Ints codes = load(src);
    words_to_floats(total, low_bytes(Ints{}, codes), high_bytes(Ints{}, codes));
  }

  // Values from 2^16 on, and NaN, give the code of infinity.
  template <bool kExact>
  PLAIT_VECTOR static void down(std::byte* dst, Total& total) {
    Ints code[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) code[j] = rounded_to<2>(total.part[j], 65536.0f);
    if (any_nan(total.part[0], total.part[1], total.part[2], total.part[3])) [[unlikely]] {
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {  // the canonical NaN has no sign
        code[j] = where_nan(code[j], total.part[j], every32(0x7e));
        total.part[j] = instead_of_nans(total.part[j], Floats{});
      }
    }
    store(dst, in_order(packed(code[0], code[1], code[2], code[3]) | signs_of(total)));
  }
};
