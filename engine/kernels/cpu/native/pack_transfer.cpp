// Takes over the numbers that a file holds where a format of the kernels can hold them too.
#include "pack_rows.h"

namespace qd::pack {
namespace {

void q4_0_to_w4(const uint8_t* block, int group, const Row& row) {
  // d * (q - 8) = d * q - 8 d, and eight times a number of fp16 is one too
  row.scales[group] = load_u16(block);
  row.minima[group] = float_to_half(-8.0f * half_to_float(load_u16(block)));
  memcpy(row.bytes + 16 * group, block + 2, 16);
}

void q4_1_to_w4(const uint8_t* block, int group, const Row& row) {
  row.scales[group] = load_u16(block);
  row.minima[group] = load_u16(block + 2);
  memcpy(row.bytes + 16 * group, block + 4, 16);
}

void q4_k_to_w4(const uint8_t* block, int first_group, const Row& row) {
  for (int part = 0; part < 8; ++part) {
    const GroupScale scale = k_scale(block, part);
    const uint8_t* quants = block + 16 + part / 2 * 32;
    const int group = first_group + part, shift = part % 2 * 4;
    row.scales[group] = float_to_half(scale.d);
    row.minima[group] = float_to_half(-scale.m);
    for (int i = 0; i < 16; ++i) {
      const int first = quants[i] >> shift & 15, second = quants[i + 16] >> shift & 15;
      row.bytes[16 * group + i] = static_cast<uint8_t>(first | second << 4);
    }
  }
}

void q4_0_to_i8(const uint8_t* block, int group, const Row& row) {
  uint8_t* bytes = row.bytes + kBlock * group;
  row.scales[group] = load_u16(block);
  for (int i = 0; i < 16; ++i) {
    bytes[i] = static_cast<uint8_t>((block[2 + i] & 15) - 8 + 128);
    bytes[i + 16] = static_cast<uint8_t>((block[2 + i] >> 4) - 8 + 128);
  }
}

void q5_0_to_i8(const uint8_t* block, int group, const Row& row) {
  uint8_t* bytes = row.bytes + kBlock * group;
  const uint32_t high = load_u32(block + 2);
  row.scales[group] = load_u16(block);
  for (int i = 0; i < 16; ++i) {
    const uint32_t first = (block[6 + i] & 15u) | (high >> i & 1u) << 4;
    const uint32_t second = block[6 + i] >> 4 | (high >> (i + 16) & 1u) << 4;
    bytes[i] = static_cast<uint8_t>(first - 16 + 128);
    bytes[i + 16] = static_cast<uint8_t>(second - 16 + 128);
  }
}

void q8_0_to_i8(const uint8_t* block, int group, const Row& row) {
  row.scales[group] = load_u16(block);
  for (int i = 0; i < kBlock; ++i)
    row.bytes[kBlock * group + i] = static_cast<uint8_t>(block[2 + i] ^ 0x80u);
}

using Transfer = void (*)(const uint8_t* block, int group, const Row& row);

Transfer transfer_of(int32_t stored, int32_t format) {
  if (format == QD_W4_G32) {
    switch (stored) {
      case QD_STORED_Q4_0: return q4_0_to_w4;
      case QD_STORED_Q4_1: return q4_1_to_w4;
      case QD_STORED_Q4_K: return q4_k_to_w4;
      default: return nullptr;
    }
  }
  if (format != QD_I8_G32) return nullptr;
  switch (stored) {
    case QD_STORED_Q4_0: return q4_0_to_i8;
    case QD_STORED_Q5_0: return q5_0_to_i8;
    case QD_STORED_Q8_0: return q8_0_to_i8;
    default: return nullptr;
  }
}

}  // namespace

bool transfer(int32_t stored, const uint8_t* data, int columns, int32_t format, const Row& row) {
  if (format == QD_BF16 && stored == QD_STORED_BF16) {
    memcpy(row.bytes, data, kHalfBytes * static_cast<size_t>(columns));
    return true;
  }
  const Transfer take_over = transfer_of(stored, format);
  if (take_over == nullptr) return false;
  const Kind& kind = *kind_of(stored);
  for (int i = 0; i < columns / kind.block_values; ++i)
    take_over(data + static_cast<ptrdiff_t>(i) * kind.block_bytes,
              i * (kind.block_values / kBlock), row);
  return true;
}

bool is_exact(int32_t stored, int32_t format) {
  if (format == QD_BF16) return stored == QD_STORED_BF16;
  return transfer_of(stored, format) != nullptr && stored != QD_STORED_Q4_K;
}

}  // namespace qd::pack
