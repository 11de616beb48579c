// One piece of the context as one key-value head sees it, and the two ways to store it.
namespace {

// The tiles of a piece are numbered from its start; a task may see only some of them. Behind the
// keys come pointers to the first values, behind the values the last one again: for prefetching.
struct Piece {
  int first_position_tile;  // of the whole context, where the piece begins
  int first_tile, end_tile;
  const uint8_t* keys[kPieceTiles + kMaxTilesAtOnce];
  const uint8_t* values[kPieceTiles + kTilesAhead];
  const uint8_t* value_scales[kPieceTiles];  // int8
  uint8_t lanes[kPieceTiles];                // that positions have: fewer at the end of a block
};

// The first and the last key that a token sees.
struct Range {
  Slot first, last;
};

QD_INLINE Range range_of(const AttentionLayer& layer, const AttentionTask& task, int token) {
  const int position = task.position + token;
  return {slot_of(first_seen(position, layer.window), layer.block_size),
          slot_of(position, layer.block_size)};
}
QD_INLINE int first_piece(const Range& range) { return range.first.tile / kPieceTiles; }
QD_INLINE int last_piece(const Range& range) { return range.last.tile / kPieceTiles; }

// Lanes of a tile that positions have: the last of a block may have fewer.
QD_INLINE int lanes_used(const AttentionLayer& layer, int tile) {
  const int tiles = round_up(layer.block_size, kTileSlots) / kTileSlots;
  return up_to_lanes(layer.block_size - tile % tiles * kTileSlots);
}

QD_INLINE Seen seen_in(const AttentionLayer& layer, const Piece& piece, const Range& range) {
  const int first_tile = range.first.tile - piece.first_position_tile;
  const int last_tile = range.last.tile - piece.first_position_tile;
  Seen seen = {0, kPieceTiles, 0, kTileSlots};
  if (first_tile >= 0) {
    seen.first_tile = first_tile;
    seen.first_lane = range.first.lane;
  }
  if (last_tile < kPieceTiles) {
    seen.end_tile = last_tile + 1;
    seen.end_lane = range.last.lane + 1;
  } else {
    seen.end_lane = lanes_used(layer, piece.first_position_tile + kPieceTiles - 1);
  }
  return seen;
}

// Copies a value tile with zeros in the lanes outside of [first, end): they may hold what another
// request left, and a weight of zero does not hide what is no number.
QD_INLINE void copy_lanes(const uint8_t* tile, int first, int end, int padded_dim, uint8_t* copy) {
  for (int pair = 0; pair < kTileSlots / 2; ++pair) {
    const int even = 2 * pair, odd = 2 * pair + 1;
    const uint16_t keep[2] = {static_cast<uint16_t>(even >= first && even < end ? 0xffff : 0),
                              static_cast<uint16_t>(odd >= first && odd < end ? 0xffff : 0)};
    const uint16_t* from = reinterpret_cast<const uint16_t*>(tile) + 2 * pair * padded_dim;
    uint16_t* to = reinterpret_cast<uint16_t*>(copy) + 2 * pair * padded_dim;
    for (int i = 0; i < 2 * padded_dim; i += 2) {
      to[i] = from[i] & keep[0];
      to[i + 1] = from[i + 1] & keep[1];
    }
  }
}

QD_INLINE void locate_tiles(const AttentionLayer& layer, const AttentionTask& task,
                            const CacheLayout& layout, Piece& piece) {
  int block = (piece.first_position_tile + piece.first_tile) / layout.tiles;
  int within = (piece.first_position_tile + piece.first_tile) % layout.tiles;
  const int64_t head_offset = task.kv_head * layout.head_bytes;
  for (int tile = piece.first_tile; tile < piece.end_tile; ++tile) {
    const uint8_t* head = layer.cache + task.blocks[block] * layout.block_bytes + head_offset;
    piece.keys[tile] = head + within * layout.key_tile_bytes;
    piece.values[tile] = head + layout.values_offset + within * layout.value_tile_bytes;
    piece.value_scales[tile] =
        piece.keys[tile] + layer.padded_dim * kTileSlots + 4 * kTileSlots;
    piece.lanes[tile] =
        static_cast<uint8_t>(up_to_lanes(layer.block_size - within * kTileSlots));
    if (++within == layout.tiles) within = 0, ++block;
  }
  const int last = piece.end_tile - 1;
  for (int i = 0; i < kMaxTilesAtOnce; ++i) {
    const int tile = piece.first_tile + i;
    piece.keys[piece.end_tile + i] = piece.values[tile < last ? tile : last];
  }
  for (int i = 0; i < kTilesAhead; ++i) piece.values[piece.end_tile + i] = piece.values[last];
}

// In bfloat16, values of the first and the last tile that are not all seen are read from a copy.
// (Integers are always numbers.)
QD_INLINE void copy_edges(const AttentionLayer& layer, const Seen& seen, uint8_t* edges,
                          Piece& piece) {
  const int last = piece.end_tile - 1;
  const int first_lane = seen.first_lane, end_lane = seen.end_lane;
  const bool is_one = last == piece.first_tile;
  if (first_lane > 0) {
    copy_lanes(piece.values[piece.first_tile], first_lane, is_one ? end_lane : kTileSlots,
               layer.padded_dim, edges);
    piece.values[piece.first_tile] = edges;
    if (is_one) return;
  }
  if (end_lane == kTileSlots) return;
  uint8_t* copy = edges + 2 * kTileSlots * layer.padded_dim;
  copy_lanes(piece.values[last], 0, end_lane, layer.padded_dim, copy);
  piece.values[last] = copy;
}

// What tokens see together is `range`.
QD_INLINE void load_piece(const AttentionLayer& layer, const AttentionTask& task,
                          const CacheLayout& layout, const Range& range, int index, uint8_t* edges,
                          Piece& piece) {
  piece.first_position_tile = index * kPieceTiles;
  const Seen seen = seen_in(layer, piece, range);
  piece.first_tile = seen.first_tile;
  piece.end_tile = seen.end_tile;
  locate_tiles(layer, task, layout, piece);
  if (layer.cache_dtype == QD_KV_BF16) copy_edges(layer, seen, edges, piece);
}

}  // namespace
