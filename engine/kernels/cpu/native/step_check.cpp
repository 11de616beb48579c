// Refuses steps whose values would make the kernels read or write out of bounds.
#include <cstring>

#include "forward.h"

namespace qd {
namespace {

bool are_within(const int32_t* values, int64_t count, int32_t end) {
  if (count > 0 && values == nullptr) return false;
  for (int64_t i = 0; i < count; ++i)
    if (values[i] < 0 || values[i] >= end) return false;
  return true;
}

bool has_sound_counts(const Engine& engine, const qd_step& step) {
  return step.num_tokens > 0 && step.num_tokens <= engine.max_tokens && step.num_requests > 0 &&
         step.num_requests <= engine.max_requests && step.requests != nullptr &&
         step.num_sampled >= 0 && step.num_sampled <= engine.max_tokens &&
         (step.num_sampled == 0 || step.logits != nullptr) && step.num_adapters >= 0 &&
         (step.num_adapters == 0 || step.adapters != nullptr);
}

// Whether the blocks of positions [first, end) are within the cache.
bool has_blocks(const int32_t* blocks, int first, int end, int block_size, int num_blocks) {
  const int from = first / block_size, to = (end - 1) / block_size + 1;
  return blocks != nullptr && are_within(blocks + from, to - from, num_blocks);
}

bool is_sound(const Engine& engine, const qd_request& request) {
  const qd_model& model = engine.model;
  const int64_t end = int64_t{request.start_position} + request.num_rows;
  if (request.start_position < 0 || request.num_blocks < 0 || end > INT32_MAX ||
      end > int64_t{request.num_blocks} * model.block_size)
    return false;
  const int seen = first_seen(request.start_position, model.window);
  return (!engine.has_full || has_blocks(request.blocks, 0, static_cast<int>(end),
                                         model.block_size, model.num_blocks)) &&
         (!engine.has_window || has_blocks(request.window_blocks, seen, static_cast<int>(end),
                                           model.block_size, model.num_window_blocks));
}

bool has_sound_requests(const Engine& engine, const qd_step& step) {
  int row = 0;
  for (int i = 0; i < step.num_requests; ++i) {
    const qd_request& request = step.requests[i];
    if (request.first_row != row || request.num_rows < 1 ||
        request.num_rows > step.num_tokens - row || !is_sound(engine, request))
      return false;
    row += request.num_rows;
  }
  return row == step.num_tokens;
}

// Columns that updates of a product may have; those of gate and up lie one after the other, the
// gate's padded.
struct PartShape {
  int width, columns;
};

PartShape shape_of(const Engine& engine, int part) {
  const qd_model& model = engine.model;
  switch (static_cast<Part>(part)) {
    case Part::kQkv: return {model.hidden_size, engine.qkv_columns()};
    case Part::kOutput: return {engine.head_columns(), model.hidden_size};
    case Part::kGateUp: return {model.hidden_size, 2 * engine.gate_columns()};
    default: return {model.inner_size, model.hidden_size};
  }
}

bool is_sound(const qd_update& update, const PartShape& shape) {
  return update.down != nullptr && update.up != nullptr && update.rank > 0 &&
         update.rank <= kMaxLowRank && update.width == shape.width && update.first_column >= 0 &&
         update.columns > 0 && update.first_column <= shape.columns - update.columns;
}

bool has_sound_lists(const Engine& engine, const qd_adapter_rows& adapter) {
  if (adapter.lists == nullptr) return false;
  for (int i = 0; i < engine.model.num_layers * kNumParts; ++i) {
    const qd_update_list& list = adapter.lists[i];
    if (list.count < 0 || (list.count > 0 && list.updates == nullptr)) return false;
    for (int64_t u = 0; u < list.count; ++u)
      if (!is_sound(list.updates[u], shape_of(engine, i % kNumParts))) return false;
  }
  return true;
}

// No row may be in two adapters, or twice in one: threads would change it at once.
bool has_rows_of_its_own(const qd_adapter_rows& adapter, uint8_t* has_adapter) {
  for (int64_t i = 0; i < adapter.num_rows; ++i) {
    if (has_adapter[adapter.rows[i]]) return false;
    has_adapter[adapter.rows[i]] = 1;
  }
  return true;
}

bool has_sound_adapters(const Engine& engine, const qd_step& step) {
  if (step.num_adapters > 0) memset(engine.scratch.has_adapter, 0, step.num_tokens);
  for (int i = 0; i < step.num_adapters; ++i) {
    const qd_adapter_rows& adapter = step.adapters[i];
    if (adapter.num_rows < 0 || adapter.num_rows > step.num_tokens ||
        !are_within(adapter.rows, adapter.num_rows, step.num_tokens) ||
        !has_rows_of_its_own(adapter, engine.scratch.has_adapter) ||
        !has_sound_lists(engine, adapter))
      return false;
  }
  return true;
}

}  // namespace

bool is_sound(const Engine& engine, const qd_step& step) {
  return has_sound_counts(engine, step) &&
         are_within(step.token_ids, step.num_tokens, engine.model.vocab_size) &&
         are_within(step.sampled_rows, step.num_sampled, step.num_tokens) &&
         has_sound_requests(engine, step) && has_sound_adapters(engine, step);
}

}  // namespace qd
