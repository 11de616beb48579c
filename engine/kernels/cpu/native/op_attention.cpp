// The C entry that tests and benches use for the attention of whole layers.
#include <algorithm>
#include <new>
#include <vector>

#include "attention_tasks.h"
#include "isa.h"
#include "threads.h"

namespace qd {
namespace {

constexpr int kAlignedFloats = 16;   // 64 bytes
constexpr int kRowsPerItem = 4;      // whose queries, keys and values one thread stores

// Uninitialised memory, aligned to 64 bytes.
class Buffer {
 public:
  explicit Buffer(int64_t floats)
      : memory_(static_cast<float*>(::operator new(static_cast<size_t>(floats) * 4, kAlignment))) {}
  ~Buffer() { ::operator delete(memory_, kAlignment); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  float* at(int64_t index = 0) const { return memory_ + index; }

 private:
  static constexpr std::align_val_t kAlignment{64};
  float* memory_;
};

// One step's attention, layer after layer.
struct Attention {
  const Kernels& kernels;
  Pool& pool;
  const qd_model& model;
  const qd_request* requests;
  int num_requests;
  int num_rows;
  std::vector<int> owners;  // the request of each row
  AttentionPlan full, window;

  AttentionCut cut(int window_tokens) const {
    return {model.num_heads,  model.num_kv_heads, model.head_dim,
            model.block_size, window_tokens,      num_threads(pool)};
  }

  void plan() {
    for (int r = 0; r < num_requests; ++r)
      num_rows = std::max(num_rows, requests[r].first_row + requests[r].num_rows);
    owners.resize(num_rows);
    for (int r = 0; r < num_requests; ++r)
      for (int i = 0; i < requests[r].num_rows; ++i) owners[requests[r].first_row + i] = r;
    bool any_full = false, any_window = false;
    for (int i = 0; i < model.num_layers; ++i)
      (model.layers[i].is_window ? any_window : any_full) = true;
    if (any_full) plan_attention(cut(0), requests, num_requests, full);
    if (any_window) plan_attention(cut(model.window), requests, num_requests, window);
  }

  AttentionLayer describe(const qd_layer& layer, const float* qkv, float* out) const {
    AttentionLayer a = {};
    a.num_heads = model.num_heads;
    a.num_kv_heads = model.num_kv_heads;
    a.head_dim = model.head_dim;
    a.padded_dim = round_up(model.head_dim, kLanes);
    a.rotary_dim = model.rotary_dim;
    a.window = layer.is_window ? model.window : 0;
    a.scale = model.attention_scale;
    a.softcap = model.attention_softcap;
    a.query_norm = layer.query_norm;
    a.key_norm = layer.key_norm;
    a.cache_dtype = model.cache_dtype;
    a.block_size = model.block_size;
    a.cache = layer.cache;
    a.qkv = qkv;
    a.qkv_stride = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim;
    a.out = out;
    a.out_stride = model.num_heads * model.head_dim;
    return a;
  }

  void store(const AttentionLayer& layer, bool is_window) {
    parallel(pool, (num_rows + kRowsPerItem - 1) / kRowsPerItem, [&](int item, int) {
      const int end = std::min(num_rows, (item + 1) * kRowsPerItem);
      for (int row = item * kRowsPerItem; row < end; ++row) {
        const qd_request& request = requests[owners[row]];
        const int position = request.start_position + row - request.first_row;
        const int32_t* blocks = is_window ? request.window_blocks : request.blocks;
        kernels.store_token(layer, row, position, blocks[position / model.block_size]);
      }
    });
  }

  void attend(const AttentionLayer& layer, const AttentionPlan& plan, const Buffer& scratch,
              int64_t scratch_floats) {
    parallel(pool, static_cast<int>(plan.tasks.size()), [&](int item, int thread) {
      kernels.attend(layer, plan.tasks[item], scratch.at(thread * scratch_floats));
    });
    if (plan.combines.empty()) return;
    parallel(pool, static_cast<int>(plan.combines.size()),
             [&](int item, int) { kernels.combine(layer, plan.combines[item]); });
  }

  void run(const float* qkv, float* out) {
    plan();
    const int64_t rotary_floats = static_cast<int64_t>(num_rows) * model.rotary_dim;
    const int64_t queries =
        num_rows * model.num_heads * query_bytes(model.cache_dtype, model.head_dim);
    const int64_t scratch_floats =
        attention_scratch_floats(model.num_heads / model.num_kv_heads, model.head_dim);
    const Buffer scratch(scratch_floats * num_threads(pool)), rounded(queries / 4);
    const Buffer rotary(rotary_floats + kAlignedFloats);
    const Buffer window_rotary(rotary_floats + kAlignedFloats);
    for (int row = 0; row < num_rows; ++row) {
      const qd_request& request = requests[owners[row]];
      const int position = request.start_position + row - request.first_row;
      const int half = model.rotary_dim / 2;
      const int64_t at = static_cast<int64_t>(row) * model.rotary_dim;
      kernels.rotary(model.frequencies, model.rotary_factor, position, half, rotary.at(at));
      kernels.rotary(model.window_frequencies, model.window_rotary_factor, position, half,
                     window_rotary.at(at));
    }
    for (int i = 0; i < model.num_layers; ++i) {
      AttentionLayer layer = describe(model.layers[i], qkv, out);
      layer.rotary = model.layers[i].is_window ? window_rotary.at() : rotary.at();
      layer.queries = reinterpret_cast<uint8_t*>(rounded.at());
      store(layer, model.layers[i].is_window != 0);
      attend(layer, model.layers[i].is_window ? window : full, scratch, scratch_floats);
    }
  }
};

}  // namespace
}  // namespace qd

// Of `model`, only what concerns attention is read. `qkv` is [rows][(heads + 2 * kv_heads) *
// head_dim], the same for every layer, `out` [rows][heads * head_dim], of the last one.
extern "C" QD_EXPORT int32_t qd_op_attention(const char* isa, qd_pool* pool, const qd_model* model,
                                             const qd_request* requests, int32_t num_requests,
                                             const float* qkv, float* out) {
  const qd::Kernels* kernels = qd::kernels_named(isa);
  if (kernels == nullptr || model->head_dim > qd::kMaxHeadDim) return QD_BAD_VALUE;
  try {
    qd::Pool& threads = qd::pool_of(pool);
    qd::Attention attention{*kernels, threads, *model, requests, num_requests, 0, {}, {}, {}};
    attention.run(qkv, out);
  } catch (const std::bad_alloc&) {
    return QD_NO_MEMORY;
  }
  return QD_OK;
}
