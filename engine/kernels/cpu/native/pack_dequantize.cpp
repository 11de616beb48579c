// Turns stored rows into floats: the kinds of GGUF files.
//
// Source:
//   ggml, quants.c (dequantize_row_*) and ggml-common.h (the blocks),
//   https://github.com/ggml-org/llama.cpp/tree/master/ggml/src
#include "pack_rows.h"

namespace qd::pack {
namespace {

void plain_floats(const uint8_t* data, int columns, float* values) {
  memcpy(values, data, 4 * static_cast<size_t>(columns));
}

void halves(const uint8_t* data, int columns, float* values) {
  for (int i = 0; i < columns; ++i) values[i] = half_to_float(load_u16(data + kHalfBytes * i));
}

void bfloats(const uint8_t* data, int columns, float* values) {
  for (int i = 0; i < columns; ++i) values[i] = bfloat_to_float(load_u16(data + kHalfBytes * i));
}

// 16 bytes hold 32 values: the first half in low nibbles, the second in high ones.
void q4_0(const uint8_t* block, float* values) {
  const float d = half_to_float(load_u16(block));
  for (int i = 0; i < 16; ++i) {
    const int byte = block[2 + i];
    values[i] = d * static_cast<float>((byte & 15) - 8);
    values[i + 16] = d * static_cast<float>((byte >> 4) - 8);
  }
}

void q4_1(const uint8_t* block, float* values) {
  const float d = half_to_float(load_u16(block)), m = half_to_float(load_u16(block + 2));
  for (int i = 0; i < 16; ++i) {
    const int byte = block[4 + i];
    values[i] = d * static_cast<float>(byte & 15) + m;
    values[i + 16] = d * static_cast<float>(byte >> 4) + m;
  }
}

// Of each value the fifth bit lies in a word of 32 bits.
int fifth_bit(uint32_t bits, int i) { return static_cast<int>(bits >> i & 1u) << 4; }

void q5_0(const uint8_t* block, float* values) {
  const float d = half_to_float(load_u16(block));
  const uint32_t high = load_u32(block + 2);
  for (int i = 0; i < 16; ++i) {
    const int byte = block[6 + i];
    values[i] = d * static_cast<float>(((byte & 15) | fifth_bit(high, i)) - 16);
    values[i + 16] = d * static_cast<float>(((byte >> 4) | fifth_bit(high, i + 16)) - 16);
  }
}

void q5_1(const uint8_t* block, float* values) {
  const float d = half_to_float(load_u16(block)), m = half_to_float(load_u16(block + 2));
  const uint32_t high = load_u32(block + 4);
  for (int i = 0; i < 16; ++i) {
    const int byte = block[8 + i];
    values[i] = d * static_cast<float>((byte & 15) | fifth_bit(high, i)) + m;
    values[i + 16] = d * static_cast<float>((byte >> 4) | fifth_bit(high, i + 16)) + m;
  }
}

void q8_0(const uint8_t* block, float* values) {
  const float d = half_to_float(load_u16(block));
  for (int i = 0; i < kBlock; ++i)
    values[i] = d * static_cast<float>(static_cast<int8_t>(block[2 + i]));
}

// 16 parts of 16 values, each with 4 bits of scale and of minimum.
void q2_k(const uint8_t* block, float* values) {
  const uint8_t* scales = block;
  const uint8_t* quants = block + 16;
  const float d = half_to_float(load_u16(block + 80)), m = half_to_float(load_u16(block + 82));
  for (int i = 0; i < kSuperBlock; ++i) {
    const int scale = scales[i / 16], byte = quants[i / 128 * 32 + i % 32];
    const int q = byte >> (2 * (i % 128 / 32)) & 3;
    values[i] = d * static_cast<float>(scale & 15) * static_cast<float>(q) -
                m * static_cast<float>(scale >> 4);
  }
}

// 16 parts of 16 values, each with a scale of 6 bits: four low ones, then the two high ones.
int q3_k_scale(const uint8_t* packed, int part) {
  const int low = part < 8 ? packed[part] & 15 : packed[part - 8] >> 4;
  const int high = packed[8 + part % 4] >> (2 * (part / 4)) & 3;
  return (low | high << 4) - 32;
}

void q3_k(const uint8_t* block, float* values) {
  const uint8_t* high_bits = block;
  const uint8_t* quants = block + 32;
  const float d = half_to_float(load_u16(block + 108));
  for (int i = 0; i < kSuperBlock; ++i) {
    const int q = quants[i / 128 * 32 + i % 32] >> (2 * (i % 128 / 32)) & 3;
    const int is_high = high_bits[i % 32] >> (i / 32) & 1;
    const float scale = d * static_cast<float>(q3_k_scale(block + 96, i / 16));
    values[i] = scale * static_cast<float>(is_high ? q : q - 4);
  }
}

void q5_k(const uint8_t* block, float* values) {
  const uint8_t* high_bits = block + 16;
  for (int group = 0; group < 8; ++group) {
    const GroupScale scale = k_scale(block, group);
    const uint8_t* quants = block + 48 + group / 2 * 32;
    for (int i = 0; i < kBlock; ++i) {
      const int low = quants[i] >> (group % 2 * 4) & 15, high = high_bits[i] >> group & 1;
      values[group * kBlock + i] = scale.d * static_cast<float>(low | high << 4) - scale.m;
    }
  }
}

void q4_k(const uint8_t* block, float* values) {
  for (int group = 0; group < 8; ++group) {
    const GroupScale scale = k_scale(block, group);
    const uint8_t* quants = block + 16 + group / 2 * 32;
    for (int i = 0; i < kBlock; ++i) {
      const int q = quants[i] >> (group % 2 * 4) & 15;
      values[group * kBlock + i] = scale.d * static_cast<float>(q) - scale.m;
    }
  }
}

// 16 parts of 16 values, each with a scale of 8 bits.
void q6_k(const uint8_t* block, float* values) {
  const uint8_t* high_bits = block + 128;
  const uint8_t* scales = block + 192;
  const float d = half_to_float(load_u16(block + 208));
  for (int i = 0; i < kSuperBlock; ++i) {
    const int low = block[i / 128 * 64 + i % 64] >> (i % 128 / 64 * 4) & 15;
    const int high = high_bits[i / 128 * 32 + i % 32] >> (2 * (i % 128 / 32)) & 3;
    const float scale = d * static_cast<float>(static_cast<int8_t>(scales[i / 16]));
    values[i] = scale * static_cast<float>((low | high << 4) - 32);
  }
}

template <typename Decode>
void each_block(const uint8_t* data, int columns, const Kind& kind, float* values, Decode decode) {
  for (int i = 0; i < columns / kind.block_values; ++i)
    decode(data + static_cast<ptrdiff_t>(i) * kind.block_bytes, values + i * kind.block_values);
}

}  // namespace

GroupScale k_scale(const uint8_t* block, int group) {
  const uint8_t* packed = block + 4;
  int scale, minimum;
  if (group < 4) {
    scale = packed[group] & 63;
    minimum = packed[group + 4] & 63;
  } else {
    scale = (packed[group + 4] & 15) | packed[group - 4] >> 6 << 4;
    minimum = packed[group + 4] >> 4 | packed[group] >> 6 << 4;
  }
  return {half_to_float(load_u16(block)) * static_cast<float>(scale),
          half_to_float(load_u16(block + 2)) * static_cast<float>(minimum)};
}

const Kind* kind_of(int32_t stored) {
  static constexpr Kind f32{1, 4}, plain16{1, 2}, k4_0{32, 18}, k4_1{32, 20}, k5_0{32, 22},
      k5_1{32, 24}, k8_0{32, 34}, k2_k{256, 84}, k3_k{256, 110}, k4_k{256, 144}, k5_k{256, 176},
      k6_k{256, 210};
  switch (stored) {
    case QD_STORED_F32: return &f32;
    case QD_STORED_F16: case QD_STORED_BF16: return &plain16;
    case QD_STORED_Q4_0: return &k4_0;
    case QD_STORED_Q4_1: return &k4_1;
    case QD_STORED_Q5_0: return &k5_0;
    case QD_STORED_Q5_1: return &k5_1;
    case QD_STORED_Q8_0: return &k8_0;
    case QD_STORED_Q2_K: return &k2_k;
    case QD_STORED_Q3_K: return &k3_k;
    case QD_STORED_Q4_K: return &k4_k;
    case QD_STORED_Q5_K: return &k5_k;
    case QD_STORED_Q6_K: return &k6_k;
    default: return nullptr;
  }
}

void dequantize(int32_t stored, const uint8_t* data, int columns, float* values) {
  const Kind& kind = *kind_of(stored);
  switch (stored) {
    case QD_STORED_F32: return plain_floats(data, columns, values);
    case QD_STORED_F16: return halves(data, columns, values);
    case QD_STORED_BF16: return bfloats(data, columns, values);
    case QD_STORED_Q4_0: return each_block(data, columns, kind, values, q4_0);
    case QD_STORED_Q4_1: return each_block(data, columns, kind, values, q4_1);
    case QD_STORED_Q5_0: return each_block(data, columns, kind, values, q5_0);
    case QD_STORED_Q5_1: return each_block(data, columns, kind, values, q5_1);
    case QD_STORED_Q8_0: return each_block(data, columns, kind, values, q8_0);
    case QD_STORED_Q2_K: return each_block(data, columns, kind, values, q2_k);
    case QD_STORED_Q3_K: return each_block(data, columns, kind, values, q3_k);
    case QD_STORED_Q4_K: return each_block(data, columns, kind, values, q4_k);
    case QD_STORED_Q5_K: return each_block(data, columns, kind, values, q5_k);
    default: return each_block(data, columns, kind, values, q6_k);
  }
}

}  // namespace qd::pack
