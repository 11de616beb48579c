// What attention does to a token first: norms, rotation, rounding; keys and values into the cache.
namespace {

using namespace qd;
using vec::B;
using vec::F;
using vec::I;

constexpr float kLargestValue = 3.3e38f;  // finite as bfloat16, too
constexpr float kSmallestScaled = 1e-30f;  // beneath, a head counts as zeros: no infinite factor
constexpr float kByteSteps = 127.0f;
constexpr float kTwoByteSteps = 127.0f * 256.0f;

// Behind the bytes of a rounded query head.
struct QueryScale {
  float scale;
  int32_t high_sum, low_sum;  // of the bytes
  int32_t pad;
};
static_assert(sizeof(QueryScale) == 16, "query_bytes() counts on it");

// One head, padded with zeros.
struct alignas(64) Head {
  float at[kMaxHeadDim];
};

QD_INLINE int up_to_lanes(int count) { return count < kLanes ? count : kLanes; }

// The first n lanes; whole vectors, the usual case, without a mask (of which loads do not like to
// be served from a store that is still under way).
QD_INLINE F load_up_to(const float* from, int n) {
  return n >= kLanes ? vec::load(from) : vec::load_first(from, n);
}
QD_INLINE void store_up_to(float* to, F x, int n) {
  if (n >= kLanes)
    vec::store(to, x);
  else
    vec::store_first(to, x, n);
}

QD_INLINE void load_head(const float* values, int size, Head& head) {
  for (int i = 0; i < size; i += kLanes)
    vec::store(head.at + i, load_up_to(values + i, size - i));
}

QD_INLINE void norm_head(const qd_norm& norm, int size, Head& head) {
  F squares = vec::zero();
  for (int i = 0; i < size; i += kLanes) {
    const F x = vec::load(head.at + i);
    squares = vec::fma(x, x, squares);
  }
  const float mean = vec::sum(squares) / static_cast<float>(size);
  const F factor = vec::set(1.0f / sqrtf(mean + norm.epsilon));
  for (int i = 0; i < size; i += kLanes) {
    const F weight = load_up_to(norm.weight + i, size - i);
    vec::store(head.at + i, vec::mul(vec::mul(vec::load(head.at + i), factor), weight));
  }
}

// Value i rotates with value i + half ("half split", as in GPT-NeoX and Hugging Face Llama).
//
// Source:
//   Su et al. 2021, RoFormer, eq. 34, https://arxiv.org/abs/2104.09864
QD_INLINE void rotate_head(const float* rotary, int half, Head& head) {
  for (int i = 0; i < half; i += kLanes) {
    const int n = half - i;
    const F a = load_up_to(head.at + i, n), b = load_up_to(head.at + half + i, n);
    const F cos = load_up_to(rotary + i, n), sin = load_up_to(rotary + half + i, n);
    store_up_to(head.at + i, vec::sub(vec::mul(a, cos), vec::mul(b, sin)), n);
    store_up_to(head.at + half + i, vec::fma(b, cos, vec::mul(a, sin)), n);
  }
}

// A value that is no finite number would reach rows that may not see it: zero times it is not zero.
// So it becomes one, and false is returned where that was needed.
QD_INLINE bool make_finite(int size, Head& head) {
  const F most = vec::set(kLargestValue), least = vec::set(-kLargestValue);
  F none = vec::zero();
  for (int i = 0; i < size; i += kLanes) {
    const F x = vec::load(head.at + i);
    none = vec::fma(x, vec::zero(), none);
    vec::store(head.at + i, vec::min(vec::max(x, least), most));
  }
  return vec::sum(none) == 0.0f;
}

QD_INLINE void round_to_bf16(const Head& head, int padded_dim, uint16_t* out) {
  for (int i = 0; i < padded_dim; i += kLanes) vec::store_bf16(out + i, vec::load(head.at + i));
}

QD_INLINE void store_query_bf16(const Head& head, int padded_dim, float scale, uint16_t* out) {
  for (int i = 0; i < padded_dim; i += kLanes)
    vec::store_bf16(out + i, vec::mul(vec::load(head.at + i), vec::set(scale)));
}

// The largest absolute value; not a number where any value is none or infinite.
QD_INLINE float largest_of(const Head& head, int padded_dim) {
  F most = vec::zero(), none = vec::zero();
  for (int i = 0; i < padded_dim; i += kLanes) {
    const F x = vec::load(head.at + i);
    most = vec::max(most, vec::abs(x));
    none = vec::fma(x, vec::zero(), none);
  }
  return vec::largest(most) + vec::sum(none);
}

QD_INLINE float steps_per_unit(float largest, float steps) {
  return largest > kSmallestScaled ? steps / largest : 0.0f;
}
QD_INLINE float unit_per_step(float largest, float steps) {
  return largest <= kSmallestScaled ? 0.0f : largest / steps;  // keeps what is no number
}

// Integral `x` (of at most 127 * 256) as 256 * high + low, both int8; adds them to the sums. What
// is no number becomes the largest one: its row's scale or total says what it is.
QD_INLINE void split_bytes(F x, int8_t* high, int8_t* low, I& high_sum, I& low_sum) {
  x = vec::min(x, vec::set(kTwoByteSteps));
  // an integer's nearest multiple of 256, the upper one at a tie: so `low` is in -128..127
  const F shifted = vec::fma(x, vec::set(1.0f / 256), vec::set(1.0f / 1024));
  const F upper = vec::round(shifted);
  const I h = vec::to_int(upper), l = vec::to_int(vec::fma(upper, vec::set(-256.0f), x));
  vec::store_bytes(high, h);
  vec::store_bytes(low, l);
  high_sum = vec::iadd(high_sum, h);
  low_sum = vec::iadd(low_sum, l);
}

QD_INLINE void store_query_int8(const Head& head, int padded_dim, float scale, uint8_t* out) {
  const float largest = largest_of(head, padded_dim);
  const F factor = vec::set(steps_per_unit(largest, kTwoByteSteps));
  int8_t* high = reinterpret_cast<int8_t*>(out);
  I high_sum = vec::izero(), low_sum = vec::izero();
  for (int i = 0; i < padded_dim; i += kLanes)
    split_bytes(vec::round(vec::mul(vec::load(head.at + i), factor)), high + i,
                high + padded_dim + i, high_sum, low_sum);
  const QueryScale unit = {unit_per_step(largest, kTwoByteSteps) * scale, vec::isum(high_sum),
                           vec::isum(low_sum), 0};
  memcpy(out + 2 * padded_dim, &unit, sizeof unit);
}

// Bytes of a key or value, 128 added; returns their scale.
QD_INLINE float round_to_bytes(const Head& head, int padded_dim, uint8_t* out) {
  const float largest = largest_of(head, padded_dim);
  const F factor = vec::set(steps_per_unit(largest, kByteSteps));
  for (int i = 0; i < padded_dim; i += kLanes)
    vec::store_bytes(reinterpret_cast<int8_t*>(out + i),
                     vec::to_int(vec::mul(vec::load(head.at + i), factor)));
  for (int i = 0; i < padded_dim; ++i) out[i] ^= 0x80;
  return unit_per_step(largest, kByteSteps);
}

// The tile and the lane of one token in the cache of one head.
struct CacheSlot {
  uint8_t* key_tile;
  uint8_t* value_tile;
  int lane;
  int unused;  // lanes behind it in the tile that no position has, where it is the block's last
};

QD_INLINE CacheSlot cache_slot(const AttentionLayer& layer, const CacheLayout& layout, int position,
                               int block, int kv_head) {
  const int offset = position % layer.block_size;
  const int tile = offset / kTileSlots, lane = offset % kTileSlots;
  uint8_t* head = layer.cache + block * layout.block_bytes + kv_head * layout.head_bytes;
  return {head + tile * layout.key_tile_bytes,
          head + layout.values_offset + tile * layout.value_tile_bytes, lane,
          offset + 1 == layer.block_size ? kTileSlots - 1 - lane : 0};
}

// A key's bytes in steps of 4, one for each lane of a tile.
QD_INLINE void scatter_key(const void* rounded, int num_bytes, const CacheSlot& slot) {
  const uint8_t* from = static_cast<const uint8_t*>(rounded);
  uint8_t* to = slot.key_tile + 4 * slot.lane;
  for (int i = 0; i < num_bytes; i += 4) memcpy(to + i * kTileSlots, from + i, 4);
}

// Values lie in groups of `kSlots` neighbouring slots. Lanes that no position ever has become
// zeros, once the block's last position comes: they are read with the others, at a weight of zero.
template <int kSlots, typename T>
QD_INLINE void scatter_value(const T* rounded, int padded_dim, const CacheSlot& slot) {
  T* tile = reinterpret_cast<T*>(slot.value_tile);
  T* to = tile + slot.lane / kSlots * padded_dim * kSlots + slot.lane % kSlots;
  for (int i = 0; i < padded_dim; ++i) to[i * kSlots] = rounded[i];
  for (int lane = slot.lane + 1; lane <= slot.lane + slot.unused; ++lane) {
    T* empty = tile + lane / kSlots * padded_dim * kSlots + lane % kSlots;
    for (int i = 0; i < padded_dim; ++i) empty[i * kSlots] = 0;
  }
}

QD_INLINE void store_key(const AttentionLayer& layer, const Head& head, const CacheSlot& slot) {
  alignas(64) uint8_t rounded[2 * kMaxHeadDim];
  if (layer.cache_dtype == QD_KV_BF16) {
    round_to_bf16(head, layer.padded_dim, reinterpret_cast<uint16_t*>(rounded));
    scatter_key(rounded, 2 * layer.padded_dim, slot);
    return;
  }
  const float scale = round_to_bytes(head, layer.padded_dim, rounded);
  scatter_key(rounded, layer.padded_dim, slot);
  memcpy(slot.key_tile + layer.padded_dim * kTileSlots + 4 * slot.lane, &scale, 4);
}

QD_INLINE void store_value(const AttentionLayer& layer, const Head& head, const CacheSlot& slot) {
  if (layer.cache_dtype == QD_KV_BF16) {
    alignas(64) uint16_t rounded[kMaxHeadDim];
    round_to_bf16(head, layer.padded_dim, rounded);
    scatter_value<2>(rounded, layer.padded_dim, slot);
    return;
  }
  alignas(64) uint8_t rounded[kMaxHeadDim];
  const float scale = round_to_bytes(head, layer.padded_dim, rounded);
  scatter_value<4>(rounded, layer.padded_dim, slot);
  uint8_t* scales = slot.key_tile + layer.padded_dim * kTileSlots + 4 * kTileSlots;
  memcpy(scales + 4 * slot.lane, &scale, 4);
}

QD_INLINE void store_query(const AttentionLayer& layer, const Head& head, uint8_t* out) {
  if (layer.cache_dtype == QD_KV_BF16)
    store_query_bf16(head, layer.padded_dim, layer.scale, reinterpret_cast<uint16_t*>(out));
  else
    store_query_int8(head, layer.padded_dim, layer.scale, out);
}

void store_token(const AttentionLayer& layer, int row, int position, int block) {
  const int size = layer.head_dim, half = layer.rotary_dim / 2;
  const CacheLayout layout =
      cache_layout(layer.cache_dtype, layer.block_size, layer.num_kv_heads, size);
  const int64_t bytes = query_bytes(layer.cache_dtype, size);
  const float* from = layer.qkv + row * layer.qkv_stride;
  const float* rotary = layer.rotary + static_cast<int64_t>(row) * layer.rotary_dim;
  uint8_t* queries = layer.queries + static_cast<int64_t>(row) * layer.num_heads * bytes;
  Head head, value;
  for (int h = 0; h < layer.num_heads; ++h, from += size) {
    load_head(from, size, head);
    if (layer.query_norm.weight) norm_head(layer.query_norm, size, head);
    rotate_head(rotary, half, head);
    store_query(layer, head, queries + h * bytes);
  }
  const float* values = from + static_cast<int64_t>(layer.num_kv_heads) * size;
  for (int h = 0; h < layer.num_kv_heads; ++h, from += size, values += size) {
    const CacheSlot slot = cache_slot(layer, layout, position, block, h);
    load_head(from, size, head);
    if (layer.key_norm.weight) norm_head(layer.key_norm, size, head);
    rotate_head(rotary, half, head);
    load_head(values, size, value);
    // by its scores, the rows that see the token are no numbers either
    if (!make_finite(size, value)) head.at[0] = NAN;
    store_key(layer, head, slot);
    store_value(layer, value, slot);
  }
}

}  // namespace
