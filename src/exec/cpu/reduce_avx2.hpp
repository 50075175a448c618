// The reduction's groups for AVX2 with F16C: 8 floats a vector, 32 elements a group of small ones.
// The ways are those of exec/cpu/reduce_avx512.hpp; where that looks constants up by exponent, here
// they are computed from it.
#pragma once
#include <immintrin.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "exec/cpu/reduce_loops.hpp"
#include "exec/numbers.hpp"

#define PLAIT_AVX2 gnu::target("avx2,f16c")
#define PLAIT_VECTOR [[PLAIT_AVX2, gnu::always_inline]] inline

namespace plait::reduce_avx2 {

using reduce_loops::Job;
inline constexpr std::uint64_t kVectorBytes = 32;
inline constexpr bool kRegistersForTwo = false;  // groups

template <DataType kType>
struct Codec;

#include "exec/cpu/reduce_groups.hpp"

/// Floats of 16 and 8 bits: 4 vectors of fp32.
template <int kStoredBytes>
struct SmallCodec {
  using Wide = float;
  static constexpr std::uint64_t kElements = 32;
  static constexpr std::uint64_t kBytes = kElements * kStoredBytes;
  static constexpr bool kMarks = false;
};

PLAIT_VECTOR __m256i load(const std::byte* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

PLAIT_VECTOR void store(std::byte* to, __m256i value) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value);
}

PLAIT_VECTOR __m256 canonical(__m256 x) {
  const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(kNan32)));
  return _mm256_blendv_ps(x, nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

template <>
struct Codec<DataType::fp16> : SmallCodec<2> {
  using Total = Parts<float>;

  template <bool kExact>
  PLAIT_VECTOR static void up(Total& total, const std::byte* src) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j)
      total.part[j] =
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(src + 16 * j)));
  }

  template <bool kExact>
  PLAIT_VECTOR static void down(std::byte* dst, Total& total) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j)
      _mm_storeu_si128(
          reinterpret_cast<__m128i*>(dst + 16 * j),
          _mm256_cvtps_ph(canonical(total.part[j]), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
};

template <>
struct Codec<DataType::bf16> : SmallCodec<2> {
  using Total = Parts<float>;

  template <bool kExact>
  PLAIT_VECTOR static void up(Total& total, const std::byte* src) {
    const __m256i zero = _mm256_setzero_si256();
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const __m256i codes = load(src + 32 * half);
      total.part[2 * half] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, codes));
      total.part[2 * half + 1] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, codes));
    }
  }

  PLAIT_VECTOR static __m256i rounded(__m256 x) {
    const __m256i bits = _mm256_castps_si256(canonical(x));
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    return _mm256_srli_epi32(up, 16);
  }

  template <bool kExact>
  PLAIT_VECTOR static void down(std::byte* dst, Total& total) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half)
      store(dst + 32 * half,
            _mm256_packus_epi32(rounded(total.part[2 * half]), rounded(total.part[2 * half + 1])));
  }
};

// Codes of the four parts as bytes (127 at most), in the order in which in-lane packing leaves
// them.
PLAIT_VECTOR __m256i packed(__m256i part0, __m256i part1, __m256i part2, __m256i part3) {
  return _mm256_packs_epi16(_mm256_packs_epi32(part0, part2), _mm256_packs_epi32(part1, part3));
}

// ... and from there back to the elements' order.
PLAIT_VECTOR __m256i in_order(__m256i codes) {
  return _mm256_permutevar8x32_epi32(codes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

// Bytes that are negative where the totals are: packing with saturation keeps signs.
PLAIT_VECTOR __m256i signs_of(const Parts<float>& total) {
  return packed(_mm256_castps_si256(total.part[0]), _mm256_castps_si256(total.part[1]),
                _mm256_castps_si256(total.part[2]), _mm256_castps_si256(total.part[3]));
}

// 32 words, the lower halves of each lane's bytes first -> floats. Through memory, as converting
// from memory is one micro-operation and from a register two.
PLAIT_VECTOR void words_to_floats(Parts<float>& total, __m256i low, __m256i high) {
  alignas(32) std::byte words[64];
  store(words, low);
  store(words + 32, high);
  asm("" : "+m"(words));
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j)
    total.part[j] =
        _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(words + 16 * j)));
}

// |x| -> code, for a small float whose least normal number is 2^-14. All from `most` up, and NaN,
// give the code of `most`.
template <int kMantissa>
PLAIT_VECTOR __m256i rounded_to(__m256 x, float most) {
  const __m256i size =
      _mm256_min_epu32(_mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff)),
                       _mm256_castps_si256(_mm256_set1_ps(most)));
  const __m256i least = _mm256_set1_epi32(113 << 23);
  const __m256i exponent =
      _mm256_max_epu32(_mm256_and_si256(size, _mm256_set1_epi32(0x7f800000)), least);
  const __m256i magic = _mm256_add_epi32(exponent, _mm256_set1_epi32((23 - kMantissa) << 23));
  const __m256i sum =
      _mm256_castps_si256(_mm256_add_ps(_mm256_castsi256_ps(size), _mm256_castsi256_ps(magic)));
  const __m256i base = _mm256_srli_epi32(_mm256_sub_epi32(exponent, least), 23 - kMantissa);
  return _mm256_add_epi32(_mm256_sub_epi32(sum, magic), base);
}

template <>
struct Codec<DataType::fp8e4m3> : SmallCodec<1> {
  static constexpr bool kMarks = true;
  struct Total : Parts<float> {
    __m256i sizes;  ///< the greatest code without sign so far: 0x7f is NaN, which comes up as 480
  };

  PLAIT_VECTOR static void mark(Total& total, const Total& next) {
    total.sizes = _mm256_max_epu8(total.sizes, next.sizes);
  }

  template <bool kExact>
  PLAIT_VECTOR static void up(Total& total, const std::byte* src) {
    const __m256i zero = _mm256_setzero_si256(), keep = _mm256_set1_epi16(-0x4001);
    const __m256i codes = load(src);
    total.sizes = _mm256_and_si256(codes, _mm256_set1_epi8(0x7f));
    const __m256i low = _mm256_srai_epi16(_mm256_unpacklo_epi8(zero, codes), 1);
    const __m256i high = _mm256_srai_epi16(_mm256_unpackhi_epi8(zero, codes), 1);
    words_to_floats(total, _mm256_and_si256(low, keep), _mm256_and_si256(high, keep));
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
    const __m256i nan = _mm256_set1_epi8(0x7f);
    const __m256i codes =
        packed(rounded_to<3>(total.part[0], 2.0f), rounded_to<3>(total.part[1], 2.0f),
               rounded_to<3>(total.part[2], 2.0f), rounded_to<3>(total.part[3], 2.0f));
    const __m256i signs = _mm256_and_si256(signs_of(total), _mm256_set1_epi8(-128));
    const __m256i all =
        _mm256_or_si256(codes, _mm256_andnot_si256(_mm256_cmpeq_epi8(codes, nan), signs));
    const __m256i was_nan = _mm256_cmpeq_epi8(total.sizes, nan);
    store(dst, _mm256_blendv_epi8(in_order(all), nan, was_nan));
  }
};

template <>
struct Codec<DataType::fp8e5m2> : SmallCodec<1> {
  using Total = Parts<float>;

  template <bool kExact>
  PLAIT_VECTOR static void up(Total& total, const std::byte* src) {
    const __m256i zero = _mm256_setzero_si256(), codes = load(src);
    words_to_floats(total, _mm256_unpacklo_epi8(zero, codes), _mm256_unpackhi_epi8(zero, codes));
  }

  template <bool kExact>
  PLAIT_VECTOR static void down(std::byte* dst, Total& total) {
    __m256i code[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) code[j] = rounded_to<2>(total.part[j], 65536.0f);
    const __m256 nan_a = _mm256_cmp_ps(total.part[0], total.part[1], _CMP_UNORD_Q);
    const __m256 nan_b = _mm256_cmp_ps(total.part[2], total.part[3], _CMP_UNORD_Q);
    if (_mm256_movemask_ps(_mm256_or_ps(nan_a, nan_b)) != 0) [[unlikely]] {
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {  // the canonical NaN has no sign
        const __m256 nan = _mm256_cmp_ps(total.part[j], total.part[j], _CMP_UNORD_Q);
        code[j] = _mm256_blendv_epi8(code[j], _mm256_set1_epi32(0x7e), _mm256_castps_si256(nan));
        total.part[j] = _mm256_andnot_ps(nan, total.part[j]);
      }
    }
    const __m256i signs = _mm256_and_si256(signs_of(total), _mm256_set1_epi8(-128));
    const __m256i codes = packed(code[0], code[1], code[2], code[3]);
    store(dst, in_order(_mm256_or_si256(codes, signs)));
  }
};

template <DataType kType>
[[PLAIT_AVX2]] void run(const Job& job) {
  run_groups<kType>(job);
}

}  // namespace plait::reduce_avx2

#undef PLAIT_VECTOR
