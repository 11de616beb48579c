// What happens to one row at a time: embedding, norm, rounding, activation, rotary angles.
//
// Values that are no numbers, or infinite, stay such in their row and touch no other.
namespace {

using namespace qd;
using vec::F;
using vec::I;

// Lanes of the vector at `at` that a row of `size` values fills.
QD_INLINE int lanes_left(int at, int size) { return size - at < kLanes ? size - at : kLanes; }

// Whole vectors are loaded without a mask, which costs more on some processors.
QD_INLINE F load_lanes(const float* p, int n) {
  return n == kLanes ? vec::load(p) : vec::load_first(p, n);
}
QD_INLINE void store_lanes(float* p, F x, int n) {
  if (n == kLanes)
    vec::store(p, x);
  else
    vec::store_first(p, x, n);
}

// --- embedding

// One output channel of a packed matrix: where its values lie within each group of a panel.
struct Channel {
  const uint8_t* panel;
  int half, lane;

  Channel(const qd_segment& segment, int row, int64_t bytes_of_panel)
      : panel(segment.panels + row / kPanel * bytes_of_panel),
        half(row % kPanel / kLanes),
        lane(row % kLanes) {}

  // One of 32 fp16 numbers, of which each channel has one.
  float half_float(const uint8_t* header) const {
    float values[kLanes];
    vec::store(values, vec::load_half(header + 2 * kLanes * half));
    return values[lane];
  }
};

void embed_bf16(const qd_segment& segment, int row, float scale, int size, float* out) {
  const Channel channel(segment, row, int64_t{segment.width} * 2 * kPanel);
  const uint8_t* at = channel.panel + channel.half * 4 * kLanes + channel.lane * 4;
  for (int i = 0; i < size; ++i) {
    uint16_t value;
    memcpy(&value, at + int64_t{i / 2} * 4 * kPanel + i % 2 * 2, sizeof value);
    const uint32_t bits = static_cast<uint32_t>(value) << 16;
    memcpy(out + i, &bits, sizeof bits);
    out[i] *= scale;
  }
}

void embed_w4(const qd_segment& segment, int row, float scale, int size, float* out) {
  constexpr int kGroup = 32, kHeader = 2 * 2 * kPanel, kBytes = kHeader + kGroup * kPanel / 2;
  const Channel channel(segment, row, int64_t{segment.width / kGroup} * kBytes);
  const uint8_t* group = channel.panel;
  for (int first = 0; first < size; first += kGroup, group += kBytes) {
    const float step = channel.half_float(group);
    const float least = channel.half_float(group + 2 * kPanel);
    const uint8_t* at = group + kHeader + channel.lane * 4;
    for (int i = 0; i < kGroup && first + i < size; ++i) {
      const int both = at[i / 4 * 4 * kLanes + i % 4];
      const int q = channel.half == 0 ? both & 15 : both >> 4;
      out[first + i] = (step * static_cast<float>(q) + least) * scale;
    }
  }
}

void embed_int8(const qd_segment& segment, int row, float scale, int size, float* out) {
  const int group_size = segment.format == QD_I8_G64 ? 64 : 32;
  const int header = 2 * kPanel, bytes = header + group_size * kPanel;
  const Channel channel(segment, row, int64_t{segment.width / group_size} * bytes);
  const uint8_t* group = channel.panel;
  for (int first = 0; first < size; first += group_size, group += bytes) {
    const float step = channel.half_float(group);
    const uint8_t* at = group + header + channel.half * 4 * kLanes + channel.lane * 4;
    for (int i = 0; i < group_size && first + i < size; ++i)
      out[first + i] = step * static_cast<float>(at[i / 4 * 4 * kPanel + i % 4] - 128) * scale;
  }
}

void embed(const qd_linear& table, int token_id, float scale, int size, float* out) {
  const qd_segment* segment = table.segments;
  while (token_id >= segment->first_column + segment->rows) ++segment;
  const int row = token_id - segment->first_column;
  switch (segment->format) {
    case QD_BF16: return embed_bf16(*segment, row, scale, size, out);
    case QD_W4_G32: return embed_w4(*segment, row, scale, size, out);
    default: return embed_int8(*segment, row, scale, size, out);
  }
}

// --- norm and residual

// Source:
//   Zhang and Sennrich 2019, Root Mean Square Layer Normalization, https://arxiv.org/abs/1910.07467
void rms_norm(const float* row, const qd_norm& norm, int size, float* out) {
  F squares = vec::zero(), more = vec::zero();  // two, because a sum waits for the one before
  int i = 0;
  for (; i + 2 * kLanes <= size; i += 2 * kLanes) {
    const F a = vec::load(row + i), b = vec::load(row + i + kLanes);
    squares = vec::fma(a, a, squares);
    more = vec::fma(b, b, more);
  }
  for (; i < size; i += kLanes) {
    const F a = load_lanes(row + i, lanes_left(i, size));
    squares = vec::fma(a, a, squares);
  }
  const float mean = vec::sum(vec::add(squares, more)) / static_cast<float>(size);
  const F factor = vec::set(1.0f / sqrtf(mean + norm.epsilon));
  for (i = 0; i < size; i += kLanes) {
    const int n = lanes_left(i, size);
    const F unit = vec::mul(load_lanes(row + i, n), factor);
    store_lanes(out + i, vec::mul(unit, load_lanes(norm.weight + i, n)), n);
  }
}

void add(const float* row, int size, float* out) {
  for (int i = 0; i < size; i += kLanes) {
    const int n = lanes_left(i, size);
    store_lanes(out + i, vec::add(load_lanes(out + i, n), load_lanes(row + i, n)), n);
  }
}

// --- rounding

constexpr float kByteLimit = 127.0f;
// Groups whose values are all smaller count as zeros: the factor to bytes would be infinite.
constexpr float kLeastLargest = 1e-30f;

// Writes 32-bit units of one row, which lie kInterleave units apart.
QD_INLINE void spread_units(const void* units, int count, uint8_t* to) {
  for (int i = 0; i < count; ++i)
    memcpy(to + 4 * kInterleave * i, static_cast<const uint8_t*>(units) + 4 * i, 4);
}

QD_INLINE F padded_load(const float* values, int at, int size) {
  return at < size ? load_lanes(values + at, lanes_left(at, size)) : vec::zero();
}

void round_bf16(const float* values, int size, const Activations& into, int row) {
  const int64_t block = int64_t{row / kInterleave} * kInterleave * into.width;
  uint8_t* to = reinterpret_cast<uint8_t*>(into.bf16 + block) + row % kInterleave * 4;
  for (int i = 0; i < into.width; i += kLanes, to += 4 * kInterleave * kLanes / 2) {
    uint16_t rounded[kLanes];
    vec::store_bf16(rounded, padded_load(values, i, size));
    spread_units(rounded, lanes_left(i, into.width) / 2, to);
  }
}

QD_INLINE float largest_of(const float* values, int size, int first, int end, F& poison) {
  F most = vec::zero();
  for (int i = first; i < end; i += kLanes) {
    const F x = padded_load(values, i, size);
    most = vec::max(most, vec::abs(x));
    poison = vec::fma(x, vec::zero(), poison);  // no number if x is none, or infinite
  }
  return vec::largest(most);
}

// Values from `first` to `end` times `factor`, as bytes; returns their sum.
QD_INLINE int32_t store_group(const float* values, int size, int first, int end, float factor,
                              uint8_t* to) {
  const F times = vec::set(factor), low = vec::set(-kByteLimit), high = vec::set(kByteLimit);
  I sum = vec::izero();
  for (int i = first; i < end; i += kLanes, to += 4 * kInterleave * kLanes / 4) {
    const F scaled = vec::mul(padded_load(values, i, size), times);
    // what is no number becomes a bound, too: those are the second operands
    const I q = vec::to_int(vec::min(vec::max(scaled, low), high));
    int8_t bytes[kLanes];
    vec::store_bytes(bytes, q);
    sum = vec::iadd(sum, q);
    spread_units(bytes, kLanes / 4, to);
  }
  return vec::isum(sum);
}

void round_int8(const float* values, int size, const Activations& into, int row) {
  const int group = group_of(into.kind), groups = into.width / group;
  const int block = row / kInterleave, place = row % kInterleave;
  uint8_t* to = reinterpret_cast<uint8_t*>(into.q) +
                int64_t{block} * kInterleave * into.width + place * 4;
  const int64_t first_group = int64_t{block} * groups * kInterleave + place;
  float *scale = into.scale + first_group, *scaled_sum = into.scaled_sum + first_group;
  int32_t* sum = into.sum + first_group;
  F poison = vec::zero();
  for (int g = 0; g < groups; ++g) {
    const int first = g * group, end = first + group;
    const float most = largest_of(values, size, first, end, poison);
    const bool is_zero = most < kLeastLargest;
    const float step = is_zero ? 0.0f : most / kByteLimit;
    const int32_t total = store_group(values, size, first, end, is_zero ? 0.0f : kByteLimit / most,
                                      to + int64_t{first} * kInterleave);
    scale[g * kInterleave] = step;
    sum[g * kInterleave] = total;
    scaled_sum[g * kInterleave] = static_cast<float>(total) * step;
  }
  const float poisoned = vec::sum(poison);
  if (poisoned != poisoned)
    for (int g = 0; g < groups; ++g)
      scale[g * kInterleave] = scaled_sum[g * kInterleave] = poisoned;
}

void round_row(const float* values, int size, const Activations& into, int row) {
  if (into.kind == QD_INPUT_BF16)
    round_bf16(values, size, into, row);
  else
    round_int8(values, size, into, row);
}

// --- activation, soft-capping, rotation

void glu(int activation, const float* gate, const float* up, int size, float* out) {
  for (int i = 0; i < size; i += kLanes) {
    const int n = lanes_left(i, size);
    const F g = load_lanes(gate + i, n);
    const F activated = activation == QD_SILU ? silu(g) : gelu(g);
    store_lanes(out + i, vec::mul(activated, load_lanes(up + i, n)), n);
  }
}

void softcap(float cap, float* row, int size) {
  for (int i = 0; i < size; i += kLanes) {
    const int n = lanes_left(i, size);
    const F share = vec::div(load_lanes(row + i, n), vec::set(cap));
    store_lanes(row + i, vec::mul(vec::set(cap), hyperbolic_tangent(share)), n);
  }
}

// Angles are rounded to float before their cosine is taken, as torch does it.
void rotary(const float* frequencies, float factor, int position, int half, float* out) {
  for (int i = 0; i < half; ++i) {
    const float angle = static_cast<float>(position) * frequencies[i];
    out[i] = cosf(angle) * factor;
    out[half + i] = sinf(angle) * factor;
  }
}

}  // namespace
