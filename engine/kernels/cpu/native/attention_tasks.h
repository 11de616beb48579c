// Cuts the attention of a step into tasks for threads.
#pragma once
#include <vector>

#include "cache_layout.h"

namespace qd {

// What the cutting of one kind of layer (full attention, or a sliding window) depends on.
struct AttentionCut {
  int num_heads, num_kv_heads, head_dim;
  int block_size;
  int window;  // 0: the whole context is seen; else `window_blocks` of the requests are used
  int num_threads;
};

// All layers of a kind use the same plan, one after the other.
struct AttentionPlan {
  std::vector<AttentionTask> tasks;     // may run in any order and at once; longest first
  std::vector<AttentionTask> combines;  // may run at once, after all tasks; often none
  std::vector<float> partials;          // where `partial` of both point
};

// Fills `plan`, whose memory is used again. A context is cut over tasks only where requests are too
// few to keep the threads busy; bits do not depend on it. Throws std::bad_alloc.
void plan_attention(const AttentionCut& cut, const qd_request* requests, int num_requests,
                    AttentionPlan& plan);

}  // namespace qd
