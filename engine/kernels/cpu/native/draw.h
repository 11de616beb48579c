// Draws one token from a row of logits; sampling.cpp does so for whole batches.
#pragma once
#include "kernels.h"

namespace qd {

struct Draw {
  float temperature, min_p;
  int64_t top_k;  // 0: off
  double top_p;   // 1: off
  double uniform;
};

// Memory that drawing from one row needs.
struct DrawScratch {
  uint64_t* keys;   // [size]
  uint64_t* spare;  // [size]
  double* sums;     // [num_blocks(size)]
  float* maxima;    // [num_blocks(size)]
};

inline int64_t num_blocks(int64_t size) { return (size + kWeightBlock - 1) / kWeightBlock; }

int64_t draw_scratch_bytes(int32_t size);  // a multiple of 64
DrawScratch draw_scratch(void* memory, int32_t size);

// `best` is the row's largest logit, finite. Overwrites the row with weights.
int64_t draw_token(const Kernels& kernels, float* row, int32_t size, float best, const Draw& draw,
                   const DrawScratch& scratch);

}  // namespace qd
