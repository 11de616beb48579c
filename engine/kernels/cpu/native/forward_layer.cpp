// One decoder layer: attention, then the gated feed-forward block, each added to the residual.
#include <cstring>

#include "forward.h"

namespace qd {
namespace {

// A layer in a step, and the rows that it still computes.
struct At {
  Engine& engine;
  const qd_step& step;
  int index;
  int num_rows;

  const qd_layer& layer() const { return engine.layers[index]; }
  bool is_last() const { return index + 1 == engine.model.num_layers; }
  LowRank low_rank(Part part) const { return {step, index, part}; }
};

AttentionLayer attention_of(const At& at) {
  const qd_model& model = at.engine.model;
  const qd_layer& layer = at.layer();
  const Scratch& scratch = at.engine.scratch;
  AttentionLayer found{};
  found.num_heads = model.num_heads;
  found.num_kv_heads = model.num_kv_heads;
  found.head_dim = model.head_dim;
  found.padded_dim = round_up(model.head_dim, kLanes);
  found.rotary_dim = model.rotary_dim;
  found.window = layer.is_window ? model.window : 0;
  found.scale = model.attention_scale;
  found.softcap = model.attention_softcap;
  found.query_norm = layer.query_norm;
  found.key_norm = layer.key_norm;
  found.cache_dtype = model.cache_dtype;
  found.block_size = model.block_size;
  found.cache = layer.cache;
  found.qkv = scratch.qkv.data;
  found.qkv_stride = scratch.qkv.stride;
  found.rotary = at.engine.rotary_of(layer).data;
  found.queries = scratch.queries;
  found.out = scratch.mixed.data;
  found.out_stride = scratch.mixed.stride;
  return found;
}

void attend(const At& at) {
  Engine& engine = at.engine;
  const Kernels& kernels = engine.kernels;
  const Scratch& scratch = engine.scratch;
  const AttentionLayer layer = attention_of(at);
  const int32_t* blocks = at.layer().is_window ? scratch.window_blocks : scratch.blocks;
  each_row(engine, at.num_rows, [&](int row, int) {
    kernels.store_token(layer, row, scratch.positions[row], blocks[row]);
  });
  const AttentionPlan& plan = at.layer().is_window ? engine.window_plan : engine.full_plan;
  parallel_in_order(engine.pool, static_cast<int>(plan.tasks.size()), [&](int task, int thread) {
    kernels.attend(layer, plan.tasks[task], scratch.attention_of_thread.at(thread));
  });
  parallel(engine.pool, static_cast<int>(plan.combines.size()),
           [&](int task, int) { kernels.combine(layer, plan.combines[task]); });
}

void project_heads(const At& at) {
  Engine& engine = at.engine;
  const Rows& out = engine.scratch.qkv;
  multiply(engine, at.layer().qkv, at.num_rows, {Store::kSet, out.data, out.stride});
  if (has_updates(at.low_rank(Part::kQkv)))
    add_updates(engine, at.low_rank(Part::kQkv), engine.scratch.normed, out);
}

// The product of rounded `inputs` is added to the residual, or kept where a norm comes before.
void multiply_into_residual(const At& at, Part part, const Rows& inputs, const qd_norm& out_norm) {
  Engine& engine = at.engine;
  const qd_linear& linear = part == Part::kOutput ? at.layer().output : at.layer().down;
  const bool is_kept = out_norm.weight != nullptr;
  const Rows& out = is_kept ? engine.scratch.product : engine.scratch.hidden;
  multiply(engine, linear, at.num_rows, {is_kept ? Store::kSet : Store::kAdd, out.data, out.stride});
  if (has_updates(at.low_rank(part))) add_updates(engine, at.low_rank(part), inputs, out);
}

void add_normed(const At& at, const qd_norm& norm, int row, int thread) {
  Engine& engine = at.engine;
  const int size = engine.model.hidden_size;
  float* normed = engine.scratch.row_of_thread.at(thread);
  engine.kernels.rms_norm(engine.scratch.product.at(row), norm, size, normed);
  engine.kernels.add(normed, size, engine.scratch.hidden.at(row));
}

// What the activation makes of gate and up. With adapters the two are kept apart until these have
// changed them; the bits of other rows are the same.
void activate(const At& at) {
  Engine& engine = at.engine;
  const qd_model& model = engine.model;
  const Rows &gate = engine.scratch.gate, &up = engine.scratch.up;
  const LowRank low_rank = at.low_rank(Part::kGateUp);
  Output out{model.activation == QD_SILU ? Store::kSilu : Store::kGelu, gate.data, gate.stride};
  if (!has_updates(low_rank)) return multiply(engine, at.layer().gate_up, at.num_rows, out);
  out.store = Store::kSplit;
  out.up_offset = up.data - gate.data;
  multiply(engine, at.layer().gate_up, at.num_rows, out);
  add_updates(engine, low_rank, engine.scratch.normed, gate);
  each_row(engine, at.num_rows, [&](int row, int) {
    engine.kernels.glu(model.activation, gate.at(row), up.at(row), model.inner_size, gate.at(row));
  });
}

void round_rows(const At& at, const Rows& rows, int size, const qd_linear& linear) {
  const Activations inputs = at.engine.inputs_of(linear);
  each_row(at.engine, at.num_rows, [&](int row, int) {
    at.engine.kernels.round_row(rows.at(row), size, inputs, row);
  });
}

// Behind the attention of the last layer only those rows matter that are sampled: moves them to
// the front, and returns how many there are.
int keep_sampled(const At& at) {
  const Scratch& scratch = at.engine.scratch;
  const size_t hidden_bytes = at.engine.model.hidden_size * sizeof(float);
  const size_t mixed_bytes = at.engine.head_columns() * sizeof(float);
  for (int row = 0; row < at.step.num_sampled; ++row) {
    const int from = at.step.sampled_rows[row];  // row or behind: they ascend
    if (from == row) continue;
    memmove(scratch.hidden.at(row), scratch.hidden.at(from), hidden_bytes);
    memmove(scratch.mixed.at(row), scratch.mixed.at(from), mixed_bytes);
  }
  return at.step.num_sampled;
}

}  // namespace

void run_layer(Engine& engine, const qd_step& step, int index) {
  At at{engine, step, index, step.num_tokens};
  const qd_layer& layer = at.layer();
  const Scratch& scratch = engine.scratch;
  project_heads(at);
  attend(at);
  if (at.is_last() && engine.narrows) at.num_rows = keep_sampled(at);
  if (at.num_rows == 0) return;
  round_rows(at, scratch.mixed, engine.head_columns(), layer.output);
  multiply_into_residual(at, Part::kOutput, scratch.mixed, layer.attention_out_norm);
  each_row(engine, at.num_rows, [&](int row, int thread) {
    if (layer.attention_out_norm.weight) add_normed(at, layer.attention_out_norm, row, thread);
    prepare_row(engine, layer.mlp_norm, layer.gate_up, row, row, thread);
  });
  activate(at);
  round_rows(at, scratch.gate, engine.model.inner_size, layer.down);
  multiply_into_residual(at, Part::kDown, scratch.gate, layer.mlp_out_norm);
  const qd_layer* next = at.is_last() ? nullptr : &layer + 1;
  if (layer.mlp_out_norm.weight == nullptr && next == nullptr) return;
  each_row(engine, at.num_rows, [&](int row, int thread) {
    if (layer.mlp_out_norm.weight) add_normed(at, layer.mlp_out_norm, row, thread);
    if (next) prepare_row(engine, next->attention_norm, next->qkv, row, row, thread);
  });
}

}  // namespace qd
