// What a forward pass is made of: an engine (a model with its scratch memory) and one step of it.
//
// Work is dealt to threads in regions (threads.h). Rows go in whole blocks of kInterleave rows, as
// rounded inputs lie interleaved and threads would share cache lines otherwise; a step of fewer
// rows does its row work without any other thread, which costs less than waiting for one.
#pragma once
#include <cstddef>

#include "attention_tasks.h"
#include "kernels.h"
#include "threads.h"

namespace qd {

constexpr int kMaxLowRank = 1024;  // rank of an adapter's update

// The products of a layer, in the order of qd_adapter_rows::lists.
enum class Part { kQkv, kOutput, kGateUp, kDown };
constexpr int kNumParts = 4;

// Rows of floats.
struct Rows {
  float* data = nullptr;
  int64_t stride = 0;
  float* at(int row) const { return data + row * stride; }
};

// Memory of one step, made once for the largest.
struct Scratch {
  Rows hidden;   // the residual stream
  Rows normed;   // inputs of qkv and gate_up, kept only for adapters
  Rows qkv;
  Rows mixed;    // the heads' outputs
  Rows gate;     // the gate, or what comes out of the activation
  Rows up;
  Rows product;  // of `output` and `down`, where a norm follows before the residual
  Rows rotary, window_rotary;  // cosines and sines
  uint8_t* rounded;            // inputs of the next product
  float* scales;
  int32_t* sums;
  float* scaled_sums;
  uint8_t* queries;
  int32_t *positions, *blocks, *window_blocks;  // of each row
  uint8_t* has_adapter;                         // of each row, while a step is checked
  Rows row_of_thread;                           // one row of the residual stream
  Rows attention_of_thread, low_rank_of_thread;
};

// Anonymous memory in huge pages where the system has them; zeros.
class Memory {
 public:
  Memory() = default;
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  bool reserve(size_t bytes);
  uint8_t* data() const { return data_; }

 private:
  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
};

struct Engine {
  Engine(const qd_model& model, Pool& pool, const Kernels& kernels, int max_tokens,
         int max_requests)
      : model(model), pool(pool), kernels(kernels), max_tokens(max_tokens),
        max_requests(max_requests) {}

  qd_model model;
  std::vector<qd_layer> layers;
  Pool& pool;
  const Kernels& kernels;
  const int max_tokens, max_requests;
  bool has_full = false, has_window = false;  // layers
  bool shares_rotary = false;                 // between both kinds of layers
  bool keeps_inputs = false;                  // of products, in this step
  bool narrows = false;                       // this step, to its sampled rows, in the last layer
  Memory memory;
  Scratch scratch{};
  AttentionPlan full_plan, window_plan;

  int head_columns() const { return model.num_heads * model.head_dim; }
  int qkv_columns() const {
    return (model.num_heads + 2 * model.num_kv_heads) * model.head_dim;
  }
  int gate_columns() const { return round_up(model.inner_size, kLanes); }

  // The buffer of rounded inputs as this product wants it.
  Activations inputs_of(const qd_linear& linear) const;
  Rows rotary_of(const qd_layer& layer) const;
};

// --- engine_check.cpp: whether all values of a model make sense.
bool is_sound(const qd_model& model);

// --- engine_scratch.cpp
bool reserve_scratch(Engine& engine);

// --- step_check.cpp: whether all values of a step are within the bounds of engine and model.
bool is_sound(const Engine& engine, const qd_step& step);

// --- products.cpp: what `out` says of `linear`, for rows that are rounded already.
void multiply(Engine& engine, const qd_linear& linear, int num_rows, const Output& out);

// Runs `body(row, thread)` for all rows.
template <typename Body>
void each_row(Engine& engine, int num_rows, const Body& body) {
  parallel(engine.pool, round_up(num_rows, kInterleave) / kInterleave, [&](int block, int thread) {
    const int first = block * kInterleave;
    const int end = first + kInterleave < num_rows ? first + kInterleave : num_rows;
    for (int row = first; row < end; ++row) body(row, thread);
  });
}

// hidden -> norm -> rounded inputs of `linear`; from row `from` of the residual stream to row `to`.
void prepare_row(Engine& engine, const qd_norm& norm, const qd_linear& linear, int from, int to,
                 int thread);

// --- adapters.cpp: adds what adapters change in one product of a layer to its output.
struct LowRank {
  const qd_step& step;
  int layer;
  Part part;
};
bool has_updates(const LowRank& what);
void add_updates(Engine& engine, const LowRank& what, const Rows& in, const Rows& out);

// --- forward_layer.cpp: the residual stream through one layer; inputs of its first product are
// rounded already, those of the next layer's are at its end.
void run_layer(Engine& engine, const qd_step& step, int index);

}  // namespace qd
