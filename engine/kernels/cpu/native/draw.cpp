// Temperature, min-p, top-k, top-p and the draw itself, without sorting the vocabulary.
//
// Weights are at most 1. Candidates are collected in levels, heaviest first, until top-k or top-p
// need no more; inside a level only as much is put in order as the question needs. All sums are
// made of the row alone, in an order that it alone decides.
#include "draw.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "candidates.h"

namespace qd {
namespace {

constexpr int kMaxLevels = 48;
constexpr float kLevelRatio = 1.0f / 8;  // between the least weights of neighbouring levels
constexpr float kLeastLevel = 1e-37f;    // below it, the last level takes all that is left
constexpr float kLeastWeight = 1e-45f;
constexpr int64_t kFew = 32;  // candidates that are simply sorted
constexpr uint32_t kBuckets = 256;

// Candidates [begin, end) of the keys; the weights of one level are all below those of the last.
struct Level {
  int64_t begin, end;
  double mass;
};

struct Keys {
  uint64_t* all;
  uint64_t* spare;
};

struct Levels {
  Keys keys;
  Level at[kMaxLevels];
  int count = 0;
  double mass = 0.0;

  int64_t size() const { return count ? at[count - 1].end : 0; }
};

double mass_of(const uint64_t* keys, int64_t begin, int64_t end) {
  double mass = 0.0;
  for (int64_t i = begin; i < end; ++i) mass += candidates::value_of(keys[i]);
  return mass;
}

void push(Levels& levels, int64_t end) {
  const int64_t begin = levels.size();
  const double mass = mass_of(levels.keys.all, begin, end);
  levels.at[levels.count++] = {begin, end, mass};
  levels.mass += mass;
}

// Keeps the levels before `index`, and this one up to `end`.
void cut(Levels& levels, int index, int64_t end) {
  const Level last = levels.at[index];
  levels.count = index;
  levels.mass = 0.0;
  for (int i = 0; i < index; ++i) levels.mass += levels.at[i].mass;
  levels.at[levels.count++] = {last.begin, end, mass_of(levels.keys.all, last.begin, end)};
  levels.mass += levels.at[index].mass;
}

// The heaviest and the lightest of some candidates, as the upper halves of their keys, which
// ascend as weights descend.
struct Span {
  uint32_t first = ~0u, last = 0;
};

Span span_of(const uint64_t* keys, int64_t begin, int64_t end) {
  Span span;
  for (int64_t i = begin; i < end; ++i) {
    const uint32_t upper = static_cast<uint32_t>(keys[i] >> 32);
    span.first = std::min(span.first, upper);
    span.last = std::max(span.last, upper);
  }
  return span;
}

// Cuts a span into at most kBuckets of the same length.
struct Buckets {
  uint32_t first;
  int shift = 0;

  explicit Buckets(const Span& span) : first(span.first) {
    while ((span.last - first) >> shift >= kBuckets) ++shift;
  }
  uint32_t of(uint64_t key) const { return (static_cast<uint32_t>(key >> 32) - first) >> shift; }
};

// The bucket in which the sum reaches `wanted`, or the last; adds those before it to `before`.
uint32_t bucket_of(const uint64_t* keys, int64_t begin, int64_t end, const Buckets& buckets,
                   double wanted, double& before) {
  double mass[kBuckets] = {};
  uint32_t last = 0;
  for (int64_t i = begin; i < end; ++i) {
    const uint32_t bucket = buckets.of(keys[i]);
    mass[bucket] += candidates::value_of(keys[i]);
    last = std::max(last, bucket);
  }
  uint32_t found = 0;
  while (found < last && before + mass[found] < wanted) before += mass[found++];
  return found;
}

// Moves the fewest of the heaviest candidates of [begin, end) to its front with which the sum,
// `before` and on, reaches `wanted`, or all; returns their end. The last one is the lightest.
// What follows them is lost.
int64_t reach(const Keys& keys, int64_t begin, int64_t end, double before, double wanted) {
  while (end - begin > kFew) {
    const Span span = span_of(keys.all, begin, end);
    if (span.first == span.last) break;
    const Buckets buckets(span);
    const uint32_t found = bucket_of(keys.all, begin, end, buckets, wanted, before);
    int64_t count = 0;
    for (int64_t i = begin, to = begin; i < end; ++i) {  // without branches: nobody could guess
      const uint64_t key = keys.all[i];
      const uint32_t bucket = buckets.of(key);
      keys.spare[count] = key;
      count += bucket == found;
      keys.all[to] = key;
      to += bucket < found;
      begin = to;
    }
    memcpy(keys.all + begin, keys.spare, static_cast<size_t>(count) * sizeof(uint64_t));
    end = begin + count;
  }
  if (!std::is_sorted(keys.all + begin, keys.all + end))
    std::sort(keys.all + begin, keys.all + end);
  while (begin < end) {
    before += candidates::value_of(keys.all[begin++]);
    if (before >= wanted) break;
  }
  return begin;
}

// The level in which the sum reaches `wanted`, or the last; and the sum before it.
int level_of(const Levels& levels, double wanted, double& before) {
  before = 0.0;
  for (int i = 0; i < levels.count - 1; ++i) {
    const double sum = before + levels.at[i].mass;
    if (sum >= wanted) return i;
    before = sum;
  }
  return levels.count - 1;
}

bool are_enough(const Levels& levels, const Draw& draw, double total) {
  return draw.top_k > 0 ? levels.size() >= draw.top_k : levels.mass >= draw.top_p * total;
}

void collect_levels(const Kernels& kernels, const float* row, int32_t size, const Draw& draw,
                    double total, const float* maxima, Levels& levels) {
  float high = 2.0f, low = kLevelRatio;
  while (true) {
    const int64_t begin = levels.size();
    const int found = kernels.collect(row, size, maxima, low, high, levels.keys.all + begin);
    if (found > 0) push(levels, begin + found);
    if (are_enough(levels, draw, total) || low <= kLeastWeight) return;
    high = low;
    low = low * kLevelRatio > kLeastLevel ? low * kLevelRatio : kLeastWeight;
  }
}

void keep_top_k(Levels& levels, int64_t top_k) {
  if (top_k >= levels.size()) return;
  int index = 0;
  while (levels.at[index].end < top_k) ++index;
  const Level level = levels.at[index];
  uint64_t* keys = levels.keys.all;
  std::nth_element(keys + level.begin, keys + top_k - 1, keys + level.end);
  cut(levels, index, top_k);
}

void keep_top_p(Levels& levels, double wanted) {
  double before;
  const int index = level_of(levels, wanted, before);
  const Level level = levels.at[index];
  cut(levels, index, reach(levels.keys, level.begin, level.end, before, wanted));
}

int64_t draw_narrow(const Kernels& kernels, const float* row, int32_t size, const Draw& draw,
                    const DrawScratch& scratch) {
  double total = 0.0;
  for (int64_t i = 0; i < num_blocks(size); ++i) total += scratch.sums[i];
  Levels levels;
  levels.keys = {scratch.keys, scratch.spare};
  collect_levels(kernels, row, size, draw, total, scratch.maxima, levels);
  if (draw.top_k > 0) {
    keep_top_k(levels, draw.top_k);
    total = levels.mass;
  }
  if (draw.top_p < 1.0) keep_top_p(levels, draw.top_p * total);
  // the first candidate with which the sum is beyond this share of the mass
  const double share = std::nextafter(draw.uniform * levels.mass, INFINITY);
  double before;
  const Level level = levels.at[level_of(levels, share, before)];
  const int64_t end = reach(levels.keys, level.begin, level.end, before, share);
  return candidates::index_of(levels.keys.all[end - 1]);
}

// The first value with which the sum is beyond `wanted`, else the last above zero; and the sum
// before it.
template <typename Value>
int64_t pass(const Value* values, int64_t count, double wanted, double& before) {
  double sum = 0.0;
  int64_t found = 0;
  before = 0.0;
  for (int64_t i = 0; i < count; ++i) {
    if (!(values[i] > 0)) continue;
    found = i;
    before = sum;
    sum += values[i];
    if (sum > wanted) break;
  }
  return found;
}

template <typename Value>
double sum_of(const Value* values, int64_t count) {
  double sum = 0.0;
  for (int64_t i = 0; i < count; ++i) sum += values[i];
  return sum;
}

// Draws among all tokens: a block of neighbours first, then one of them.
int64_t draw_wide(const float* weights, int32_t size, double uniform, const double* sums) {
  const int64_t blocks = num_blocks(size);
  const double wanted = uniform * sum_of(sums, blocks);
  double before;
  const int64_t block = pass(sums, blocks, wanted, before);
  const int64_t first = block * kWeightBlock;
  const int64_t count = std::min<int64_t>(kWeightBlock, size - first);
  const double share = std::min(1.0, (wanted - before) / sums[block]);
  const double inner = share * sum_of(weights + first, count);
  return first + pass(weights + first, count, inner, before);
}

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

int64_t draw_scratch_bytes(int32_t size) {
  return 2 * aligned(size * int64_t{sizeof(uint64_t)}) +
         aligned(num_blocks(size) * int64_t{sizeof(double)}) +
         aligned(num_blocks(size) * int64_t{sizeof(float)});
}

DrawScratch draw_scratch(void* memory, int32_t size) {
  uint8_t* keys = static_cast<uint8_t*>(memory);
  uint8_t* spare = keys + aligned(size * int64_t{sizeof(uint64_t)});
  uint8_t* sums = spare + aligned(size * int64_t{sizeof(uint64_t)});
  uint8_t* maxima = sums + aligned(num_blocks(size) * int64_t{sizeof(double)});
  return {reinterpret_cast<uint64_t*>(keys), reinterpret_cast<uint64_t*>(spare),
          reinterpret_cast<double*>(sums), reinterpret_cast<float*>(maxima)};
}

int64_t draw_token(const Kernels& kernels, float* row, int32_t size, float best, const Draw& draw,
                   const DrawScratch& scratch) {
  kernels.weigh(row, size, {best, draw.temperature, draw.min_p}, scratch.sums, scratch.maxima);
  if (draw.top_k <= 0 && draw.top_p >= 1.0)
    return draw_wide(row, size, draw.uniform, scratch.sums);
  return draw_narrow(kernels, row, size, draw, scratch);
}

}  // namespace qd
