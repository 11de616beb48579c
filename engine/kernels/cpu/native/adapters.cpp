// Adds what LoRA adapters change in a product: each adapter to its own rows.
#include <algorithm>

#include "forward.h"

namespace qd {
namespace {

const qd_update_list& list_of(const qd_adapter_rows& adapter, const LowRank& what) {
  return adapter.lists[what.layer * kNumParts + static_cast<int>(what.part)];
}

int chunks_of(const qd_adapter_rows& adapter, const LowRank& what) {
  if (list_of(adapter, what).count == 0) return 0;
  return static_cast<int>((adapter.num_rows + kLowRankRows - 1) / kLowRankRows);
}

}  // namespace

bool has_updates(const LowRank& what) {
  for (int i = 0; i < what.step.num_adapters; ++i)
    if (chunks_of(what.step.adapters[i], what) > 0) return true;
  return false;
}

void add_updates(Engine& engine, const LowRank& what, const Rows& in, const Rows& out) {
  const auto add_to = [&](const qd_adapter_rows& adapter, int chunk, int thread) {
    const qd_update_list& list = list_of(adapter, what);
    const int64_t first = int64_t{chunk} * kLowRankRows;
    const int count = static_cast<int>(std::min<int64_t>(kLowRankRows, adapter.num_rows - first));
    for (int64_t i = 0; i < list.count; ++i)
      engine.kernels.low_rank(list.updates[i], adapter.rows + first, count, in.data, in.stride,
                              engine.scratch.low_rank_of_thread.at(thread), out.data, out.stride);
  };
  int chunks = 0;
  for (int i = 0; i < what.step.num_adapters; ++i)
    chunks += chunks_of(what.step.adapters[i], what);
  parallel(engine.pool, chunks, [&](int chunk, int thread) {
    const qd_adapter_rows* adapter = what.step.adapters;
    for (; chunk >= chunks_of(*adapter, what); ++adapter) chunk -= chunks_of(*adapter, what);
    add_to(*adapter, chunk, thread);
  });
}

}  // namespace qd
