// The reduction's groups for AVX-512 (F, BW, DQ, VL): 16 floats a vector, 64 elements a group.
// fp8 comes up through fp16: e5m2 is fp16's upper byte; e4m3 shifted into place is fp16 of a value
// 2^-8 as large, so sums, min and max stay at that scale and only exact mode multiplies. Down: a
// float of the right size is added, which leaves the rounded mantissa in the sum's low bits.
// No operand is subnormal there: those can cost a hundred cycles each.
#pragma once
#include <immintrin.h>

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "exec/cpu/reduce_loops.hpp"
#include "exec/numbers.hpp"

#define PLAIT_AVX512 gnu::target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
#define PLAIT_VECTOR [[PLAIT_AVX512, gnu::always_inline]] inline

namespace plait::reduce_avx512 {

using reduce_loops::Job;
inline constexpr std::uint64_t kVectorBytes = 64;
inline constexpr bool kRegistersForTwo = true;  // groups

template <DataType kType>
struct Codec;

#include "exec/cpu/reduce_groups.hpp"

/// Floats of 16 and 8 bits: 4 vectors of fp32.
template <int kStoredBytes>
struct SmallCodec {
  using Wide = float;
  static constexpr std::uint64_t kElements = 64;
  static constexpr std::uint64_t kBytes = kElements * kStoredBytes;
  static constexpr bool kMarks = false;
};

PLAIT_VECTOR __m512 canonical(__m512 x) {
  const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(kNan32)));
  return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), nan);
}

template <>
struct Codec<DataType::fp16> : SmallCodec<2> {
  using Total = Parts<float>;

  template <bool kExact>
  PLAIT_VECTOR static void up(Total& total, const std::byte* src) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j)
      total.part[j] =
          _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + 32 * j)));
  }

  template <bool kExact>
  PLAIT_VECTOR static void down(std::byte* dst, Total& total) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j)
      _mm256_storeu_si256(
          reinterpret_cast<__m256i*>(dst + 32 * j),
          _mm512_cvtps_ph(canonical(total.part[j]), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
};

template <>
struct Codec<DataType::bf16> : SmallCodec<2> {
  using Total = Parts<float>;

  template <bool kExact>
  PLAIT_VECTOR static void up(Total& total, const std::byte* src) {
    const __m512i zero = _mm512_setzero_si512();
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const __m512i codes = _mm512_loadu_si512(src + 64 * half);
      total.part[2 * half] = _mm512_castsi512_ps(_mm512_unpacklo_epi16(zero, codes));
      total.part[2 * half + 1] = _mm512_castsi512_ps(_mm512_unpackhi_epi16(zero, codes));
    }
  }

  PLAIT_VECTOR static __m512i rounded(__m512 x) {
    const __m512i bits = _mm512_castps_si512(canonical(x));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    return _mm512_srli_epi32(up, 16);
  }

  template <bool kExact>
  PLAIT_VECTOR static void down(std::byte* dst, Total& total) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half)
      _mm512_storeu_si512(dst + 64 * half, _mm512_packus_epi32(rounded(total.part[2 * half]),
                                                               rounded(total.part[2 * half + 1])));
  }
};

/// What rounds fp32 to a small float whose least normal number is 2^-14: by exponent (mod
/// kEntries), the float to add, and what to take off the sum's bits to be left with the code.
template <std::uint32_t kEntries>
struct RoundingTable {
  alignas(64) std::array<std::uint32_t, kEntries> magic{};
  alignas(64) std::array<std::uint32_t, kEntries> off{};
};

template <std::uint32_t kEntries>
constexpr RoundingTable<kEntries> rounding_table(std::uint32_t mantissa_bits) {
  RoundingTable<kEntries> table;
  for (std::uint32_t exponent = 113; exponent < 113 + kEntries; ++exponent) {
    const std::uint32_t magic = (exponent + 23 - mantissa_bits) << 23;
    table.magic[exponent % kEntries] = magic;
    table.off[exponent % kEntries] = magic - ((exponent - 113) << mantissa_bits);
  }
  return table;
}

// Codes of the four parts as bytes (127 at most), in the order in which in-lane packing leaves
// them.
PLAIT_VECTOR __m512i packed(__m512i part0, __m512i part1, __m512i part2, __m512i part3) {
  return _mm512_packs_epi16(_mm512_packs_epi32(part0, part2), _mm512_packs_epi32(part1, part3));
}

// ... and from there back to the elements' order.
PLAIT_VECTOR __m512i in_order(__m512i codes) {
  const __m512i order = _mm512_setr_epi32(0, 4, 1, 5, 8, 12, 9, 13, 2, 6, 3, 7, 10, 14, 11, 15);
  return _mm512_permutexvar_epi32(order, codes);
}

// Bytes that are negative where the totals are: packing with saturation keeps signs.
PLAIT_VECTOR __m512i signs_of(const Parts<float>& total) {
  return packed(_mm512_castps_si512(total.part[0]), _mm512_castps_si512(total.part[1]),
                _mm512_castps_si512(total.part[2]), _mm512_castps_si512(total.part[3]));
}

// 64 words, the lower halves of each lane's bytes first -> floats. Through memory, as converting
// from memory is one micro-operation and from a register two.
PLAIT_VECTOR void words_to_floats(Parts<float>& total, __m512i low, __m512i high) {
  alignas(64) std::uint16_t words[64];
  _mm512_store_si512(words, low);
  _mm512_store_si512(words + 32, high);
  asm("" : "+m"(words));
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j)
    total.part[j] =
        _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(words + 16 * j)));
}

template <>
struct Codec<DataType::fp8e4m3> : SmallCodec<1> {
  static constexpr bool kMarks = true;
  struct Total : Parts<float> {
    __m512i sizes;  ///< the greatest code without sign so far: 0x7f is NaN, which comes up as 480
  };

  PLAIT_VECTOR static void mark(Total& total, const Total& next) {
    total.sizes = _mm512_max_epu8(total.sizes, next.sizes);
  }

  template <bool kExact>
  PLAIT_VECTOR static void up(Total& total, const std::byte* src) {
    const __m512i zero = _mm512_setzero_si512(), keep = _mm512_set1_epi16(-0x4001);
    const __m512i codes = _mm512_loadu_si512(src);
    total.sizes = _mm512_and_si512(codes, _mm512_set1_epi8(0x7f));
    const __m512i low = _mm512_srai_epi16(_mm512_unpacklo_epi8(zero, codes), 1);
    const __m512i high = _mm512_srai_epi16(_mm512_unpackhi_epi8(zero, codes), 1);
    words_to_floats(total, _mm512_and_si512(low, keep), _mm512_and_si512(high, keep));
    if constexpr (kExact) {
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) total.part[j] *= 256.0f;
    }
  }

  // x is 2^-8 of the value. All from 2 up, and NaN, give the code 128.
  PLAIT_VECTOR static __m512i rounded(__m512 x) {
    static constexpr RoundingTable<16> kTable = rounding_table<16>(3);
    constexpr int kLeastAbsWithoutSign = 0b1010;
    const __m512 size = _mm512_range_ps(x, _mm512_set1_ps(2.0f), kLeastAbsWithoutSign);
    const __m512i least = _mm512_set1_epi32(113 << 23);
    const __m512i normal = _mm512_max_epu32(_mm512_castps_si512(size), least);
    const __m512i exponent = _mm512_srli_epi32(normal, 23);
    const __m512i magic =
        _mm512_permutexvar_epi32(exponent, _mm512_load_si512(kTable.magic.data()));
    const __m512i off = _mm512_permutexvar_epi32(exponent, _mm512_load_si512(kTable.off.data()));
    const __m512 sum = _mm512_add_ps(size, _mm512_castsi512_ps(magic));
    return _mm512_sub_epi32(_mm512_castps_si512(sum), off);
  }

  template <bool kExact>
  PLAIT_VECTOR static void down(std::byte* dst, Total& total) {
    if constexpr (kExact) {
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) total.part[j] *= 1.0f / 256;
    }
    const __m512i nan = _mm512_set1_epi8(0x7f), sign = _mm512_set1_epi8(-128);
    const __m512i codes = packed(rounded(total.part[0]), rounded(total.part[1]),
                                 rounded(total.part[2]), rounded(total.part[3]));
    const __mmask64 number = _mm512_cmpneq_epu8_mask(codes, nan);
    const __m512i signs = _mm512_and_si512(_mm512_maskz_mov_epi8(number, signs_of(total)), sign);
    const __m512i all = _mm512_or_si512(codes, signs);
    const __mmask64 was_nan = _mm512_cmpeq_epu8_mask(total.sizes, nan);
    _mm512_storeu_si512(dst, _mm512_mask_mov_epi8(in_order(all), was_nan, nan));
  }
};

template <>
struct Codec<DataType::fp8e5m2> : SmallCodec<1> {
  using Total = Parts<float>;

  template <bool kExact>
  PLAIT_VECTOR static void up(Total& total, const std::byte* src) {
    const __m512i zero = _mm512_setzero_si512();
    const __m512i codes = _mm512_loadu_si512(src);
    words_to_floats(total, _mm512_unpacklo_epi8(zero, codes), _mm512_unpackhi_epi8(zero, codes));
  }

  // All from 2^16 up gives the code of infinity; so does NaN.
  PLAIT_VECTOR static __m512i rounded(__m512 x) {
    static constexpr RoundingTable<32> kTable = rounding_table<32>(2);
    constexpr int kLeastAbsWithoutSign = 0b1010;
    const __m512 size = _mm512_range_ps(x, _mm512_set1_ps(65536.0f), kLeastAbsWithoutSign);
    const __m512i least = _mm512_set1_epi32(113 << 23);
    const __m512i normal = _mm512_max_epu32(_mm512_castps_si512(size), least);
    const __m512i exponent = _mm512_srli_epi32(normal, 23);
    const std::uint32_t *magics = kTable.magic.data(), *offs = kTable.off.data();
    const __m512i magic = _mm512_permutex2var_epi32(_mm512_load_si512(magics), exponent,
                                                    _mm512_load_si512(magics + 16));
    const __m512i off =
        _mm512_permutex2var_epi32(_mm512_load_si512(offs), exponent, _mm512_load_si512(offs + 16));
    const __m512 sum = _mm512_add_ps(size, _mm512_castsi512_ps(magic));
    return _mm512_sub_epi32(_mm512_castps_si512(sum), off);
  }

  template <bool kExact>
  PLAIT_VECTOR static void down(std::byte* dst, Total& total) {
    __m512i code[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) code[j] = rounded(total.part[j]);
    const __mmask16 nan_a = _mm512_cmp_ps_mask(total.part[0], total.part[1], _CMP_UNORD_Q);
    const __mmask16 nan_b = _mm512_cmp_ps_mask(total.part[2], total.part[3], _CMP_UNORD_Q);
    if ((nan_a | nan_b) != 0) [[unlikely]] {  // the canonical NaN has no sign
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const __mmask16 nan = _mm512_cmp_ps_mask(total.part[j], total.part[j], _CMP_UNORD_Q);
        code[j] = _mm512_mask_mov_epi32(code[j], nan, _mm512_set1_epi32(0x7e));
        total.part[j] = _mm512_mask_mov_ps(total.part[j], nan, _mm512_setzero_ps());
      }
    }
    const __m512i codes = packed(code[0], code[1], code[2], code[3]);
    const __m512i signs = _mm512_and_si512(signs_of(total), _mm512_set1_epi8(-128));
    _mm512_storeu_si512(dst, in_order(_mm512_or_si512(codes, signs)));
  }
};

template <DataType kType>
[[PLAIT_AVX512]] void run(const Job& job) {
  run_groups<kType>(job);
}

}  // namespace plait::reduce_avx512

#undef PLAIT_VECTOR
