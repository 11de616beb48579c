// A value and its index in one number: sorted ascending, the largest value comes first, and of
// equal values the first index.
#pragma once
#include <cstdint>
#include <cstring>

namespace {
namespace candidates {

static inline uint64_t key_of(float value, uint32_t index) {
  value += 0.0f;  // minus zero equals zero
  uint32_t bits;
  memcpy(&bits, &value, 4);
  const uint32_t descending = bits >> 31 ? bits : ~(bits | 0x80000000u);
  return static_cast<uint64_t>(descending) << 32 | index;
}

static inline float value_of(uint64_t key) {
  const uint32_t descending = static_cast<uint32_t>(key >> 32);
  const uint32_t bits = descending >> 31 ? descending : ~descending & 0x7fffffffu;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

static inline int64_t index_of(uint64_t key) { return static_cast<uint32_t>(key); }

}  // namespace candidates
}  // namespace
