// What LoRA adapters add to a layer's output: two products with thin matrices, in floats.
//
// A row's sums are made in one order, with whichever other rows it is computed.
//
// Source:
//   Hu et al. 2021, LoRA, https://arxiv.org/abs/2106.09685
namespace {

using namespace qd;

constexpr int kDownRows = 2;   // of `down` at a time: with 4 rows, 8 sums in registers
constexpr int kUpVectors = 2;  // of columns of `up` at a time

// sums[row][i] = row . down[i] for `kRanks` rows of `down`.
template <int kCount, int kRanks>
QD_INLINE void down_tile(const qd_update& update, const float* down, const float* const* rows,
                         float* sums) {
  F total[kCount][kRanks];
  for (int row = 0; row < kCount; ++row)
    for (int i = 0; i < kRanks; ++i) total[row][i] = vec::zero();
  const int width = update.width, whole = width / kLanes * kLanes;
  for (int at = 0; at < whole; at += kLanes) {
    F weights[kRanks];
    for (int i = 0; i < kRanks; ++i) weights[i] = vec::load(down + int64_t{i} * width + at);
    for (int row = 0; row < kCount; ++row) {
      const F x = vec::load(rows[row] + at);
      for (int i = 0; i < kRanks; ++i) total[row][i] = vec::fma(x, weights[i], total[row][i]);
    }
  }
  if (whole < width)
    for (int row = 0; row < kCount; ++row)
      for (int i = 0; i < kRanks; ++i)
        total[row][i] = vec::fma(vec::load_first(rows[row] + whole, width - whole),
                                 vec::load_first(down + int64_t{i} * width + whole, width - whole),
                                 total[row][i]);
  for (int row = 0; row < kCount; ++row)
    for (int i = 0; i < kRanks; ++i) sums[row * update.rank + i] = vec::sum(total[row][i]);
}

// out[row][column...] += sums[row] . up, for kVectors vectors of columns of which the last has
// `last` columns.
template <int kCount, int kVectors>
QD_INLINE void up_tile(const qd_update& update, const float* up, const float* sums, int last,
                       float* const* out, int column) {
  F total[kCount][kVectors];
  for (int row = 0; row < kCount; ++row)
    for (int i = 0; i < kVectors; ++i) total[row][i] = vec::zero();
  for (int rank = 0; rank < update.rank; ++rank, up += update.columns) {
    F weights[kVectors];
    for (int i = 0; i < kVectors - 1; ++i) weights[i] = vec::load(up + i * kLanes);
    weights[kVectors - 1] = last == kLanes
                                ? vec::load(up + (kVectors - 1) * kLanes)
                                : vec::load_first(up + (kVectors - 1) * kLanes, last);
    for (int row = 0; row < kCount; ++row) {
      const F share = vec::set(sums[row * update.rank + rank]);
      for (int i = 0; i < kVectors; ++i) total[row][i] = vec::fma(share, weights[i], total[row][i]);
    }
  }
  for (int row = 0; row < kCount; ++row)
    for (int i = 0; i < kVectors; ++i) {
      float* to = out[row] + column + i * kLanes;
      const int count = i == kVectors - 1 ? last : kLanes;
      vec::store_first(to, vec::add(vec::load_first(to, count), total[row][i]), count);
    }
}

template <int kCount>
void low_rank_tile(const qd_update& update, const float* const* rows, float* sums,
                   float* const* out) {
  int rank = 0;
  for (; rank + kDownRows <= update.rank; rank += kDownRows)
    down_tile<kCount, kDownRows>(update, update.down + int64_t{rank} * update.width, rows,
                                 sums + rank);
  for (; rank < update.rank; ++rank)
    down_tile<kCount, 1>(update, update.down + int64_t{rank} * update.width, rows, sums + rank);
  int column = 0;
  for (; column + kUpVectors * kLanes <= update.columns; column += kUpVectors * kLanes)
    up_tile<kCount, kUpVectors>(update, update.up + column, sums, kLanes, out, column);
  for (; column < update.columns; column += kLanes) {
    const int left = update.columns - column;
    up_tile<kCount, 1>(update, update.up + column, sums, left < kLanes ? left : kLanes, out,
                       column);
  }
}

void low_rank(const qd_update& update, const int32_t* rows, int num_rows, const float* in,
              int64_t in_stride, float* scratch, float* out, int64_t out_stride) {
  const float* from[kLowRankRows];
  float* to[kLowRankRows];
  for (int first = 0; first < num_rows; first += kLowRankRows) {
    const int count = num_rows - first < kLowRankRows ? num_rows - first : kLowRankRows;
    for (int i = 0; i < count; ++i) {
      from[i] = in + rows[first + i] * in_stride;
      to[i] = out + rows[first + i] * out_stride + update.first_column;
    }
    switch (count) {
      case 4: low_rank_tile<4>(update, from, scratch, to); break;
      case 3: low_rank_tile<3>(update, from, scratch, to); break;
      case 2: low_rank_tile<2>(update, from, scratch, to); break;
      default: low_rank_tile<1>(update, from, scratch, to);
    }
  }
}

}  // namespace
