// Passes over one row of logits: the best token, weights, candidates, log probabilities, masks.
#include "candidates.h"

namespace {

using namespace qd;

constexpr int kBlockVectors = kWeightBlock / kLanes;
constexpr int kArgmaxChunk = 1024;

QD_INLINE int inside(int left) { return left < 0 ? 0 : left < kLanes ? left : kLanes; }

// Up to 16 values, the rest minus infinity.
QD_INLINE F load_or_lowest(const float* row, int count) {
  if (count == kLanes) return vec::load(row);
  return vec::first_of(vec::load_first(row, count), vec::set(-INFINITY), count);
}

// The largest value of up to kArgmaxChunk. What is no number is passed over, and makes every lane
// where it was seen of `numbers` none.
QD_INLINE float largest_of(const float* row, int size, F& numbers) {
  F best = vec::set(-INFINITY);
  for (int at = 0; at < size; at += kLanes) {
    const F x = load_or_lowest(row + at, inside(size - at));
    best = vec::max(x, best);
    const F bounded = vec::min(vec::set(1.0f), vec::max(vec::set(-1.0f), x));
    numbers = vec::add(numbers, bounded);
  }
  return vec::largest(best);
}

int32_t argmax(const float* row, int size, float* best) {
  F numbers = vec::zero();
  float found = -INFINITY;
  int start = 0;
  for (int at = 0; at < size; at += kArgmaxChunk) {
    const int left = size - at;
    const float here =
        largest_of(row + at, left < kArgmaxChunk ? left : kArgmaxChunk, numbers);
    if (here > found) {
      found = here;
      start = at;
    }
  }
  const float check = vec::sum(numbers);
  *best = check == check ? found : NAN;
  for (int at = start; at < size; ++at)
    if (row[at] == found) return at;
  return 0;
}

// e^(x * factor) for x <= 0, and 0 where that is too small to be told from e^-87.
QD_INLINE F weight(F x, F factor, F smallest) {
  return vec::max(vec::zero(), vec::sub(exponential(vec::mul(x, factor)), smallest));
}

QD_INLINE void weigh_block(float* row, int size, const Weighing& how, F factor, F smallest) {
  for (int at = 0; at < size; at += kLanes) {
    const int count = inside(size - at);
    const F x = vec::sub(vec::load_first(row + at, count), vec::set(how.best));
    vec::store_first(row + at, weight(x, factor, smallest), count);
  }
  const float least = how.min_p;
  if (least > 0.0f)
    for (int at = 0; at < size; ++at) row[at] = row[at] >= least ? row[at] : 0.0f;
}

void weigh(float* row, int size, const Weighing& how, double* sums, float* maxima) {
  // not zero, however large the temperature: zero times minus infinity is no number
  const float inverse = 1.0f / how.temperature;
  const F factor = vec::set(inverse > 1e-37f ? inverse : 1e-37f);
  const F smallest = exponential(vec::set(-87.0f));
  for (int at = 0; at < size; at += kWeightBlock) {
    const int count = size - at < kWeightBlock ? size - at : kWeightBlock;
    weigh_block(row + at, count, how, factor, smallest);
    F part[kBlockVectors];
    for (int i = 0; i < kBlockVectors; ++i) {
      const int left = inside(count - i * kLanes);
      part[i] = left > 0 ? vec::load_first(row + at + i * kLanes, left) : vec::zero();
    }
    *sums++ = vec::sum(vec::add(vec::add(part[0], part[1]), vec::add(part[2], part[3])));
    *maxima++ = vec::largest(vec::max(vec::max(part[0], part[1]), vec::max(part[2], part[3])));
  }
}

void block_maxima(const float* row, int size, float* maxima) {
  for (int at = 0; at < size; at += kWeightBlock) {
    F best = vec::set(-INFINITY);
    for (int i = at; i < size && i < at + kWeightBlock; i += kLanes)
      best = vec::max(load_or_lowest(row + i, inside(size - i)), best);
    *maxima++ = vec::largest(best);
  }
}

int collect(const float* row, int size, const float* maxima, float low, float high,
            uint64_t* keys) {
  int found = 0;
  const F from = vec::set(low), below = vec::set(high);
  for (int block = 0; block < size; block += kWeightBlock) {
    if (!(*maxima++ >= low)) continue;
    for (int at = block; at < size && at < block + kWeightBlock; at += kLanes) {
      const int count = inside(size - at);
      const F x = vec::load_first(row + at, count);
      uint32_t bits = vec::at_least(x, from) & ~vec::at_least(x, below) & ((1u << count) - 1);
      for (; bits; bits &= bits - 1) {
        const int index = at + __builtin_ctz(bits);
        keys[found++] = candidates::key_of(row[index], static_cast<uint32_t>(index));
      }
    }
  }
  return found;
}

// The sum of e^(x - best), of neighbours in floats and over all in doubles.
QD_INLINE double exponential_sum(const float* row, int size, F best) {
  double total = 0.0;
  for (int start = 0; start < size; start += kArgmaxChunk) {
    F part = vec::zero();
    for (int at = start; at < size && at < start + kArgmaxChunk; at += kLanes) {
      const int count = inside(size - at);
      const F e = exponential(vec::sub(vec::load_first(row + at, count), best));
      part = vec::add(part, vec::first_of(e, vec::zero(), count));
    }
    total += vec::sum(part);
  }
  return total;
}

void log_softmax(const float* row, int size, float best, float* out) {
  const F shift = vec::set(best);
  const F log_sum = vec::set(static_cast<float>(log(exponential_sum(row, size, shift))));
  for (int at = 0; at < size; at += kLanes) {
    const int count = inside(size - at);
    const F x = vec::sub(vec::load_first(row + at, count), shift);
    vec::store_first(out + at, vec::sub(x, log_sum), count);
  }
}

void forbid(const int32_t* words, int num_words, int size, float* row) {
  constexpr int kBits = 32;
  for (int at = 0; at < size; at += kBits) {
    const uint32_t word = at / kBits < num_words ? static_cast<uint32_t>(words[at / kBits]) : 0u;
    if (word == ~0u) continue;
    const int count = size - at < kBits ? size - at : kBits;
    for (int i = 0; i < count; ++i) row[at + i] = word >> i & 1 ? row[at + i] : -INFINITY;
  }
}

}  // namespace
