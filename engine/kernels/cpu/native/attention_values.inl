// Values of one piece of the context, mixed by the weights of a few query rows.
//
// A row's sum runs over the tiles in one order; weights of zero add nothing, not even a rounding.
namespace {

constexpr int kTilesAhead = 2;  // of which the values are prefetched

// How many vectors of columns are mixed at once for so many sums of each.
constexpr int columns_at_once(int sums) {
  return 8 * sums <= kAccumulators ? 8 : 4 * sums <= kAccumulators ? 4
                                     : 2 * sums <= kAccumulators   ? 2 : 1;
}

// Tiles [first, end) of the piece; `values` go on with tiles to be prefetched.
struct Mixing {
  const uint8_t* weights;
  const uint8_t* const* values;
  int first_tile, end_tile;
  int padded_dim;
  const RowSums* sums;  // of each row
  float* mixed;         // [rows][padded_dim]
};

template <int R, int C>
QD_INLINE void mix_bf16(const Mixing& m, int column) {
  F sums[R][C];
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) sums[r][c] = vec::zero();
  for (int tile = m.first_tile; tile < m.end_tile; ++tile) {
    const uint8_t* value = m.values[tile] + 64 * column;
    const uint8_t* ahead = m.values[tile + kTilesAhead] + 64 * column;
    const uint8_t* weights = m.weights + 32 * tile;
    for (int pair = 0; pair < kTileSlots / 2; ++pair) {
      B x[C];
      for (int c = 0; c < C; ++c) {
        vec::prefetch(ahead + 64 * c);
        x[c] = vec::load_bytes(value + 64 * c);
      }
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const B weight = vec::spread(weights + r * kWeightBytes + 4 * pair);
        for (int c = 0; c < C; ++c) sums[r][c] = vec::dot_bf16(sums[r][c], x[c], weight);
      }
      value += 4 * m.padded_dim;
      ahead += 4 * m.padded_dim;
    }
  }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c)
      vec::store(m.mixed + r * m.padded_dim + (column + c) * kLanes, sums[r][c]);
}

// As with keys, the sums begin with what the 128 that is added to each byte makes, and are exact.
template <int R, int C>
QD_INLINE void mix_int8(const Mixing& m, int column) {
  I high[R][C], low[R][C];
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) {
      high[r][c] = vec::iset(-128 * m.sums[r].high_sum);
      low[r][c] = vec::iset(-128 * m.sums[r].low_sum);
    }
  for (int tile = m.first_tile; tile < m.end_tile; ++tile) {
    const uint8_t* value = m.values[tile] + 64 * column;
    const uint8_t* ahead = m.values[tile + kTilesAhead] + 64 * column;
    const uint8_t* weights = m.weights + 32 * tile;
    for (int four = 0; four < kTileSlots / 4; ++four) {
      B x[C];
      for (int c = 0; c < C; ++c) {
        vec::prefetch(ahead + 64 * c);
        x[c] = vec::load_bytes(value + 64 * c);
      }
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        const B weight_high = vec::spread(weights + r * kWeightBytes + 4 * four);
        const B weight_low = vec::spread(weights + r * kWeightBytes + 16 + 4 * four);
        for (int c = 0; c < C; ++c) {
          high[r][c] = vec::dot_bytes(high[r][c], x[c], weight_high);
          low[r][c] = vec::dot_bytes(low[r][c], x[c], weight_low);
        }
      }
      value += 4 * m.padded_dim;
      ahead += 4 * m.padded_dim;
    }
  }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < C; ++c) {
      const F sum = vec::fma(vec::to_float(high[r][c]), vec::set(256.0f), vec::to_float(low[r][c]));
      vec::store(m.mixed + r * m.padded_dim + (column + c) * kLanes,
                 vec::mul(sum, vec::set(m.sums[r].unit)));
    }
}

}  // namespace
