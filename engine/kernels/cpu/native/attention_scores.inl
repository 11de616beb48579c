// Scores of a few query rows with the keys of one piece of the context.
//
// A row's sum runs over head_dim in one order, whatever the number of rows or tiles at once.
namespace {

constexpr int kAccumulators = 2 * vec::kBf16Rows;  // that the registers hold beside the operands
constexpr int kMaxTilesAtOnce = 4;

// How many tiles are scored at once for so many sums of each.
constexpr int tiles_at_once(int sums) {
  return 4 * sums <= kAccumulators ? 4 : 2 * sums <= kAccumulators ? 2 : 1;
}

// Rows are copied side by side first: one pointer, constant offsets. Rows from `count` up, which
// only fill the tile, repeat the last one.
template <int R, int kParts>
QD_INLINE void pack_queries(const uint8_t* const* rows, int count, int part_bytes,
                            uint32_t* packed) {
  for (int r = 0; r < R; ++r) {
    const uint8_t* row = rows[r < count ? r : count - 1];
    for (int part = 0; part < kParts; ++part)
      for (int i = 0; i < part_bytes / 4; ++i)
        memcpy(packed + (i * R + r) * kParts + part, row + part * part_bytes + 4 * i, 4);
  }
}

// `keys` go on beyond the T tiles with those that come next, to be prefetched.
template <int R, int T>
QD_INLINE void score_bf16(const uint32_t* queries, int padded_dim, const uint8_t* const* keys,
                          float* scores) {
  F sums[R][T];
  for (int r = 0; r < R; ++r)
    for (int t = 0; t < T; ++t) sums[r][t] = vec::zero();
  for (int i = 0; i < padded_dim / 2; ++i) {
    B key[T];
    for (int t = 0; t < T; ++t) {
      key[t] = vec::load_bytes(keys[t] + 64 * i);
      vec::prefetch(keys[T + t] + 64 * i);
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const B query = vec::spread(queries + i * R + r);
      for (int t = 0; t < T; ++t) sums[r][t] = vec::dot_bf16(sums[r][t], key[t], query);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int t = 0; t < T; ++t) vec::store(scores + r * kPieceStride + t * kTileSlots, sums[r][t]);
}

// Keys are unsigned, 128 too large: the sums begin with what that adds. All sums are exact.
template <int R, int T>
QD_INLINE void score_int8(const uint32_t* queries, const QueryScale* scales, int padded_dim,
                          const uint8_t* const* keys, float* scores) {
  I high[R][T], low[R][T];
  for (int r = 0; r < R; ++r)
    for (int t = 0; t < T; ++t) {
      high[r][t] = vec::iset(-128 * scales[r].high_sum);
      low[r][t] = vec::iset(-128 * scales[r].low_sum);
    }
  for (int i = 0; i < padded_dim / 4; ++i) {
    B key[T];
    for (int t = 0; t < T; ++t) {
      key[t] = vec::load_bytes(keys[t] + 64 * i);
      vec::prefetch(keys[T + t] + 64 * i);
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const B query_high = vec::spread(queries + (i * R + r) * 2);
      const B query_low = vec::spread(queries + (i * R + r) * 2 + 1);
      for (int t = 0; t < T; ++t) {
        high[r][t] = vec::dot_bytes(high[r][t], key[t], query_high);
        low[r][t] = vec::dot_bytes(low[r][t], key[t], query_low);
      }
    }
  }
  const int scales_at = padded_dim * kTileSlots;  // of the keys, then of the values
  for (int t = 0; t < T; ++t) {
    vec::prefetch(keys[T + t] + scales_at);
    vec::prefetch(keys[T + t] + scales_at + 4 * kTileSlots);
    const uint8_t* key_scales = keys[t] + scales_at;
    const F scale = vec::load(reinterpret_cast<const float*>(key_scales));
    for (int r = 0; r < R; ++r) {
      const F sum = vec::fma(vec::to_float(high[r][t]), vec::set(256.0f), vec::to_float(low[r][t]));
      vec::store(scores + r * kPieceStride + t * kTileSlots,
                 vec::mul(sum, vec::mul(scale, vec::set(scales[r].scale))));
    }
  }
}

}  // namespace
