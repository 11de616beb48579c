// Products of rounded rows with the panels of a matrix.
//
// The sums of a tile, some rows by one panel, stay in registers. What a row adds is independent of
// the tile: integers within a group, in any order; then floats, group after group.
//
// A panel is read from memory once and then, for the other tiles of its rows, from the caches, so
// the caller gives all rows of a step in one call and deals panels to threads. Neighbouring panels
// belong on one thread, which fetches the next while it computes. A panel of 32 x 576 takes half a
// microsecond (one row) to some 15 (128 rows): items of about 8 panels while rows are few, and of
// one from 32 rows up, cost nothing to deal and leave no thread idle for long.
namespace {

namespace product {

using qd::kInterleave;
using qd::kPanel;
using vec::B;
using vec::F;
using vec::I;

constexpr int kLine = 64;         // bytes of the caches' lines
constexpr int kStreamAhead = 4096;  // bytes between what is fetched and used of the only tile

// --- Formats with scales: a group's header and how its integers are read.

struct Nibbles {  // QD_W4_G32
  static constexpr int kGroup = 32, kHeader = 128, kBytes = kHeader + 16 * kGroup;
  static constexpr bool kHasMinima = true;

  QD_INLINE void weights(const uint8_t* group, int quad, B& low, B& high) {
    const B both = vec::load_bytes(group + kHeader + 64 * quad);
    low = vec::low_nibbles(both);
    high = vec::high_nibbles(both);
  }
  QD_INLINE I start(int32_t) { return vec::izero(); }
  QD_INLINE I dot(I c, B a, B b) { return vec::dot_nibbles(c, a, b); }
};

template <int Group>
struct Bytes {  // QD_I8_G32, QD_I8_G64
  static constexpr int kGroup = Group, kHeader = 64, kBytes = kHeader + 32 * kGroup;
  static constexpr bool kHasMinima = false;

  QD_INLINE void weights(const uint8_t* group, int quad, B& low, B& high) {
    low = vec::load_bytes(group + kHeader + 128 * quad);
    high = vec::load_bytes(group + kHeader + 128 * quad + 64);
  }
  // Undoes the 128 that each stored weight has too much.
  QD_INLINE I start(int32_t sum) { return vec::iset(-128 * sum); }
  QD_INLINE I dot(I c, B a, B b) { return vec::dot_bytes(c, a, b); }
};

// Lines of memory that a tile fetches on its way: so many at each of its steps.
struct Ahead {
  const uint8_t* at;
  int lines;
};

QD_INLINE void fetch(Ahead& ahead) {
  for (int i = 0; i < ahead.lines; ++i) vec::prefetch(ahead.at + kLine * i);
  ahead.at += kLine * ahead.lines;
}

// What a tile computes: its first row is at `values` (and `scales`, `sums`) in a block of rows.
struct Tile {
  const uint8_t* panel;
  const uint8_t* values;
  const float* scales;
  const int32_t* sums;
  const float* scaled_sums;
  int width;
  Ahead ahead;
  float* out;  // [rows][kPanel]
};

// --- A tile of a format with scales.

template <class Format, int Rows>
QD_INLINE void add_products(const uint8_t* group, const uint8_t* values, I (&dots)[Rows][2]) {
#pragma GCC unroll 4
  for (int quad = 0; quad < Format::kGroup / 4; ++quad) {
    B low, high;
    Format::weights(group, quad, low, high);
#pragma GCC unroll 12
    for (int row = 0; row < Rows; ++row) {
      const B inputs = vec::spread(values + 4 * (kInterleave * quad + row));
      dots[row][0] = Format::dot(dots[row][0], low, inputs);
      dots[row][1] = Format::dot(dots[row][1], high, inputs);
    }
  }
}

// sums += scale of the row * (scales of the channels * dots + minima of the channels * sum)
template <class Format, int Rows>
QD_INLINE void add_group(const uint8_t* group, const float* scales, const float* scaled_sums,
                         const I (&dots)[Rows][2], F (&sums)[Rows][2]) {
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const F channel_scales = vec::load_half(group + 32 * half);
    const F minima = Format::kHasMinima ? vec::load_half(group + 64 + 32 * half) : vec::zero();
#pragma GCC unroll 12
    for (int row = 0; row < Rows; ++row) {
      F& sum = sums[row][half];
      const F scaled = vec::mul(vec::to_float(dots[row][half]), vec::set(scales[row]));
      sum = vec::fma(scaled, channel_scales, sum);
      if constexpr (Format::kHasMinima) sum = vec::fma(vec::set(scaled_sums[row]), minima, sum);
    }
  }
}

template <class Format, int Rows>
__attribute__((noinline)) void scaled_tile(const Tile& tile) {
  F sums[Rows][2];
  for (int row = 0; row < Rows; ++row) sums[row][0] = sums[row][1] = vec::zero();
  Ahead ahead = tile.ahead;
  const uint8_t* group = tile.panel;
  const uint8_t* values = tile.values;
  const float *scales = tile.scales, *scaled_sums = tile.scaled_sums;
  const int32_t* row_sums = tile.sums;
  for (int left = tile.width; left > 0; left -= Format::kGroup) {
    fetch(ahead);
    I dots[Rows][2];
    for (int row = 0; row < Rows; ++row) dots[row][0] = dots[row][1] = Format::start(row_sums[row]);
    add_products<Format>(group, values, dots);
    add_group<Format>(group, scales, scaled_sums, dots, sums);
    group += Format::kBytes;
    values += kInterleave * Format::kGroup;
    scales += kInterleave;
    scaled_sums += kInterleave;
    row_sums += kInterleave;
  }
  for (int row = 0; row < Rows; ++row)
    for (int half = 0; half < 2; ++half)
      vec::store(tile.out + kPanel * row + 16 * half, sums[row][half]);
}

// --- A tile of bfloat16.

template <int Rows>
__attribute__((noinline)) void bf16_tile(const Tile& tile) {
  F sums[Rows][2];
  for (int row = 0; row < Rows; ++row) sums[row][0] = sums[row][1] = vec::zero();
  Ahead ahead = tile.ahead;
  const uint8_t* weights = tile.panel;
  const uint8_t* values = tile.values;
  const int64_t block = int64_t{2} * kInterleave * tile.width;  // bytes of a block of rows
  for (int left = tile.width; left > 0; left -= 2) {
    fetch(ahead);
    const B low = vec::load_bytes(weights), high = vec::load_bytes(weights + 64);
#pragma GCC unroll 12
    for (int row = 0; row < Rows; ++row) {
      const B inputs = vec::spread(values + row / kInterleave * block + 4 * (row % kInterleave));
      sums[row][0] = vec::dot_bf16(sums[row][0], low, inputs);
      sums[row][1] = vec::dot_bf16(sums[row][1], high, inputs);
    }
    weights += 128;
    values += 4 * kInterleave;
  }
  for (int row = 0; row < Rows; ++row)
    for (int half = 0; half < 2; ++half)
      vec::store(tile.out + kPanel * row + 16 * half, sums[row][half]);
}

// --- Where the sums go.

// Adds half a panel's bias, if there is one.
QD_INLINE F biased(const float* sums, const float* bias) {
  return bias ? vec::add(vec::load(sums), vec::load(bias)) : vec::load(sums);
}

// The first `columns` of 16.
QD_INLINE void put_half(bool adds, F value, int columns, float* out) {
  if (columns == 16) {
    vec::store(out, adds ? vec::add(vec::load(out), value) : value);
  } else if (columns > 0) {
    value = adds ? vec::add(vec::load_first(out, columns), value) : value;
    vec::store_first(out, value, columns);
  }
}

struct Target {
  const qd::Output& out;
  const float* bias;  // of the panel
  int first_column;   // of the panel
  int columns;        // of the panel that are written, if it is none of a gate and up matrix
};

QD_INLINE void put_row(const Target& target, const float* sums, float* out) {
  const F first = biased(sums, target.bias);
  const F second = biased(sums + 16, target.bias ? target.bias + 16 : nullptr);
  switch (target.out.store) {
    case qd::Store::kSet:
    case qd::Store::kAdd: {
      const bool adds = target.out.store == qd::Store::kAdd;
      put_half(adds, first, target.columns < 16 ? target.columns : 16, out);
      put_half(adds, second, target.columns - 16, out + 16);
      break;
    }
    case qd::Store::kSilu: vec::store(out, vec::mul(silu(first), second)); break;
    case qd::Store::kGelu: vec::store(out, vec::mul(gelu(first), second)); break;
    case qd::Store::kSplit:
      vec::store(out, first);
      vec::store(out + target.out.up_offset, second);
      break;
  }
}

__attribute__((noinline)) void put_rows(const Target& target, const float* sums, int row,
                                        int rows) {
  float* out = target.out.data + row * target.out.stride + target.first_column;
  for (int i = 0; i < rows; ++i, sums += kPanel, out += target.out.stride)
    put_row(target, sums, out);
}

// --- From one panel and any number of rows to tiles.

// How each format is tiled: `kRows` at most, `run` for so many.
template <class Format>
struct Scaled {
  static constexpr int kRows = vec::kRows;
  static constexpr int kStep = Format::kGroup;       // inputs of a step of the tile,
  static constexpr int kStepBytes = Format::kBytes;  // and bytes of its weights
  static constexpr int kValueBytes = 1;

  template <int Rows>
  QD_INLINE void run(const Tile& tile) {
    scaled_tile<Format, Rows>(tile);
  }
};

struct Bf16 {
  static constexpr int kRows = vec::kBf16Rows;
  static constexpr int kStep = 2;
  static constexpr int kStepBytes = 128;
  static constexpr int kValueBytes = 2;

  template <int Rows>
  QD_INLINE void run(const Tile& tile) {
    bf16_tile<Rows>(tile);
  }
};

template <class Kind, int Rows = Kind::kRows>
QD_INLINE void run_tile(int rows, const Tile& tile) {
  if constexpr (Rows > 1)
    if (rows < Rows) return run_tile<Kind, Rows - 1>(rows, tile);
  Kind::template run<Rows>(tile);
}

// Rows of the next tile. Two middling tiles are faster than a large and a tiny one, but only
// whole blocks can be moved.
template <class Kind>
int tile_rows(int left) {
  if (Kind::kRows > kInterleave && left > Kind::kRows && left <= Kind::kRows + kInterleave)
    return kInterleave;
  return left < Kind::kRows ? left : Kind::kRows;
}

// A single tile fetches what it needs itself a little later, for it is bound by memory; several
// fetch the next panel together.
template <class Kind>
Ahead ahead_of_tile(const uint8_t* panel, int64_t panel_bytes, int steps, int tile, int tiles) {
  const int lines = Kind::kStepBytes / kLine;
  if (tiles == 1) return {panel + kStreamAhead, lines};
  const int share = (lines + tiles - 1) / tiles;
  if (share * tile >= lines) return {panel, 0};
  return {panel + panel_bytes + int64_t{kLine} * share * steps * tile, share};
}

template <class Kind>
Tile tile_at(const qd::Activations& in, int row, int width) {
  const int64_t block = row / kInterleave, within = row % kInterleave;
  Tile tile;
  tile.width = width;
  const auto* values = in.kind == QD_INPUT_BF16 ? reinterpret_cast<const uint8_t*>(in.bf16)
                                                : reinterpret_cast<const uint8_t*>(in.q);
  tile.values = values + block * kInterleave * width * Kind::kValueBytes + 4 * within;
  const int64_t scale = block * (width / Kind::kStep) * kInterleave + within;
  tile.scales = in.scale ? in.scale + scale : nullptr;
  tile.sums = in.sum ? in.sum + scale : nullptr;
  tile.scaled_sums = in.scaled_sum ? in.scaled_sum + scale : nullptr;
  return tile;
}

template <class Kind>
void all_rows(const qd_segment& segment, const qd::Activations& in, int row, int rows, int panel,
              const Target& target) {
  static_assert(kInterleave % Kind::kRows == 0 || Kind::kRows % kInterleave == 0,
                "tiles begin in blocks of rows so that all of theirs are at constant offsets");
  alignas(64) float sums[Kind::kRows * kPanel];
  const int steps = segment.width / Kind::kStep;
  const int64_t panel_bytes = int64_t{steps} * Kind::kStepBytes;
  const uint8_t* weights = segment.panels + panel * panel_bytes;
  const int tiles = (rows + Kind::kRows - 1) / Kind::kRows;
  int done = 0;
  for (int index = 0; done < rows; ++index) {
    const int count = tile_rows<Kind>(rows - done);
    Tile tile = tile_at<Kind>(in, row + done, segment.width);
    tile.panel = weights;
    tile.ahead = ahead_of_tile<Kind>(weights, panel_bytes, steps, index, tiles);
    tile.out = sums;
    run_tile<Kind>(count, tile);
    put_rows(target, sums, row + done, count);
    done += count;
  }
}

QD_INLINE bool is_gated(qd::Store store) {
  return store != qd::Store::kSet && store != qd::Store::kAdd;
}

}  // namespace product

void linear(const qd_segment& segment, const qd::Activations& in, int row, int rows, int panel,
            const qd::Output& out) {
  using namespace product;
  const int panel_columns = is_gated(out.store) ? kPanel / 2 : kPanel;
  const int columns = segment.rows - kPanel * panel;
  const Target target = {out, segment.bias ? segment.bias + kPanel * panel : nullptr,
                         segment.first_column + panel_columns * panel,
                         columns < kPanel ? columns : kPanel};
  switch (segment.format) {
    case QD_BF16: all_rows<Bf16>(segment, in, row, rows, panel, target); break;
    case QD_W4_G32: all_rows<Scaled<Nibbles>>(segment, in, row, rows, panel, target); break;
    case QD_I8_G32: all_rows<Scaled<Bytes<32>>>(segment, in, row, rows, panel, target); break;
    case QD_I8_G64: all_rows<Scaled<Bytes<64>>>(segment, in, row, rows, panel, target); break;
  }
}

}  // namespace
