// The C entries for rows of logits: checks, and one row after the other on the pool's threads.
#include <algorithm>
#include <cmath>

#include "candidates.h"
#include "draw.h"
#include "isa.h"
#include "threads.h"

namespace qd {
namespace {

bool is_sound(const qd_logits& logits) {
  return logits.num_rows >= 0 && logits.size > 0 && logits.stride >= logits.size &&
         (logits.values != nullptr || logits.num_rows == 0);
}

float* row_at(const qd_logits& logits, int index) {
  return logits.values + (logits.rows ? logits.rows[index] : index) * logits.stride;
}

// Runs `body(kernels, row, index, thread)` for each row.
template <typename Body>
int32_t for_rows(qd_pool* pool, const char* isa, const qd_logits* logits, Body&& body) {
  const Kernels* kernels = kernels_named(isa);
  if (kernels == nullptr || !is_sound(*logits)) return QD_BAD_VALUE;
  parallel(pool_of(pool), logits->num_rows, [&](int index, int thread) {
    body(*kernels, row_at(*logits, index), index, thread);
  });
  return QD_OK;
}

bool is_drawn(const qd_draws& draws, int index, float best) {
  return draws.temperature[index] > 0.0f && std::isfinite(best);
}

// The least of `num` block maxima: so many values at least are not below it.
float bound_of_best(const float* maxima, int64_t blocks, int32_t num, uint64_t* keys) {
  if (num > blocks) return -INFINITY;
  for (int64_t i = 0; i < blocks; ++i)
    keys[i] = candidates::key_of(maxima[i], static_cast<uint32_t>(i));
  std::nth_element(keys, keys + num - 1, keys + blocks);
  return candidates::value_of(keys[num - 1]);
}

void best_of_row(const Kernels& kernels, const float* row, int32_t size, int32_t num,
                 const DrawScratch& scratch, float* values, int64_t* ids) {
  kernels.block_maxima(row, size, scratch.maxima);
  const float low = bound_of_best(scratch.maxima, num_blocks(size), num, scratch.keys);
  const int found = kernels.collect(row, size, scratch.maxima, low, NAN, scratch.keys);
  const int kept = std::min(found, num);
  std::partial_sort(scratch.keys, scratch.keys + kept, scratch.keys + found);
  for (int i = 0; i < num; ++i) {  // fewer are found only where some are no numbers
    values[i] = i < kept ? candidates::value_of(scratch.keys[i]) : NAN;
    ids[i] = i < kept ? candidates::index_of(scratch.keys[i]) : 0;
  }
}

float penalised(float value, int64_t outputs, const qd_penalties& by) {
  if (by.repetition != 1.0f) value = value > 0.0f ? value / by.repetition : value * by.repetition;
  value -= by.frequency * static_cast<float>(outputs);
  return outputs > 0 ? value - by.presence : value;
}

}  // namespace
}  // namespace qd

using namespace qd;

int64_t qd_sampling_bytes(qd_pool* pool, int32_t size) {
  if (size <= 0) return QD_BAD_VALUE;
  return num_threads(pool_of(pool)) * draw_scratch_bytes(size);
}

int32_t qd_greatest(qd_pool* pool, const char* isa, const qd_logits* logits, float* best,
                    int64_t* ids) {
  return for_rows(pool, isa, logits, [&](const Kernels& kernels, float* row, int index, int) {
    ids[index] = kernels.argmax(row, logits->size, best + index);
  });
}

int32_t qd_draw(qd_pool* pool, const char* isa, const qd_logits* logits, const qd_draws* draws,
                void* scratch, float* best, int64_t* ids) {
  const int64_t bytes = draw_scratch_bytes(logits->size);
  return for_rows(pool, isa, logits, [&](const Kernels& kernels, float* row, int i, int thread) {
    ids[i] = kernels.argmax(row, logits->size, best + i);
    if (!is_drawn(*draws, i, best[i])) return;
    const Draw draw = {draws->temperature[i], draws->min_p[i], draws->top_k[i], draws->top_p[i],
                       draws->uniform[i]};
    const DrawScratch own = draw_scratch(static_cast<uint8_t*>(scratch) + thread * bytes,
                                         logits->size);
    ids[i] = draw_token(kernels, row, logits->size, best[i], draw, own);
  });
}

int32_t qd_log_softmax(qd_pool* pool, const char* isa, const qd_logits* logits, float* out) {
  return for_rows(pool, isa, logits, [&](const Kernels& kernels, float* row, int index, int) {
    float best;
    kernels.argmax(row, logits->size, &best);
    kernels.log_softmax(row, logits->size, best, out + int64_t{index} * logits->size);
  });
}

int32_t qd_best(qd_pool* pool, const char* isa, const qd_logits* logits, int32_t num, void* scratch,
                float* values, int64_t* ids) {
  if (num <= 0 || num > logits->size) return QD_BAD_VALUE;
  const int64_t bytes = draw_scratch_bytes(logits->size);
  return for_rows(pool, isa, logits, [&](const Kernels& kernels, float* row, int i, int thread) {
    const DrawScratch own = draw_scratch(static_cast<uint8_t*>(scratch) + thread * bytes,
                                         logits->size);
    const int64_t at = int64_t{i} * num;
    best_of_row(kernels, row, logits->size, num, own, values + at, ids + at);
  });
}

int32_t qd_forbid(qd_pool* pool, const char* isa, const qd_logits* logits,
                  const int32_t* const* words, const int32_t* num_words) {
  return for_rows(pool, isa, logits, [&](const Kernels& kernels, float* row, int index, int) {
    kernels.forbid(words[index], num_words[index], logits->size, row);
  });
}

void qd_penalise(float* row, int32_t size, const qd_penalties* penalties) {
  for (int64_t i = 0; i < penalties->count; ++i) {
    const int64_t id = penalties->ids[i];
    if (id >= 0 && id < size) row[id] = penalised(row[id], penalties->outputs[i], *penalties);
  }
}
