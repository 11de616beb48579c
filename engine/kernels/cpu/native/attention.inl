// Attention of query rows to a paged cache, and the joining of its pieces.
//
// The context is cut into pieces of kPieceTiles tiles, always at the same positions. A row's scores
// with one piece give weights and mixed values; pieces are joined in order, by the same code
// whether one task computed them or several did.
#include "cache_layout.h"
// the parts use each other in this order
#include "attention_store.inl"
#include "attention_scores.inl"
#include "attention_weights.inl"
#include "attention_values.inl"
#include "attention_piece.inl"

namespace {

// The query rows that are computed together.
struct RowTile {
  int first_row, num_rows;  // of the task: token * group + head within the group
  int first_tile, end_tile;  // of the piece, which some row sees
  float* scores;             // [num_rows][kPieceStride]
  uint8_t* weights;          // [num_rows][kWeightBytes]
  float* mixed;              // [num_rows][padded_dim]
  uint32_t* queries;
  const uint8_t* query[kMaxTileRows];
  RowSums sums[kMaxTileRows];
};

constexpr int at_most(int rows, int most) { return rows < most ? rows : most; }

struct Bf16Kv {
  static constexpr int kMaxRows = at_most(vec::kBf16Rows, kMaxTileRows);

  template <int R>
  static void score(const AttentionLayer& layer, const Piece& piece, RowTile& rows) {
    pack_queries<R, 1>(rows.query, rows.num_rows, 2 * layer.padded_dim, rows.queries);
    int tile = rows.first_tile;
    constexpr int T = tiles_at_once(R);
    for (; tile + T <= rows.end_tile; tile += T)
      score_bf16<R, T>(rows.queries, layer.padded_dim, piece.keys + tile,
                       rows.scores + tile * kTileSlots);
    for (; tile < rows.end_tile; ++tile)
      score_bf16<R, 1>(rows.queries, layer.padded_dim, piece.keys + tile,
                       rows.scores + tile * kTileSlots);
  }

  template <int R>
  static void weigh(const Piece& piece, const Seen& seen, const Ahead& ahead, float* scores,
                    uint8_t* weights, RowSums* sums) {
    weigh_bf16<R>(seen, piece.lanes, ahead, scores, weights, sums);
  }

  template <int R>
  static void mix(const Mixing& mixing) {
    constexpr int C = columns_at_once(R);
    const int columns = mixing.padded_dim / kLanes;
    int column = 0;
    for (; column + C <= columns; column += C) mix_bf16<R, C>(mixing, column);
    for (; C > 2 && column + 2 <= columns; column += 2) mix_bf16<R, 2>(mixing, column);
    for (; column < columns; ++column) mix_bf16<R, 1>(mixing, column);
  }
};

struct Int8Kv {
  static constexpr int kMaxRows = at_most(vec::kBf16Rows / 2, kMaxTileRows);

  template <int R>
  static void score(const AttentionLayer& layer, const Piece& piece, RowTile& rows) {
    pack_queries<R, 2>(rows.query, rows.num_rows, layer.padded_dim, rows.queries);
    QueryScale scales[R];
    for (int r = 0; r < R; ++r)
      memcpy(scales + r, rows.query[r < rows.num_rows ? r : 0] + 2 * layer.padded_dim, 16);
    int tile = rows.first_tile;
    constexpr int T = tiles_at_once(2 * R);
    for (; tile + T <= rows.end_tile; tile += T)
      score_int8<R, T>(rows.queries, scales, layer.padded_dim, piece.keys + tile,
                       rows.scores + tile * kTileSlots);
    for (; tile < rows.end_tile; ++tile)
      score_int8<R, 1>(rows.queries, scales, layer.padded_dim, piece.keys + tile,
                       rows.scores + tile * kTileSlots);
  }

  template <int R>
  static void weigh(const Piece& piece, const Seen& seen, const Ahead& ahead, float* scores,
                    uint8_t* weights, RowSums* sums) {
    weigh_int8<R>(seen, piece.lanes, ahead, piece.value_scales, scores, weights, sums);
  }

  template <int R>
  static void mix(const Mixing& mixing) {
    constexpr int C = columns_at_once(2 * R);
    const int columns = mixing.padded_dim / kLanes;
    int column = 0;
    for (; column + C <= columns; column += C) mix_int8<R, C>(mixing, column);
    for (; C > 2 && column + 2 <= columns; column += 2) mix_int8<R, 2>(mixing, column);
    for (; column < columns; ++column) mix_int8<R, 1>(mixing, column);
  }
};

// Where the pieces of one row are joined.
struct Joined {
  float* mixed;  // [head_dim], in the output row
  float largest, total;
};

QD_INLINE float factor_of(float largest, float new_largest) {
  return vec::largest(exponential(vec::set(largest - new_largest)));
}

// Adds a row's part of one piece: mixed values [head_dim], the largest score, the sum of weights.
QD_INLINE void join(const float* mixed, float largest, float total, int size, bool is_first,
                    Joined& joined) {
  if (is_first) {
    for (int i = 0; i < size; i += kLanes)
      store_up_to(joined.mixed + i, vec::load(mixed + i), size - i);
    joined.largest = largest;
    joined.total = total;
    return;
  }
  const float most = largest > joined.largest ? largest : joined.largest;
  const float old_factor = factor_of(joined.largest, most), factor = factor_of(largest, most);
  const F old_factors = vec::set(old_factor), factors = vec::set(factor);
  for (int i = 0; i < size; i += kLanes) {
    const F old = vec::mul(load_up_to(joined.mixed + i, size - i), old_factors);
    store_up_to(joined.mixed + i, vec::fma(vec::load(mixed + i), factors, old), size - i);
  }
  joined.largest = most;
  joined.total = joined.total * old_factor + total * factor;
}

QD_INLINE void finish(int size, const Joined& joined) {
  const F factor = vec::set(1.0f / joined.total);
  for (int i = 0; i < size; i += kLanes)
    store_up_to(joined.mixed + i, vec::mul(load_up_to(joined.mixed + i, size - i), factor),
                size - i);
}

QD_INLINE float* output_of(const AttentionLayer& layer, const AttentionTask& task, int row) {
  const int group = layer.num_heads / layer.num_kv_heads;
  return layer.out + (task.first_row + row / group) * layer.out_stride +
         static_cast<int64_t>(task.kv_head * group + row % group) * layer.head_dim;
}

// One task: its scratch memory, and the loops over pieces and rows.
template <typename Kv>
struct Attention {
  const AttentionLayer& layer;
  const AttentionTask& task;
  const CacheLayout layout;
  const int group, num_rows;
  uint8_t* edges;
  float* largest;  // [num_rows], of the pieces joined so far
  float* totals;
  Range seen_by[kTaskRows];  // each token
  Piece piece;
  RowTile rows;

  Attention(const AttentionLayer& layer_, const AttentionTask& task_, float* scratch)
      : layer(layer_),
        task(task_),
        layout(cache_layout(layer.cache_dtype, layer.block_size, layer.num_kv_heads,
                            layer.head_dim)),
        group(layer.num_heads / layer.num_kv_heads),
        num_rows(task.num_tokens * group) {
    rows.scores = scratch;
    rows.weights = reinterpret_cast<uint8_t*>(rows.scores + kMaxTileRows * kPieceStride);
    rows.mixed = rows.scores + kMaxTileRows * (kPieceStride + kPieceStride / 2);
    rows.queries = reinterpret_cast<uint32_t*>(rows.mixed + kMaxTileRows * layer.padded_dim);
    edges = reinterpret_cast<uint8_t*>(rows.queries + kMaxTileRows * layer.padded_dim / 2);
    largest = reinterpret_cast<float*>(edges) + kTileSlots * layer.padded_dim;
    totals = largest + round_up(num_rows, kLanes);
  }

  void run() {
    const int tiles = (num_rows + Kv::kMaxRows - 1) / Kv::kMaxRows;
    for (int token = 0; token < task.num_tokens; ++token)
      seen_by[token] = range_of(layer, task, token);
    for (int index = task.first_piece; index < task.first_piece + task.num_pieces; ++index) {
      load_piece(layer, task, layout, seen_together(0, task.num_tokens - 1), index, edges, piece);
      for (int i = 0, row = 0; i < tiles; ++i) {
        const int end = num_rows * (i + 1) / tiles;
        attend_rows(index, row, end - row);
        row = end;
      }
    }
  }

  Range seen_together(int first_token, int last_token) const {
    return {seen_by[first_token].first, seen_by[last_token].last};
  }

  void attend_rows(int index, int first_row, int count) {
    const int first_token = first_row / group, last_token = (first_row + count - 1) / group;
    const Seen seen = seen_in(layer, piece, seen_together(first_token, last_token));
    if (seen.end_tile <= seen.first_tile) return;
    rows.first_row = first_row;
    rows.num_rows = count;
    rows.first_tile = seen.first_tile;
    rows.end_tile = seen.end_tile;
    const int64_t bytes = query_bytes(layer.cache_dtype, layer.head_dim);
    for (int r = 0; r < count; ++r) {
      const int token = (first_row + r) / group, head = (first_row + r) % group;
      const int64_t at = static_cast<int64_t>(task.first_row + token) * layer.num_heads;
      rows.query[r] = layer.queries + (at + task.kv_head * group + head) * bytes;
    }
    compute(index);
  }

  // With as few more rows as there is code for.
  void compute(int index) {
    switch (rows.num_rows) {
      case 1: return compute_rows<1>(index);
      case 2: return compute_rows<at_most(2, Kv::kMaxRows)>(index);
      case 3: return compute_rows<at_most(3, Kv::kMaxRows)>(index);
      case 4: return compute_rows<at_most(4, Kv::kMaxRows)>(index);
      case 5:
      case 6: return compute_rows<at_most(6, Kv::kMaxRows)>(index);
      case 7:
      case 8: return compute_rows<at_most(8, Kv::kMaxRows)>(index);
      case 9: return compute_rows<at_most(9, Kv::kMaxRows)>(index);
      default: return compute_rows<at_most(12, Kv::kMaxRows)>(index);
    }
  }

  template <int R>
  void compute_rows(int index) {
    Kv::template score<R>(layer, piece, rows);
    for (int r = 0; r < rows.num_rows;) r += weigh_some(r);
    for (int r = rows.num_rows; r < R; ++r) rows.sums[r] = {};
    Kv::template mix<R>({rows.weights, piece.values, rows.first_tile, rows.end_tile,
                         layer.padded_dim, rows.sums, rows.mixed});
    for (int r = 0; r < rows.num_rows; ++r) hand_over(index, r);
  }

  // Weighs rows from r up that see the same; returns how many.
  int weigh_some(int r) {
    const int row = rows.first_row + r;
    const int count = at_most(at_most(group - row % group, rows.num_rows - r), kRowsAtOnce);
    switch (count) {
      case 1: weigh_rows<1>(r); break;
      case 2: weigh_rows<2>(r); break;
      case 3: weigh_rows<3>(r); break;
      default: weigh_rows<kRowsAtOnce>(r); break;
    }
    return count;
  }

  template <int R>
  void weigh_rows(int first) {
    const Seen seen = seen_in(layer, piece, seen_by[(rows.first_row + first) / group]);
    float* scores = rows.scores + first * kPieceStride;
    uint8_t* weights = rows.weights + first * kWeightBytes;
    RowSums* sums = rows.sums + first;
    const bool sees_any = seen.end_tile > seen.first_tile;
    const int zero_until = sees_any ? seen.first_tile : rows.end_tile;
    for (int r = 0; r < R; ++r) {
      uint8_t* row = weights + r * kWeightBytes;
      memset(row + 32 * rows.first_tile, 0, 32 * (zero_until - rows.first_tile));
      if (sees_any) memset(row + 32 * seen.end_tile, 0, 32 * (rows.end_tile - seen.end_tile));
      sums[r] = {};
    }
    if (!sees_any) return;
    finish_scores<R>(seen, piece.lanes, layer.softcap, scores, sums);
    const bool is_first_of_task = rows.first_row + first == 0;  // then the others find them near
    const Ahead ahead = {piece.values,
                         is_first_of_task ? static_cast<int>(layout.value_tile_bytes) : 0};
    Kv::template weigh<R>(piece, seen, ahead, scores, weights, sums);
  }

  void hand_over(int index, int r) {
    const int row = rows.first_row + r;
    const Range& range = seen_by[row / group];
    if (index < first_piece(range) || index > last_piece(range)) return;
    const float* mixed = rows.mixed + r * layer.padded_dim;
    const RowSums& sums = rows.sums[r];
    if (task.partial) {
      const int64_t part = static_cast<int64_t>(index - task.first_piece) * num_rows + row;
      float* to = task.partial + part * part_floats(layer.head_dim);
      memcpy(to, mixed, 4 * static_cast<size_t>(layer.padded_dim));
      to[layer.padded_dim] = sums.largest;
      to[layer.padded_dim + 1] = sums.total;
      return;
    }
    Joined joined = {output_of(layer, task, row), largest[row], totals[row]};
    join(mixed, sums.largest, sums.total, layer.head_dim, index == first_piece(range), joined);
    largest[row] = joined.largest;
    totals[row] = joined.total;
    if (index == last_piece(range)) finish(layer.head_dim, joined);
  }
};

void attend(const AttentionLayer& layer, const AttentionTask& task, float* scratch) {
  if (layer.cache_dtype == QD_KV_BF16)
    Attention<Bf16Kv>(layer, task, scratch).run();
  else
    Attention<Int8Kv>(layer, task, scratch).run();
}

void combine(const AttentionLayer& layer, const AttentionTask& task) {
  const int group = layer.num_heads / layer.num_kv_heads, num_rows = task.num_tokens * group;
  const int64_t floats = part_floats(layer.head_dim);
  for (int row = 0; row < num_rows; ++row) {
    const Range range = range_of(layer, task, row / group);
    Joined joined = {output_of(layer, task, row), 0.0f, 0.0f};
    for (int index = first_piece(range); index <= last_piece(range); ++index) {
      const int64_t part = static_cast<int64_t>(index - task.first_piece) * num_rows + row;
      const float* mixed = task.partial + part * floats;
      join(mixed, mixed[layer.padded_dim], mixed[layer.padded_dim + 1], layer.head_dim,
           index == first_piece(range), joined);
    }
    finish(layer.head_dim, joined);
  }
}

}  // namespace
