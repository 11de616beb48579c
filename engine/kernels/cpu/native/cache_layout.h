// Where keys, values and rounded queries lie in memory, and how large the buffers of attention are.
//
// The cache of a layer is [block][kv_head][key tiles, then value tiles]. A tile has 16 slots, so a
// block of `block_size` positions has ceil(block_size / 16) of them and the last may be partial.
//   bfloat16  key tile    [padded_dim/2][16 slots][2]
//             value tile  [8 pairs of slots][padded_dim][2]
//   int8      key tile    [padded_dim/4][16 slots][4] bytes, 16 float scales of the keys,
//                         16 float scales of the values
//             value tile  [4 fours of slots][padded_dim][4] bytes
//             a number is (byte - 128) * scale, with a scale for each token and head
#pragma once
#include "kernels.h"

namespace qd {

constexpr int kTileSlots = kLanes;                     // a lane of a vector for each
constexpr int kPieceTiles = kPieceSlots / kTileSlots;  // tiles of one piece of the context
constexpr int kMaxTileRows = 12;                       // query rows that are computed together
constexpr int kTaskRows = 48;                          // query rows of a task, and tokens at most
constexpr int kMaxHeadDim = 512;                       // int8 sums are exact floats up to twice it
constexpr int kPieceStride = kPieceSlots + kTileSlots;  // of scores; no power of two, for the L1

struct CacheLayout {
  int tiles;                 // of a block
  int64_t key_tile_bytes;    // with the scales, for int8
  int64_t value_tile_bytes;
  int64_t values_offset;     // of the first value tile within a head
  int64_t head_bytes;
  int64_t block_bytes;
};

inline CacheLayout cache_layout(int cache_dtype, int block_size, int num_kv_heads, int head_dim) {
  const int64_t padded_dim = round_up(head_dim, kLanes);
  const bool is_int8 = cache_dtype == QD_KV_I8;
  CacheLayout layout;
  layout.tiles = round_up(block_size, kTileSlots) / kTileSlots;
  layout.value_tile_bytes = padded_dim * kTileSlots * (is_int8 ? 1 : 2);
  layout.key_tile_bytes = layout.value_tile_bytes + (is_int8 ? 2 * 4 * kTileSlots : 0);
  layout.values_offset = layout.tiles * layout.key_tile_bytes;
  layout.head_bytes = layout.values_offset + layout.tiles * layout.value_tile_bytes;
  layout.block_bytes = num_kv_heads * layout.head_bytes;
  return layout;
}

// Where a position lies, counted in tiles from the start of the context. It depends on nothing
// else, so neither do the pieces that contexts are cut into.
struct Slot {
  int tile;
  int lane;
};
inline Slot slot_of(int position, int block_size) {
  const int offset = position % block_size;
  const int tiles = round_up(block_size, kTileSlots) / kTileSlots;
  return {position / block_size * tiles + offset / kTileSlots, offset % kTileSlots};
}
inline int piece_of(int position, int block_size) {
  return slot_of(position, block_size).tile / kPieceTiles;
}
// The first position that a token sees.
inline int first_seen(int position, int window) {
  return window > 0 && position >= window ? position - window + 1 : 0;
}

// Bytes of one head of one row in AttentionLayer::queries, which is [rows][num_heads].
//   bfloat16  [padded_dim]
//   int8      high bytes [padded_dim], low bytes [padded_dim], then a QueryScale
inline int64_t query_bytes(int cache_dtype, int head_dim) {
  return 2 * round_up(head_dim, kLanes) + (cache_dtype == QD_KV_I8 ? 16 : 0);
}

// Floats of one row of one piece in AttentionTask::partial: the mixed values, the largest score,
// the sum of the weights.
inline int64_t part_floats(int head_dim) { return round_up(head_dim, kLanes) + kLanes; }

// Tokens that one task may have; all heads of a group are in it, even if those are more rows.
inline int task_tokens(int group_size) {
  return group_size < kTaskRows ? kTaskRows / group_size : 1;
}

// Floats of the scratch memory that each thread hands to `attend`; aligned to 64 bytes.
inline int64_t attention_scratch_floats(int group_size, int head_dim) {
  const int64_t padded_dim = round_up(head_dim, kLanes);
  const int64_t task_rows = round_up(group_size > kTaskRows ? group_size : kTaskRows, kLanes);
  const int64_t scores = kMaxTileRows * kPieceStride;
  const int64_t weights = kMaxTileRows * kPieceStride / 2;
  const int64_t queries = kMaxTileRows * padded_dim / 2;
  const int64_t mixed = kMaxTileRows * padded_dim;
  const int64_t edge_tiles = 2 * kTileSlots * padded_dim / 2;
  return scores + weights + queries + mixed + edge_tiles + 2 * task_rows;
}

}  // namespace qd
