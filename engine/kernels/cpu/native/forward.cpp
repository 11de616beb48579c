// The forward pass of one step: embedding, all layers, logits.
#include "forward.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <new>

#include "isa.h"

namespace qd {

Activations Engine::inputs_of(const qd_linear& linear) const {
  Activations inputs;
  inputs.kind = linear.input;
  inputs.width = linear.width;
  inputs.q = reinterpret_cast<int8_t*>(scratch.rounded);
  inputs.bf16 = reinterpret_cast<uint16_t*>(scratch.rounded);
  inputs.scale = scratch.scales;
  inputs.sum = scratch.sums;
  inputs.scaled_sum = scratch.scaled_sums;
  return inputs;
}

Rows Engine::rotary_of(const qd_layer& layer) const {
  return layer.is_window && !shares_rotary ? scratch.window_rotary : scratch.rotary;
}

void prepare_row(Engine& engine, const qd_norm& norm, const qd_linear& linear, int from, int to,
                 int thread) {
  const int size = engine.model.hidden_size;
  // adapters read the row once more, after the product
  float* normed = engine.keeps_inputs ? engine.scratch.normed.at(to)
                                      : engine.scratch.row_of_thread.at(thread);
  engine.kernels.rms_norm(engine.scratch.hidden.at(from), norm, size, normed);
  engine.kernels.round_row(normed, size, engine.inputs_of(linear), to);
}

namespace {

constexpr int kCapColumns = 8192;  // of logits that one item caps

void place_rows(Engine& engine, const qd_step& step) {
  const int block_size = engine.model.block_size;
  const Scratch& scratch = engine.scratch;
  for (int i = 0; i < step.num_requests; ++i) {
    const qd_request& request = step.requests[i];
    for (int offset = 0; offset < request.num_rows; ++offset) {
      const int row = request.first_row + offset, position = request.start_position + offset;
      scratch.positions[row] = position;
      if (engine.has_full) scratch.blocks[row] = request.blocks[position / block_size];
      if (engine.has_window)
        scratch.window_blocks[row] = request.window_blocks[position / block_size];
    }
  }
}

void plan_attention_of(Engine& engine, const qd_step& step) {
  const qd_model& model = engine.model;
  AttentionCut cut{model.num_heads,  model.num_kv_heads, model.head_dim,
                   model.block_size, 0,                  num_threads(engine.pool)};
  if (engine.has_full)
    plan_attention(cut, step.requests, step.num_requests, engine.full_plan);
  cut.window = model.window;
  if (engine.has_window)
    plan_attention(cut, step.requests, step.num_requests, engine.window_plan);
}

void make_rotary(const Engine& engine, int row) {
  const qd_model& model = engine.model;
  const Scratch& scratch = engine.scratch;
  const int half = model.rotary_dim / 2, position = scratch.positions[row];
  if (engine.has_full || engine.shares_rotary)
    engine.kernels.rotary(model.frequencies, model.rotary_factor, position, half,
                          scratch.rotary.at(row));
  if (engine.has_window && !engine.shares_rotary)
    engine.kernels.rotary(model.window_frequencies, model.window_rotary_factor, position, half,
                          scratch.window_rotary.at(row));
}

void embed_tokens(Engine& engine, const qd_step& step) {
  const qd_model& model = engine.model;
  const qd_layer& first = engine.layers[0];
  each_row(engine, step.num_tokens, [&](int row, int thread) {
    make_rotary(engine, row);
    engine.kernels.embed(model.embedding, step.token_ids[row], model.embedding_scale,
                         model.hidden_size, engine.scratch.hidden.at(row));
    prepare_row(engine, first.attention_norm, first.qkv, row, row, thread);
  });
}

void cap_logits(Engine& engine, const qd_step& step) {
  const qd_model& model = engine.model;
  const int parts = (model.vocab_size + kCapColumns - 1) / kCapColumns;
  parallel(engine.pool, step.num_sampled * parts, [&](int item, int) {
    const int first = item % parts * kCapColumns;
    engine.kernels.softcap(model.logits_softcap,
                           step.logits + int64_t{item / parts} * model.vocab_size + first,
                           std::min(kCapColumns, model.vocab_size - first));
  });
}

void make_logits(Engine& engine, const qd_step& step) {
  if (step.num_sampled == 0) return;  // every request is in the middle of its prompt
  const qd_model& model = engine.model;
  each_row(engine, step.num_sampled, [&](int row, int thread) {
    const int from = engine.narrows ? row : step.sampled_rows[row];
    prepare_row(engine, model.final_norm, model.head, from, row, thread);
  });
  multiply(engine, model.head, step.num_sampled, {Store::kSet, step.logits, model.vocab_size});
  if (model.logits_softcap > 0.0f) cap_logits(engine, step);
}

bool are_ascending(const int32_t* rows, int count) {
  const int32_t* end = rows + count;
  return std::adjacent_find(rows, end, std::greater_equal<int32_t>()) == end;
}

// Throws std::bad_alloc.
void run_step(Engine& engine, const qd_step& step) {
  wake(engine.pool);
  engine.keeps_inputs = step.num_adapters > 0;
  // adapters name rows by their places in the whole step
  engine.narrows = step.num_adapters == 0 && are_ascending(step.sampled_rows, step.num_sampled);
  place_rows(engine, step);
  plan_attention_of(engine, step);
  embed_tokens(engine, step);
  for (int layer = 0; layer < engine.model.num_layers; ++layer) run_layer(engine, step, layer);
  make_logits(engine, step);
}

// Whether positions turn heads by the same angles in both kinds of layers.
bool has_one_rotary(const qd_model& model) {
  const size_t bytes = model.rotary_dim / 2 * sizeof(float);
  return model.window_rotary_factor == model.rotary_factor &&
         (bytes == 0 || memcmp(model.window_frequencies, model.frequencies, bytes) == 0);
}

// Throws std::bad_alloc. False: there is no memory for a step.
bool prepare(Engine& engine) {
  qd_model& model = engine.model;
  engine.layers.assign(model.layers, model.layers + model.num_layers);
  model.layers = engine.layers.data();
  for (const qd_layer& layer : engine.layers)
    (layer.is_window ? engine.has_window : engine.has_full) = true;
  engine.shares_rotary = engine.has_window && has_one_rotary(model);
  return reserve_scratch(engine);
}

}  // namespace
}  // namespace qd

struct qd_engine : qd::Engine {
  using Engine::Engine;
};

extern "C" qd_engine* qd_engine_create(const qd_model* model, qd_pool* pool, const char* isa,
                                       int32_t max_tokens, int32_t max_requests) {
  constexpr int32_t kMostTokens = 1 << 18;
  const qd::Kernels* kernels = qd::kernels_named(isa);
  if (model == nullptr || pool == nullptr || kernels == nullptr || max_tokens < 1 ||
      max_tokens > kMostTokens || max_requests < 1 || !qd::is_sound(*model))
    return nullptr;
  try {
    auto engine = std::make_unique<qd_engine>(*model, qd::pool_of(pool), *kernels, max_tokens,
                                              max_requests);
    return qd::prepare(*engine) ? engine.release() : nullptr;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

extern "C" void qd_engine_destroy(qd_engine* engine) { delete engine; }

extern "C" int32_t qd_forward(qd_engine* engine, const qd_step* step) {
  if (engine == nullptr || step == nullptr || !qd::is_sound(*engine, *step)) return QD_BAD_VALUE;
  try {
    qd::run_step(*engine, *step);
  } catch (const std::bad_alloc&) {
    return QD_NO_MEMORY;
  }
  return QD_OK;
}
