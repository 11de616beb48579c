// 16 floats or integers in two registers: AVX2 with FMA and F16C, with or without AVX-VNNI.
#pragma once
#include <immintrin.h>
#include <cstdint>
#include <cstring>

#include "target.h"

namespace {
namespace vec {

struct F { __m256 low, high; };   // 16 floats
struct I { __m256i low, high; };  // 16 int32
struct B { __m256i low, high; };  // 64 bytes: 16 channels of 4 bytes, or of 2 bfloat16

constexpr int kRows = 2;      // rows of an int8 tile that the registers hold, two halves each
constexpr int kBf16Rows = 2;  // the same without scales

QD_INLINE F set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
QD_INLINE F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
QD_INLINE F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
QD_INLINE void store(float* p, F x) {
  _mm256_storeu_ps(p, x.low);
  _mm256_storeu_ps(p + 8, x.high);
}
// All bits of the first n of 16 lanes.
alignas(64) const int32_t kFirst[32] = {-1, -1, -1, -1, -1, -1, -1, -1,
                                        -1, -1, -1, -1, -1, -1, -1, -1};
QD_INLINE I first(int n) {
  const int32_t* p = kFirst + 16 - n;
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
// The first n of 16 (n in 0..16), the rest zero; nothing beyond is read.
QD_INLINE F load_first(const float* p, int n) {
  const I mask = first(n);
  return {_mm256_maskload_ps(p, mask.low), _mm256_maskload_ps(p + 8, mask.high)};
}
QD_INLINE void store_first(float* p, F x, int n) {
  const I mask = first(n);
  _mm256_maskstore_ps(p, mask.low, x.low);
  _mm256_maskstore_ps(p + 8, mask.high, x.high);
}
QD_INLINE F add(F a, F b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
QD_INLINE F sub(F a, F b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
QD_INLINE F mul(F a, F b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
QD_INLINE F div(F a, F b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
QD_INLINE F fma(F a, F b, F c) {  // a * b + c
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
QD_INLINE F max(F a, F b) {
  return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
QD_INLINE F min(F a, F b) {
  return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}
QD_INLINE F abs(F a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high)};
}
QD_INLINE F round(F a) {  // to the nearest, even at a tie
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.low, kNearest), _mm256_round_ps(a.high, kNearest)};
}
// 2^n for an integral n in [-126, 127].
QD_INLINE __m256 power_of_two(__m256i n) {
  const __m256i biased = _mm256_add_epi32(n, _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
}
QD_INLINE __m256 scale_half(__m256 a, __m256 n) {
  // in two steps, because the exponent of one factor goes from -126 to 127 only
  n = _mm256_max_ps(_mm256_set1_ps(-252.0f), _mm256_min_ps(_mm256_set1_ps(254.0f), n));
  const __m256i all = _mm256_cvtps_epi32(n), part = _mm256_srai_epi32(all, 1);
  return _mm256_mul_ps(_mm256_mul_ps(a, power_of_two(part)),
                       power_of_two(_mm256_sub_epi32(all, part)));
}
QD_INLINE F scale_by_power_of_two(F a, F n) {  // n integral
  return {scale_half(a.low, n.low), scale_half(a.high, n.high)};
}
QD_INLINE __m128 fold(__m256 a, __m256 b, bool is_sum) {
  const __m256 c = is_sum ? _mm256_add_ps(a, b) : _mm256_max_ps(a, b);
  const __m128 low = _mm256_castps256_ps128(c), high = _mm256_extractf128_ps(c, 1);
  return is_sum ? _mm_add_ps(low, high) : _mm_max_ps(low, high);
}
QD_INLINE float sum(F a) {  // always in the same order
  __m128 x = fold(a.low, a.high, true);
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
QD_INLINE float largest(F a) {
  __m128 x = fold(a.low, a.high, false);
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}
// The first n lanes of `a`, the others of `b`.
QD_INLINE F first_of(F a, F b, int n) {
  const I mask = first(n);
  return {_mm256_blendv_ps(b.low, a.low, _mm256_castsi256_ps(mask.low)),
          _mm256_blendv_ps(b.high, a.high, _mm256_castsi256_ps(mask.high))};
}
// Bit i: lane i of `a` is at least that of `b`; no where one is no number.
QD_INLINE uint32_t at_least(F a, F b) {
  const int low = _mm256_movemask_ps(_mm256_cmp_ps(a.low, b.low, _CMP_GE_OQ));
  const int high = _mm256_movemask_ps(_mm256_cmp_ps(a.high, b.high, _CMP_GE_OQ));
  return static_cast<uint32_t>(low | high << 8);
}

QD_INLINE I izero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
QD_INLINE I iset(int x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
QD_INLINE I iadd(I a, I b) {
  return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}
QD_INLINE int isum(I a) {
  const __m256i c = _mm256_add_epi32(a.low, a.high);
  __m128i x = _mm_add_epi32(_mm256_castsi256_si128(c), _mm256_extracti128_si256(c, 1));
  x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
}
QD_INLINE F to_float(I a) { return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)}; }
QD_INLINE I to_int(F a) {  // nearest, even at a tie
  return {_mm256_cvtps_epi32(a.low), _mm256_cvtps_epi32(a.high)};
}
// 16 int32 as 16 bits each, saturated; in the order of the lanes.
QD_INLINE __m256i narrow(I a) {
  return _mm256_permute4x64_epi64(_mm256_packs_epi32(a.low, a.high), 0xd8);
}
// 16 int32 as int8, saturated, in 16 bytes.
QD_INLINE void store_bytes(int8_t* p, I a) {
  const __m256i words = narrow(a);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(p),
      _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

QD_INLINE B load_bytes(const void* p) {
  const __m256i* at = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1)};
}
QD_INLINE B low_nibbles(B a) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(a.low, mask), _mm256_and_si256(a.high, mask)};
}
QD_INLINE B high_nibbles(B a) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(_mm256_srli_epi16(a.low, 4), mask),
          _mm256_and_si256(_mm256_srli_epi16(a.high, 4), mask)};
}
// Four neighbouring bytes (or two bfloat16) at p, for all 16 channels.
QD_INLINE B spread(const void* p) {
  int x;
  memcpy(&x, p, 4);
  const __m256i all = _mm256_set1_epi32(x);
  return {all, all};
}
#ifdef QD_HAS_AVX_VNNI
QD_INLINE __m256i dot_half(__m256i c, __m256i u, __m256i s) {
  asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(c) : "x"(u), "x"(s));
  return c;
}
QD_INLINE __m256i dot_half_nibbles(__m256i c, __m256i u, __m256i s) { return dot_half(c, u, s); }
#else
// In 16 bits, bytes 0 and 2 of each channel and then 1 and 3: vpmaddubsw would saturate.
QD_INLINE __m256i dot_half(__m256i c, __m256i u, __m256i s) {
  const __m256i even_u = _mm256_and_si256(u, _mm256_set1_epi16(255));
  const __m256i even_s = _mm256_srai_epi16(_mm256_slli_epi16(s, 8), 8);
  const __m256i odd_u = _mm256_srli_epi16(u, 8), odd_s = _mm256_srai_epi16(s, 8);
  c = _mm256_add_epi32(c, _mm256_madd_epi16(even_u, even_s));
  return _mm256_add_epi32(c, _mm256_madd_epi16(odd_u, odd_s));
}
// Two products of at most 15 * 128 do not saturate.
QD_INLINE __m256i dot_half_nibbles(__m256i c, __m256i u, __m256i s) {
  const __m256i pairs = _mm256_maddubs_epi16(u, s);
  return _mm256_add_epi32(c, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
#endif
// c += the products of 4 unsigned and 4 signed bytes of each channel.
QD_INLINE I dot_bytes(I c, B u, B s) {
  return {dot_half(c.low, u.low, s.low), dot_half(c.high, u.high, s.high)};
}
// The same with unsigned bytes that are at most 15.
QD_INLINE I dot_nibbles(I c, B u, B s) {
  return {dot_half_nibbles(c.low, u.low, s.low), dot_half_nibbles(c.high, u.high, s.high)};
}
QD_INLINE __m256 dot_half_bf16(__m256 c, __m256i a, __m256i b) {
  const __m256i odd = _mm256_set1_epi32((int)0xffff0000);
  c = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)),
                      _mm256_castsi256_ps(_mm256_slli_epi32(b, 16)), c);
  return _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_and_si256(a, odd)),
                         _mm256_castsi256_ps(_mm256_and_si256(b, odd)), c);
}
// c += the products of 2 and 2 bfloat16 of each channel.
QD_INLINE F dot_bf16(F c, B a, B b) {
  return {dot_half_bf16(c.low, a.low, b.low), dot_half_bf16(c.high, a.high, b.high)};
}

QD_INLINE F load_half(const void* p) {  // 16 fp16
  const __m128i* at = static_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(at)), _mm256_cvtph_ps(_mm_loadu_si128(at + 1))};
}
QD_INLINE __m256 load_half_bf16(const uint16_t* p) {
  const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
}
QD_INLINE F load_bf16(const uint16_t* p) { return {load_half_bf16(p), load_half_bf16(p + 8)}; }
// 8 floats as bfloat16 in 32 bits each, rounded to the nearest, even at a tie.
QD_INLINE __m256i round_to_bf16(__m256 a) {
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(up, quiet, is_nan), 16);
}
QD_INLINE void store_bf16(uint16_t* p, F a) {
  const __m256i words = _mm256_packus_epi32(round_to_bf16(a.low), round_to_bf16(a.high));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(words, 0xd8));
}
QD_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
QD_INLINE void prefetch_to_l2(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1);
}

}  // namespace vec
}  // namespace
