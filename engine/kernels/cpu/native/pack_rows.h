// One row of a weight on its way from the file to a panel: as floats, or rounded to a format.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "pack.h"

namespace qd::pack {

constexpr int kBlock = 32;        // values of a block of the simple kinds
constexpr int kSuperBlock = 256;  // values of a block of the K kinds
constexpr int kHalfBytes = 2;

inline float from_bits(uint32_t bits) { float r; memcpy(&r, &bits, 4); return r; }
inline uint32_t to_bits(float x) { uint32_t r; memcpy(&r, &x, 4); return r; }
inline uint16_t load_u16(const uint8_t* p) { uint16_t r; memcpy(&r, p, 2); return r; }
inline uint32_t load_u32(const uint8_t* p) { uint32_t r; memcpy(&r, p, 4); return r; }

// Exact, without a branch.
//
// Source:
//   Maratyszcza, https://github.com/Maratyszcza/FP16, fp16_ieee_to_fp32_value
inline float half_to_float(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16, shifted = static_cast<uint32_t>(half) << 17;
  const float normal = from_bits((shifted >> 4) + (0xe0u << 23)) * from_bits(0x7800000u);
  const float tiny = from_bits((shifted >> 17) | (126u << 23)) - 0.5f;
  const float magnitude = shifted < (1u << 27) ? tiny : normal;
  return from_bits(sign | to_bits(magnitude));
}

// The nearest one, of two equally near the even one. What is too large, or no number, becomes the
// largest number: a scale that is infinite would spoil a whole group.
inline uint16_t float_to_half(float value) {
  const uint32_t bits = to_bits(value), sign = bits >> 16 & 0x8000u;
  uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7bffu);
  if (magnitude < 0x38800000u) {  // subnormal: the steps of floats from 0.5 on are 2^-24 too
    const uint32_t steps = to_bits(from_bits(magnitude) + 0.5f) - to_bits(0.5f);
    return static_cast<uint16_t>(sign | steps);
  }
  magnitude += 0xfffu + (magnitude >> 13 & 1u);
  return static_cast<uint16_t>(sign | (magnitude - 0x38000000u) >> 13);
}

inline uint16_t float_to_bfloat(float value) {
  const uint32_t bits = to_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits | 0x400000u) >> 16);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

inline float bfloat_to_float(uint16_t bits) { return from_bits(static_cast<uint32_t>(bits) << 16); }

// A row in the numbers of a format, its inputs still in their order.
//   QD_BF16    words: `width` bfloat16
//   QD_W4_G32  scales, minima; bytes: of each group 16 bytes, the first 16 inputs in low nibbles
//   QD_I8_Gn   scales; bytes: `width` values + 128
struct Row {
  uint16_t* scales;
  uint16_t* minima;
  uint8_t* bytes;
};

struct Kind {
  int block_values;
  int block_bytes;
};

// NULL: unknown.
const Kind* kind_of(int32_t stored);

// Scale and minimum of one of the eight groups of a block of Q4_K or Q5_K: value = d * q - m. Six
// bits of each, the upper two of groups 4 to 7 above those of groups 0 to 3.
struct GroupScale {
  float d, m;
};
GroupScale k_scale(const uint8_t* block, int group);

// Writes the values of a stored row, whose kind is known and whose columns are whole blocks.
void dequantize(int32_t stored, const uint8_t* data, int columns, float* values);

// The numbers of the file as they are, or nearly (Q4_K: scale and minimum of each group rounded to
// fp16). Returns whether the kind and the format are alike enough for that.
bool transfer(int32_t stored, const uint8_t* data, int columns, int32_t format, const Row& row);

// Whether `transfer` keeps every bit of the values.
bool is_exact(int32_t stored, int32_t format);

// Rounds `columns` values; the group that is cut by the end counts as filled with its last value.
void quantize(const float* values, int columns, int32_t format, const Row& row);

// Writes the values that a row of a format stands for.
void values_of(const Row& row, int columns, int32_t format, float* values);

}  // namespace qd::pack
