// The reduction's groups for AVX-512 (F, BW, DQ, VL): 16 floats a vector, 64 elements a group.
#pragma once
#include <immintrin.h>

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "cpu/numbers.hpp"
#include "cpu/reduce_loops.hpp"

#define PLAIT_AVX512 gnu::target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
#define PLAIT_VECTOR [[PLAIT_AVX512, gnu::always_inline]] inline

namespace plait::reduce_avx512 {

using reduce_loops::LoopJob;
inline constexpr std::uint64_t kVectorBytes = 64;
inline constexpr bool kRegistersForTwo = true;  // for two groups

template <DataType kType>
struct Codec;

#include "cpu/reduce_groups.hpp"

using Ints = __m512i;
using Floats = __m512;

PLAIT_VECTOR Ints load(const std::byte* from) { return _mm512_loadu_si512(from); }
PLAIT_VECTOR void store(std::byte* to, Ints value) { _mm512_storeu_si512(to, value); }
PLAIT_VECTOR Floats halves_up(const std::byte* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
PLAIT_VECTOR void halves_down(std::byte* to, Floats value) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
PLAIT_VECTOR Ints as_ints(Floats value) { return _mm512_castps_si512(value); }
PLAIT_VECTOR Floats as_floats(Ints value) { return _mm512_castsi512_ps(value); }
PLAIT_VECTOR Ints every8(char value) { return _mm512_set1_epi8(value); }
PLAIT_VECTOR Ints every16(short value) { return _mm512_set1_epi16(value); }
PLAIT_VECTOR Ints every32(int value) { return _mm512_set1_epi32(value); }
PLAIT_VECTOR Ints sum32(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
template <int kBits>
PLAIT_VECTOR Ints shifted_down(Ints value) {
  return _mm512_srli_epi32(value, kBits);
}
PLAIT_VECTOR Ints halved_words(Ints value) { return _mm512_srai_epi16(value, 1); }
PLAIT_VECTOR Ints low_bytes(Ints a, Ints b) { return _mm512_unpacklo_epi8(a, b); }
PLAIT_VECTOR Ints high_bytes(Ints a, Ints b) { return _mm512_unpackhi_epi8(a, b); }
PLAIT_VECTOR Ints low_words(Ints a, Ints b) { return _mm512_unpacklo_epi16(a, b); }
PLAIT_VECTOR Ints high_words(Ints a, Ints b) { return _mm512_unpackhi_epi16(a, b); }
PLAIT_VECTOR Ints packed_words(Ints a, Ints b) { return _mm512_packus_epi32(a, b); }
PLAIT_VECTOR Ints packed_shorts(Ints a, Ints b) { return _mm512_packs_epi32(a, b); }
PLAIT_VECTOR Ints packed_bytes(Ints a, Ints b) { return _mm512_packs_epi16(a, b); }
PLAIT_VECTOR Ints in_order(Ints codes) {
  const Ints order = _mm512_setr_epi32(0, 4, 1, 5, 8, 12, 9, 13, 2, 6, 3, 7, 10, 14, 11, 15);
  return _mm512_permutexvar_epi32(order, codes);
}
PLAIT_VECTOR Ints greater_bytes(Ints a, Ints b) { return _mm512_max_epu8(a, b); }
/// Returns `value` with 0 in bytes for which a == b.
PLAIT_VECTOR Ints bytes_unless_equal(Ints value, Ints a, Ints b) {
  return _mm512_maskz_mov_epi8(_mm512_cmpneq_epu8_mask(a, b), value);
}
/// Returns `value` with `other` in bytes for which a == b.
PLAIT_VECTOR Ints bytes_where_equal(Ints value, Ints a, Ints b, Ints other) {
  return _mm512_mask_mov_epi8(value, _mm512_cmpeq_epu8_mask(a, b), other);
}
PLAIT_VECTOR Floats instead_of_nans(Floats x, Floats other) {
  return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), other);
}
PLAIT_VECTOR Ints where_nan(Ints value, Floats x, Ints other) {
  return _mm512_mask_mov_epi32(value, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), other);
}
PLAIT_VECTOR bool any_nan(Floats a, Floats b, Floats c, Floats d) {
  return (_mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) | _mm512_cmp_ps_mask(c, d, _CMP_UNORD_Q)) != 0;
}

/// Rounds fp32 to a small float with least normal number 2^-14: by exponent (mod kEntries), the
/// float to add, and the number to subtract from the sum's bits to get the code.
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

PLAIT_VECTOR Ints looked_up(const std::array<std::uint32_t, 16>& table, Ints at) {
  return _mm512_permutexvar_epi32(at, _mm512_load_si512(table.data()));
}
PLAIT_VECTOR Ints looked_up(const std::array<std::uint32_t, 32>& table, Ints at) {
  return _mm512_permutex2var_epi32(_mm512_load_si512(table.data()), at,
                                   _mm512_load_si512(table.data() + 16));
}

// Returns the code of |x| for a small float with least normal number 2^-14. Values from `most` on,
// and NaN, give the code of `most`.
template <int kMantissa>
PLAIT_VECTOR Ints rounded_to(Floats x, float most) {
  constexpr std::uint32_t kEntries = kMantissa == 3 ? 16 : 32;
  static constexpr RoundingTable<kEntries> kTable = rounding_table<kEntries>(kMantissa);
  constexpr int kLeastAbsWithoutSign = 0b1010;
  const Floats size = _mm512_range_ps(x, _mm512_set1_ps(most), kLeastAbsWithoutSign);
  const Ints exponent = shifted_down<23>(_mm512_max_epu32(as_ints(size), every32(113 << 23)));
  const Floats sum = _mm512_add_ps(size, as_floats(looked_up(kTable.magic, exponent)));
  return _mm512_sub_epi32(as_ints(sum), looked_up(kTable.off, exponent));
}

#include "cpu/reduce_small_floats.hpp"

template <DataType kType>
[[PLAIT_AVX512]] void run(const LoopJob& job) {
  run_groups<kType>(job);
}

}  // namespace plait::reduce_avx512

#undef PLAIT_VECTOR
