// 16 floats or integers in one register: AVX-512 with VNNI, with or without BF16.
//
// Every vec_*.h offers the same names, so that the kernels are written once.
#pragma once
#if defined(__GNUC__) && !defined(__clang__)
// g++ 12 says so of its own headers
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#include <cstring>

#include "target.h"

namespace {
namespace vec {

using F = __m512;   // 16 floats
using I = __m512i;  // 16 int32
using B = __m512i;  // 64 bytes: 16 channels of 4 bytes, or of 2 bfloat16

constexpr int kRows = 6;       // rows of an int8 tile that the registers hold, two halves each
constexpr int kBf16Rows = 12;  // the same without scales

QD_INLINE F zero() { return _mm512_setzero_ps(); }
QD_INLINE F set(float x) { return _mm512_set1_ps(x); }
QD_INLINE F load(const float* p) { return _mm512_loadu_ps(p); }
QD_INLINE __mmask16 first(int n) { return (__mmask16)((1u << n) - 1); }
// The first n of 16 (n in 0..16), the rest zero; nothing beyond is read.
QD_INLINE F load_first(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
QD_INLINE void store(float* p, F x) { _mm512_storeu_ps(p, x); }
QD_INLINE void store_first(float* p, F x, int n) { _mm512_mask_storeu_ps(p, first(n), x); }
QD_INLINE F add(F a, F b) { return _mm512_add_ps(a, b); }
QD_INLINE F sub(F a, F b) { return _mm512_sub_ps(a, b); }
QD_INLINE F mul(F a, F b) { return _mm512_mul_ps(a, b); }
QD_INLINE F div(F a, F b) { return _mm512_div_ps(a, b); }
QD_INLINE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }  // a * b + c
QD_INLINE F max(F a, F b) { return _mm512_max_ps(a, b); }
QD_INLINE F min(F a, F b) { return _mm512_min_ps(a, b); }
QD_INLINE F abs(F a) { return _mm512_abs_ps(a); }
QD_INLINE F round(F a) { return _mm512_roundscale_ps(a, 8); }  // to the nearest, even at a tie
QD_INLINE F scale_by_power_of_two(F a, F n) { return _mm512_scalef_ps(a, n); }  // n integral
QD_INLINE float sum(F a) { return _mm512_reduce_add_ps(a); }  // always in the same order
QD_INLINE float largest(F a) { return _mm512_reduce_max_ps(a); }
// The first n lanes of `a`, the others of `b`.
QD_INLINE F first_of(F a, F b, int n) { return _mm512_mask_mov_ps(b, first(n), a); }
// Bit i: lane i of `a` is at least that of `b`; no where one is no number.
QD_INLINE uint32_t at_least(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }

QD_INLINE I izero() { return _mm512_setzero_si512(); }
QD_INLINE I iset(int x) { return _mm512_set1_epi32(x); }
QD_INLINE I iadd(I a, I b) { return _mm512_add_epi32(a, b); }
QD_INLINE int isum(I a) { return _mm512_reduce_add_epi32(a); }
QD_INLINE F to_float(I a) { return _mm512_cvtepi32_ps(a); }
QD_INLINE I to_int(F a) { return _mm512_cvtps_epi32(a); }  // nearest, even at a tie
// 16 int32 as int8, saturated, in 16 bytes.
QD_INLINE void store_bytes(int8_t* p, I a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(a));
}

QD_INLINE B load_bytes(const void* p) { return _mm512_loadu_si512(p); }
QD_INLINE B low_nibbles(B a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
QD_INLINE B high_nibbles(B a) {
  return _mm512_and_si512(_mm512_srli_epi16(a, 4), _mm512_set1_epi8(15));
}
// Four neighbouring bytes (or two bfloat16) at p, for all 16 channels.
QD_INLINE B spread(const void* p) {
  int x;
  memcpy(&x, p, 4);
  return _mm512_set1_epi32(x);
}
// c += the products of 4 unsigned and 4 signed bytes of each channel. In assembly, because g++ 12
// copies and spills the accumulators of the intrinsic in loops (measured: 2.4 times as slow).
QD_INLINE I dot_bytes(I c, B unsigned_bytes, B signed_bytes) {
  asm("vpdpbusd %2, %1, %0" : "+v"(c) : "v"(unsigned_bytes), "v"(signed_bytes));
  return c;
}
// The same with unsigned bytes that are at most 15.
QD_INLINE I dot_nibbles(I c, B a, B b) { return dot_bytes(c, a, b); }
// c += the products of 2 and 2 bfloat16 of each channel.
QD_INLINE F dot_bf16(F c, B a, B b) {
#ifdef QD_HAS_BF16
  asm("vdpbf16ps %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
  return c;
#else
  const B high = _mm512_set1_epi32((int)0xffff0000);
  c = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(a, 16)),
                      _mm512_castsi512_ps(_mm512_slli_epi32(b, 16)), c);
  return _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(a, high)),
                         _mm512_castsi512_ps(_mm512_and_si512(b, high)), c);
#endif
}

QD_INLINE F load_half(const void* p) {  // 16 fp16
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
QD_INLINE F load_bf16(const uint16_t* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16));
}
// Rounded to the nearest, even at a tie.
QD_INLINE void store_bf16(uint16_t* p, F a) {
#ifdef QD_HAS_BF16
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh(a));
#else
  const __m512i bits = _mm512_castps_si512(a);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  _mm256_storeu_si256(
      reinterpret_cast<__m256i*>(p),
      _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(up, is_nan, quiet), 16)));
#endif
}
QD_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
QD_INLINE void prefetch_to_l2(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1);
}

}  // namespace vec
}  // namespace
