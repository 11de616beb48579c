// From the scores of one row in one piece to the weights of the values, rounded.
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

// What a row's weights in one piece add up to.
struct RowSums {
  float largest, total;
  float unit;                 // int8: what a step of the rounded weights stands for
  int32_t high_sum, low_sum;  // int8: of the rounded weights' bytes
};

// Finishes the scores of one row and returns the largest. What it does not see is replaced.
QD_INLINE float finish_scores(const Seen& seen, const uint8_t* lanes_used, float softcap,
                              float* scores) {
  const F unseen = vec::set(-INFINITY);
  F largest = unseen;
  for (int tile = seen.first_tile; tile < seen.end_tile; ++tile) {
    F x = vec::load(scores + tile * kTileSlots);
    if (softcap > 0.0f) {
      x = vec::mul(vec::set(softcap), hyperbolic_tangent(vec::div(x, vec::set(softcap))));
      vec::store(scores + tile * kTileSlots, x);
    }
    largest = vec::max(largest, only(lanes_seen(seen, lanes_used, tile), x, unseen));
  }
  return vec::largest(largest);
}

// Weights of a row as bfloat16, 32 bytes for each tile.
QD_INLINE void weigh_bf16(const Seen& seen, const uint8_t* lanes_used, const float* scores,
                          uint8_t* weights, RowSums& sums) {
  const F largest = vec::set(sums.largest);
  F total = vec::zero();
  for (int tile = seen.first_tile; tile < seen.end_tile; ++tile) {
    const F x = vec::sub(vec::load(scores + tile * kTileSlots), largest);
    const F weight = only(lanes_seen(seen, lanes_used, tile), exponential(x), vec::zero());
    total = vec::add(total, weight);
    vec::store_bf16(reinterpret_cast<uint16_t*>(weights + 32 * tile), weight);
  }
  sums.total = vec::sum(total);
}

// Weights times the scales of the values, in two bytes: 16 high ones, then 16 low ones, for each
// tile. `value_scales` has one for each tile.
QD_INLINE void weigh_int8(const Seen& seen, const uint8_t* lanes_used,
                          const uint8_t* const* value_scales, float* scores, uint8_t* weights,
                          RowSums& sums) {
  const F largest = vec::set(sums.largest);
  F total = vec::zero(), most = vec::zero();
  for (int tile = seen.first_tile; tile < seen.end_tile; ++tile) {
    const Lanes lanes = lanes_seen(seen, lanes_used, tile);
    const F x = vec::sub(vec::load(scores + tile * kTileSlots), largest);
    const F weight = only(lanes, exponential(x), vec::zero());
    const F scale = vec::load(reinterpret_cast<const float*>(value_scales[tile]));
    const F scaled = only(lanes, vec::mul(weight, scale), vec::zero());
    total = vec::add(total, weight);
    most = vec::max(most, scaled);
    vec::store(scores + tile * kTileSlots, scaled);
  }
  const float largest_weight = vec::largest(most);
  const F factor = vec::set(steps_per_unit(largest_weight, kTwoByteSteps));
  I high_sum = vec::izero(), low_sum = vec::izero();
  for (int tile = seen.first_tile; tile < seen.end_tile; ++tile) {
    int8_t* bytes = reinterpret_cast<int8_t*>(weights + 32 * tile);
    const F steps = vec::round(vec::mul(vec::load(scores + tile * kTileSlots), factor));
    split_bytes(steps, bytes, bytes + 16, high_sum, low_sum);
  }
  sums.total = vec::sum(total);
  sums.unit = unit_per_step(largest_weight, kTwoByteSteps);
  sums.high_sum = vec::isum(high_sum);
  sums.low_sum = vec::isum(low_sum);
}

}  // namespace
