// 16 floats or integers as plain arrays: for any compiler and any processor.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "target.h"

namespace {
namespace vec {

struct F { float at[16]; };
struct I { int32_t at[16]; };
struct B { uint8_t at[64]; };

constexpr int kRows = 2;
constexpr int kBf16Rows = 2;

#define QD_EACH for (int i = 0; i < 16; ++i)

QD_INLINE F set(float x) { F r; QD_EACH r.at[i] = x; return r; }
QD_INLINE F zero() { return set(0.0f); }
QD_INLINE F load(const float* p) { F r; memcpy(r.at, p, 64); return r; }
QD_INLINE F load_first(const float* p, int n) {
  F r = zero();
  memcpy(r.at, p, 4 * static_cast<size_t>(n));
  return r;
}
QD_INLINE void store(float* p, F x) { memcpy(p, x.at, 64); }
QD_INLINE void store_first(float* p, F x, int n) { memcpy(p, x.at, 4 * static_cast<size_t>(n)); }
QD_INLINE F add(F a, F b) { QD_EACH a.at[i] += b.at[i]; return a; }
QD_INLINE F sub(F a, F b) { QD_EACH a.at[i] -= b.at[i]; return a; }
QD_INLINE F mul(F a, F b) { QD_EACH a.at[i] *= b.at[i]; return a; }
QD_INLINE F div(F a, F b) { QD_EACH a.at[i] /= b.at[i]; return a; }
QD_INLINE F fma(F a, F b, F c) { QD_EACH c.at[i] += a.at[i] * b.at[i]; return c; }
// As the instructions do: the second where one is not a number.
QD_INLINE F max(F a, F b) { QD_EACH a.at[i] = a.at[i] > b.at[i] ? a.at[i] : b.at[i]; return a; }
QD_INLINE F min(F a, F b) { QD_EACH a.at[i] = a.at[i] < b.at[i] ? a.at[i] : b.at[i]; return a; }
QD_INLINE F abs(F a) { QD_EACH a.at[i] = std::fabs(a.at[i]); return a; }
QD_INLINE F round(F a) { QD_EACH a.at[i] = std::nearbyint(a.at[i]); return a; }
QD_INLINE F scale_by_power_of_two(F a, F n) {
  QD_EACH a.at[i] = std::ldexp(a.at[i], static_cast<int>(n.at[i]));
  return a;
}
QD_INLINE float sum(F a) {
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) a.at[i] += a.at[i + half];
  return a.at[0];
}
QD_INLINE float largest(F a) {
  float r = a.at[0];
  QD_EACH r = r > a.at[i] ? r : a.at[i];
  return r;
}
QD_INLINE F first_of(F a, F b, int n) { QD_EACH b.at[i] = i < n ? a.at[i] : b.at[i]; return b; }
// Bit i: lane i of `a` is at least that of `b`; no where one is no number.
QD_INLINE uint32_t at_least(F a, F b) {
  uint32_t bits = 0;
  QD_EACH bits |= static_cast<uint32_t>(a.at[i] >= b.at[i]) << i;
  return bits;
}

QD_INLINE I iset(int x) { I r; QD_EACH r.at[i] = x; return r; }
QD_INLINE I izero() { return iset(0); }
QD_INLINE I iadd(I a, I b) { QD_EACH a.at[i] += b.at[i]; return a; }
QD_INLINE int isum(I a) { int r = 0; QD_EACH r += a.at[i]; return r; }
QD_INLINE F to_float(I a) { F r; QD_EACH r.at[i] = static_cast<float>(a.at[i]); return r; }
QD_INLINE I to_int(F a) {
  I r;
  // what is no number, or too large, becomes the smallest integer, as the instructions do
  QD_EACH r.at[i] = std::fabs(a.at[i]) < 2147483648.0f
                        ? static_cast<int32_t>(std::nearbyint(a.at[i])) : INT32_MIN;
  return r;
}
QD_INLINE void store_bytes(int8_t* p, I a) {
  QD_EACH p[i] = static_cast<int8_t>(a.at[i] > 127 ? 127 : a.at[i] < -128 ? -128 : a.at[i]);
}

QD_INLINE B load_bytes(const void* p) { B r; memcpy(r.at, p, 64); return r; }
QD_INLINE B low_nibbles(B a) { for (int i = 0; i < 64; ++i) a.at[i] &= 15; return a; }
QD_INLINE B high_nibbles(B a) { for (int i = 0; i < 64; ++i) a.at[i] >>= 4; return a; }
QD_INLINE B spread(const void* p) {
  B r;
  QD_EACH memcpy(r.at + 4 * i, p, 4);
  return r;
}
QD_INLINE I dot_bytes(I c, B unsigned_bytes, B signed_bytes) {
  QD_EACH for (int j = 4 * i; j < 4 * i + 4; ++j)
    c.at[i] += unsigned_bytes.at[j] * static_cast<int8_t>(signed_bytes.at[j]);
  return c;
}
QD_INLINE I dot_nibbles(I c, B a, B b) { return dot_bytes(c, a, b); }
QD_INLINE float from_bits(uint32_t bits) { float r; memcpy(&r, &bits, 4); return r; }
QD_INLINE uint32_t to_bits(float x) { uint32_t r; memcpy(&r, &x, 4); return r; }
QD_INLINE F dot_bf16(F c, B a, B b) {
  QD_EACH {
    uint32_t x, y;
    memcpy(&x, a.at + 4 * i, 4);
    memcpy(&y, b.at + 4 * i, 4);
    c.at[i] += from_bits(x << 16) * from_bits(y << 16);
    c.at[i] += from_bits(x & 0xffff0000u) * from_bits(y & 0xffff0000u);
  }
  return c;
}

QD_INLINE float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 31u, mantissa = half & 1023u;
  if (exponent == 31) return from_bits(sign | 0x7f800000u | mantissa << 13);
  if (exponent == 0) {
    const float tiny = std::ldexp(static_cast<float>(mantissa), -24);
    return sign ? -tiny : tiny;
  }
  return from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}
QD_INLINE F load_half(const void* p) {
  uint16_t halves[16];
  memcpy(halves, p, 32);
  F r;
  QD_EACH r.at[i] = half_to_float(halves[i]);
  return r;
}
QD_INLINE F load_bf16(const uint16_t* p) {
  F r;
  QD_EACH r.at[i] = from_bits(static_cast<uint32_t>(p[i]) << 16);
  return r;
}
QD_INLINE void store_bf16(uint16_t* p, F a) {
  QD_EACH {
    const uint32_t bits = to_bits(a.at[i]);
    p[i] = std::isnan(a.at[i]) ? static_cast<uint16_t>((bits | 0x400000u) >> 16)
                               : static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
  }
}
QD_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }
QD_INLINE void prefetch_to_l2(const void* p) { __builtin_prefetch(p, 0, 2); }

#undef QD_EACH

}  // namespace vec
}  // namespace
