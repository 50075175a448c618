// The reduction's groups for AVX2 with F16C: 8 floats a vector, 32 elements a group of small
// floats.
#pragma once
#include <immintrin.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "cpu/numbers.hpp"
#include "cpu/reduce_loops.hpp"

#define PLAIT_AVX2 gnu::target("avx2,f16c")
#define PLAIT_VECTOR [[PLAIT_AVX2, gnu::always_inline]] inline

namespace plait::reduce_avx2 {

using reduce_loops::LoopJob;
inline constexpr std::uint64_t kVectorBytes = 32;
inline constexpr bool kRegistersForTwo = false;  // for two groups

template <DataType kType>
struct Codec;

#include "cpu/reduce_groups.hpp"

using Ints = __m256i;
using Floats = __m256;

PLAIT_VECTOR Ints load(const std::byte* from) {
  return _mm256_loadu_si256(reinterpret_cast<const Ints*>(from));
}
PLAIT_VECTOR void store(std::byte* to, Ints value) {
  _mm256_storeu_si256(reinterpret_cast<Ints*>(to), value);
}
PLAIT_VECTOR Floats halves_up(const std::byte* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
PLAIT_VECTOR void halves_down(std::byte* to, Floats value) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
PLAIT_VECTOR Ints as_ints(Floats value) { return _mm256_castps_si256(value); }
PLAIT_VECTOR Floats as_floats(Ints value) { return _mm256_castsi256_ps(value); }
PLAIT_VECTOR Ints every8(char value) { return _mm256_set1_epi8(value); }
PLAIT_VECTOR Ints every16(short value) { return _mm256_set1_epi16(value); }
PLAIT_VECTOR Ints every32(int value) { return _mm256_set1_epi32(value); }
PLAIT_VECTOR Ints sum32(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
template <int kBits>
PLAIT_VECTOR Ints shifted_down(Ints value) {
  return _mm256_srli_epi32(value, kBits);
}
PLAIT_VECTOR Ints halved_words(Ints value) { return _mm256_srai_epi16(value, 1); }
PLAIT_VECTOR Ints low_bytes(Ints a, Ints b) { return _mm256_unpacklo_epi8(a, b); }
PLAIT_VECTOR Ints high_bytes(Ints a, Ints b) { return _mm256_unpackhi_epi8(a, b); }
PLAIT_VECTOR Ints low_words(Ints a, Ints b) { return _mm256_unpacklo_epi16(a, b); }
PLAIT_VECTOR Ints high_words(Ints a, Ints b) { return _mm256_unpackhi_epi16(a, b); }
PLAIT_VECTOR Ints packed_words(Ints a, Ints b) { return _mm256_packus_epi32(a, b); }
PLAIT_VECTOR Ints packed_shorts(Ints a, Ints b) { return _mm256_packs_epi32(a, b); }
PLAIT_VECTOR Ints packed_bytes(Ints a, Ints b) { return _mm256_packs_epi16(a, b); }
PLAIT_VECTOR Ints in_order(Ints codes) {
  return _mm256_permutevar8x32_epi32(codes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
PLAIT_VECTOR Ints greater_bytes(Ints a, Ints b) { return _mm256_max_epu8(a, b); }
/// Returns `value` with 0 in bytes for which a == b.
PLAIT_VECTOR Ints bytes_unless_equal(Ints value, Ints a, Ints b) {
  return _mm256_andnot_si256(_mm256_cmpeq_epi8(a, b), value);
}
/// Returns `value` with `other` in bytes for which a == b.
PLAIT_VECTOR Ints bytes_where_equal(Ints value, Ints a, Ints b, Ints other) {
  return _mm256_blendv_epi8(value, other, _mm256_cmpeq_epi8(a, b));
}
PLAIT_VECTOR Floats instead_of_nans(Floats x, Floats other) {
  return _mm256_blendv_ps(x, other, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}
PLAIT_VECTOR Ints where_nan(Ints value, Floats x, Ints other) {
  return _mm256_blendv_epi8(value, other, as_ints(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
}
PLAIT_VECTOR bool any_nan(Floats a, Floats b, Floats c, Floats d) {
  return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q),
                                         _mm256_cmp_ps(c, d, _CMP_UNORD_Q))) != 0;
}

// Returns the code of |x| for a small float with least normal number 2^-14. Values from `most` on,
// and NaN, give the code of `most`. The float to add is computed from the exponent.
template <int kMantissa>
PLAIT_VECTOR Ints rounded_to(Floats x, float most) {
  const Ints size =
      _mm256_min_epu32(as_ints(x) & every32(0x7fffffff), as_ints(_mm256_set1_ps(most)));
  const Ints least = every32(113 << 23);
  const Ints exponent = _mm256_max_epu32(size & every32(0x7f800000), least);
  const Ints magic = sum32(exponent, every32((23 - kMantissa) << 23));
  const Ints sum = as_ints(_mm256_add_ps(as_floats(size), as_floats(magic)));
  const Ints base = shifted_down<23 - kMantissa>(_mm256_sub_epi32(exponent, least));
  return sum32(_mm256_sub_epi32(sum, magic), base);
}

#include "cpu/reduce_small_floats.hpp"

template <DataType kType>
[[PLAIT_AVX2]] void run(const LoopJob& job) {
  run_groups<kType>(job);
}

}  // namespace plait::reduce_avx2

#undef PLAIT_VECTOR
