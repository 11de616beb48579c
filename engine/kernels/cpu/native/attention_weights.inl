// From the scores of rows in one piece to the weights of the values, rounded.
//
// Rows of one token see the same. They are worked on side by side, because each alone is a chain of
// operations that wait for each other; what comes out of a row does not depend on the others.
namespace {

// Which tiles of a piece, and which lanes of the first and last of them, a row sees.
struct Seen {
  int first_tile, end_tile;  // none: end_tile <= first_tile
  int first_lane, end_lane;
};

// Which lanes [first, end) of a tile are seen.
struct Lanes {
  int first, end;
};
QD_INLINE Lanes lanes_seen(const Seen& seen, const uint8_t* lanes_used, int tile) {
  return {tile == seen.first_tile ? seen.first_lane : 0,
          tile == seen.end_tile - 1 ? seen.end_lane : lanes_used[tile]};
}
QD_INLINE F only(const Lanes& lanes, F x, F other) {
  if (lanes.first == 0 && lanes.end == kLanes) return x;
  return vec::first_of(other, vec::first_of(x, other, lanes.end), lanes.first);
}

constexpr int kWeightBytes = 2 * kPieceStride;  // of one row
constexpr int kRowsAtOnce = 4;                  // that are weighed side by side

// What a row's weights in one piece add up to.
struct RowSums {
  float largest, total;
  float unit;                 // int8: what a step of the rounded weights stands for
  int32_t high_sum, low_sum;  // int8: of the rounded weights' bytes
};

// Values that are brought near while weights are computed, which leaves the memory idle.
struct Ahead {
  const uint8_t* const* values;  // one for each tile
  int tile_bytes;                // zero: nothing is to be fetched
};
QD_INLINE void fetch(const Ahead& ahead, int tile) {
  for (int i = 0; i < ahead.tile_bytes; i += 64) vec::prefetch_to_l2(ahead.values[tile] + i);
}

// Finishes the scores of R rows and finds the largest of each. What they do not see is left out.
template <int R>
QD_INLINE void finish_scores(const Seen& seen, const uint8_t* lanes_used, float softcap,
                             float* scores, RowSums* sums) {
  const F unseen = vec::set(-INFINITY);
  F largest[R];
  for (int r = 0; r < R; ++r) largest[r] = unseen;
  for (int tile = seen.first_tile; tile < seen.end_tile; ++tile) {
    const Lanes lanes = lanes_seen(seen, lanes_used, tile);
    for (int r = 0; r < R; ++r) {
      float* at = scores + r * kPieceStride + tile * kTileSlots;
      F x = vec::load(at);
      if (softcap > 0.0f) {
        x = vec::mul(vec::set(softcap), hyperbolic_tangent(vec::div(x, vec::set(softcap))));
        vec::store(at, x);
      }
      largest[r] = vec::max(largest[r], only(lanes, x, unseen));
    }
  }
  for (int r = 0; r < R; ++r) sums[r].largest = vec::largest(largest[r]);
}

// Weights of R rows as bfloat16, 32 bytes for each tile.
template <int R>
QD_INLINE void weigh_bf16(const Seen& seen, const uint8_t* lanes_used, const Ahead& ahead,
                          const float* scores, uint8_t* weights, RowSums* sums) {
  F total[R];
  for (int r = 0; r < R; ++r) total[r] = vec::zero();
  for (int tile = seen.first_tile; tile < seen.end_tile; ++tile) {
    fetch(ahead, tile);
    const Lanes lanes = lanes_seen(seen, lanes_used, tile);
    for (int r = 0; r < R; ++r) {
      const F x = vec::load(scores + r * kPieceStride + tile * kTileSlots);
      const F weight =
          only(lanes, exponential(vec::sub(x, vec::set(sums[r].largest))), vec::zero());
      total[r] = vec::add(total[r], weight);
      vec::store_bf16(reinterpret_cast<uint16_t*>(weights + r * kWeightBytes + 32 * tile), weight);
    }
  }
  for (int r = 0; r < R; ++r) sums[r].total = vec::sum(total[r]);
}

// Weights of R rows times the scales of the values, which stand in for the scores then; returns the
// largest of each row and adds the weights up. `value_scales` has one for each tile.
template <int R>
QD_INLINE void scale_weights(const Seen& seen, const uint8_t* lanes_used, const Ahead& ahead,
                             const uint8_t* const* value_scales, float* scores, float* most_of,
                             RowSums* sums) {
  F total[R], most[R];
  for (int r = 0; r < R; ++r) total[r] = most[r] = vec::zero();
  for (int tile = seen.first_tile; tile < seen.end_tile; ++tile) {
    fetch(ahead, tile);
    const Lanes lanes = lanes_seen(seen, lanes_used, tile);
    const F scale = vec::load(reinterpret_cast<const float*>(value_scales[tile]));
    for (int r = 0; r < R; ++r) {
      float* at = scores + r * kPieceStride + tile * kTileSlots;
      const F x = vec::sub(vec::load(at), vec::set(sums[r].largest));
      const F weight = only(lanes, exponential(x), vec::zero());
      const F scaled = only(lanes, vec::mul(weight, scale), vec::zero());
      total[r] = vec::add(total[r], weight);
      most[r] = vec::max(most[r], scaled);
      vec::store(at, scaled);
    }
  }
  for (int r = 0; r < R; ++r) {
    sums[r].total = vec::sum(total[r]);
    most_of[r] = vec::largest(most[r]);
  }
}

// The same in two bytes: 16 high ones, then 16 low ones, for each tile.
template <int R>
QD_INLINE void weigh_int8(const Seen& seen, const uint8_t* lanes_used, const Ahead& ahead,
                          const uint8_t* const* value_scales, float* scores, uint8_t* weights,
                          RowSums* sums) {
  float most[R];
  scale_weights<R>(seen, lanes_used, ahead, value_scales, scores, most, sums);
  F factor[R];
  I high_sum[R], low_sum[R];
  for (int r = 0; r < R; ++r) {
    factor[r] = vec::set(steps_per_unit(most[r], kTwoByteSteps));
    high_sum[r] = low_sum[r] = vec::izero();
  }
  for (int tile = seen.first_tile; tile < seen.end_tile; ++tile)
    for (int r = 0; r < R; ++r) {
      int8_t* bytes = reinterpret_cast<int8_t*>(weights + r * kWeightBytes + 32 * tile);
      const F x = vec::load(scores + r * kPieceStride + tile * kTileSlots);
      split_bytes(vec::round(vec::mul(x, factor[r])), bytes, bytes + 16, high_sum[r], low_sum[r]);
    }
  for (int r = 0; r < R; ++r) {
    sums[r].unit = unit_per_step(most[r], kTwoByteSteps);
    sums[r].high_sum = vec::isum(high_sum[r]);
    sums[r].low_sum = vec::isum(low_sum[r]);
  }
}

}  // namespace
