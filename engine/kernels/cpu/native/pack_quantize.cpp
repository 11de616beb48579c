// Rounds floats to the formats of the kernels, and back.
#include <cmath>

#include "pack_rows.h"

namespace qd::pack {
namespace {

constexpr float kNibbles = 15.0f;  // the largest number of four bits
constexpr int kSteps = 8;           // scales that are tried for a group, besides the plain one

int group_of(int32_t format) { return format == QD_I8_G64 ? 64 : 32; }

// Rounds to the nearest integer, of two equally near the even one; |value| < 2^22.
inline int32_t rounded(float value) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: floats from here on are whole numbers
  return static_cast<int32_t>(to_bits(value + kMagic) - to_bits(kMagic));
}

// Comparisons of floats keep compilers from computing several of them side by side, those of their
// bits do not. Without the sign, bits are in the order of the numbers; what is no number is last.
inline int32_t magnitude_of(float value) {
  return static_cast<int32_t>(to_bits(value) & 0x7fffffffu);
}

inline int32_t smaller(int32_t a, int32_t b) { return a < b ? a : b; }

// Brings the magnitude down to `top`.
inline float cut(float value, float top) {
  const int32_t magnitude = smaller(magnitude_of(value), magnitude_of(top));
  return from_bits((to_bits(value) & 0x80000000u) | static_cast<uint32_t>(magnitude));
}

// Brings what is below zero to zero, what is beyond `top` to `top`.
inline float between_zero_and(float top, float value) {
  const int32_t bits = static_cast<int32_t>(to_bits(value));
  return from_bits(static_cast<uint32_t>(smaller(bits & ~(bits >> 31), magnitude_of(top))));
}

// --- int8

// The scale with which the largest magnitude becomes 127; rounded up where rounding it down would
// cut the largest values off, as it may among the tiny numbers of fp16.
uint16_t i8_scale(float largest) {
  uint16_t scale = float_to_half(largest / 127.0f);
  if (half_to_float(scale) * 127.5f < largest && scale < 0x7bffu) ++scale;
  return scale;
}

void quantize_i8(const float* values, int count, uint16_t* scale, uint8_t* bytes) {
  int32_t largest = 0;
  for (int i = 0; i < count; ++i) largest = -smaller(-largest, -magnitude_of(values[i]));
  *scale = i8_scale(from_bits(static_cast<uint32_t>(largest)));
  const float d = half_to_float(*scale), inverse = d > 0.0f ? 1.0f / d : 0.0f;
  for (int i = 0; i < count; ++i) {
    const int32_t q = rounded(cut(values[i] * inverse, 127.0f));
    bytes[i] = static_cast<uint8_t>(q + 128);
  }
}

// --- four bits

// Four floats side by side; compilers of all processors know how to compute with them.
typedef float Lanes __attribute__((vector_size(16)));

inline Lanes load(const float* values) {
  Lanes lanes;
  memcpy(&lanes, values, sizeof lanes);
  return lanes;
}

inline float total(Lanes lanes) { return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]); }

struct Grid {
  float d, m;
};

// The integers of the grid that are nearest to the values.
void nearest(const float* values, Grid grid, float* q) {
  const float inverse = grid.d > 0.0f ? 1.0f / grid.d : 0.0f;
  for (int i = 0; i < kBlock; ++i) {
    const float place = (values[i] - grid.m) * inverse;
    q[i] = static_cast<float>(rounded(between_zero_and(kNibbles, place)));
  }
}

// The grid in which integers are nearest to the values: the least sum of squares.
Grid fitted(const float* values, const float* q, Grid before) {
  Lanes x_sum = {}, q_sum = {}, qq_sum = {}, qx_sum = {};
  for (int i = 0; i < kBlock; i += 4) {
    const Lanes some_x = load(values + i), some_q = load(q + i);
    x_sum += some_x;
    q_sum += some_q;
    qq_sum += some_q * some_q;
    qx_sum += some_q * some_x;
  }
  const float x = total(x_sum), q1 = total(q_sum), qq = total(qq_sum), qx = total(qx_sum);
  const float count = float{kBlock}, determinant = count * qq - q1 * q1;
  if (!(determinant > 0.0f)) return before;
  const float d = (count * qx - x * q1) / determinant;
  if (!(d > 0.0f)) return before;
  return {d, (x - d * q1) / count};
}

Grid in_halves(Grid grid) {
  return {half_to_float(float_to_half(grid.d)), half_to_float(float_to_half(grid.m))};
}

float squared_error(const float* values, const float* q, Grid grid) {
  Lanes sum = {};
  for (int i = 0; i < kBlock; i += 4) {
    const Lanes error = load(q + i) * grid.d + grid.m - load(values + i);
    sum += error * error;
  }
  return total(sum);
}

// Tries the grid from the least to the largest value, then others that are somewhat finer or wider,
// each moved to where it fits its integers best.
//
// Source:
//   make_qkx2_quants in ggml's quants.c, here with scale and minimum as they are stored
void quantize_nibbles(const float* values, uint16_t* scale, uint16_t* minimum, uint8_t* bytes) {
  float low = HUGE_VALF, high = -HUGE_VALF, q[kBlock], found[kBlock];
  for (int i = 0; i < kBlock; ++i) {  // in this order what is no number is passed over
    low = values[i] < low ? values[i] : low;
    high = values[i] > high ? values[i] : high;
  }
  if (low > high) low = high = 0.0f;  // there was no number at all
  Grid best = in_halves({(high - low) / kNibbles, low});
  nearest(values, best, found);
  float best_error = squared_error(values, found, best);
  for (int step = 0; step < kSteps && best_error > 0.0f; ++step) {
    const float levels = kNibbles - 1.0f + 0.25f * static_cast<float>(step);
    Grid grid{(high - low) / levels, low};
    nearest(values, grid, q);
    grid = in_halves(fitted(values, q, grid));
    nearest(values, grid, q);
    const float error = squared_error(values, q, grid);
    if (!(error < best_error)) continue;
    best_error = error;
    best = grid;
    memcpy(found, q, sizeof q);
  }
  *scale = float_to_half(best.d);
  *minimum = float_to_half(best.m);
  for (int i = 0; i < 16; ++i)
    bytes[i] = static_cast<uint8_t>(static_cast<int>(found[i]) |
                                    static_cast<int>(found[i + 16]) << 4);
}

}  // namespace

void quantize(const float* values, int columns, int32_t format, const Row& row) {
  if (format == QD_BF16) {
    for (int i = 0; i < columns; ++i) {
      const uint16_t bits = float_to_bfloat(values[i]);
      memcpy(row.bytes + kHalfBytes * i, &bits, kHalfBytes);
    }
    return;
  }
  const int group = group_of(format);
  for (int first = 0, at = 0; first < columns; first += group, ++at) {
    const int count = columns - first < group ? columns - first : group;
    if (format != QD_W4_G32) {
      quantize_i8(values + first, count, row.scales + at, row.bytes + first);
      continue;
    }
    float filled[kBlock];
    for (int i = 0; i < kBlock; ++i) filled[i] = values[first + (i < count ? i : count - 1)];
    quantize_nibbles(filled, row.scales + at, row.minima + at, row.bytes + 16 * at);
  }
}

void values_of(const Row& row, int columns, int32_t format, float* values) {
  const int group = group_of(format);
  for (int i = 0; i < columns; ++i) {
    const int at = i / group, place = i % group;
    if (format == QD_BF16) {
      values[i] = bfloat_to_float(load_u16(row.bytes + kHalfBytes * i));
    } else if (format == QD_W4_G32) {
      const int q = row.bytes[16 * at + place % 16] >> (place / 16 * 4) & 15;
      values[i] = half_to_float(row.scales[at]) * static_cast<float>(q) +
                  half_to_float(row.minima[at]);
    } else {
      values[i] = half_to_float(row.scales[at]) * static_cast<float>(row.bytes[i] - 128);
    }
  }
}

}  // namespace qd::pack
