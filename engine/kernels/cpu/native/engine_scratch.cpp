// The memory of a step, made once for the largest that may come.
#include <sys/mman.h>

#include <algorithm>

#include "forward.h"

namespace qd {
namespace {

constexpr size_t kAlignment = 128;  // two cache lines: processors fetch them in pairs
constexpr size_t kHugePage = size_t{2} << 20;

size_t rounded_up(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Hands out pieces of a memory; without one, only counts what they need.
class Arena {
 public:
  explicit Arena(uint8_t* memory) : memory_(memory) {}

  template <typename T>
  T* take(int64_t count) {
    const size_t at = used_;
    used_ += rounded_up(static_cast<size_t>(count) * sizeof(T), kAlignment);
    return memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + at);
  }

  // Rows that are an odd number of cache lines apart: else the same columns of many rows, which a
  // panel of a product fills, would fall into few sets of the cache.
  Rows rows(int64_t count, int64_t columns) {
    const int64_t lines = round_up(static_cast<int>(columns), kLanes) / kLanes;
    const int64_t stride = (lines | 1) * kLanes;
    return {take<float>(count * stride), stride};
  }

  size_t used() const { return used_; }

 private:
  uint8_t* memory_;
  size_t used_ = 0;
};

// Inputs of the widest product, by what they take.
struct Widest {
  int64_t bytes = 0;   // of a row
  int64_t groups = 0;  // of a row

  void see(const qd_linear& linear) {
    const bool is_bf16 = linear.input == QD_INPUT_BF16;
    bytes = std::max<int64_t>(bytes, linear.width * (is_bf16 ? 2 : 1));
    if (!is_bf16) groups = std::max<int64_t>(groups, linear.width / group_of(linear.input));
  }
};

Widest widest_of(const Engine& engine) {
  Widest widest;
  for (const qd_layer& layer : engine.layers)
    for (const qd_linear* linear : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down})
      widest.see(*linear);
  widest.see(engine.model.head);
  return widest;
}

void take_float_rows(const Engine& engine, Arena& arena, Scratch& scratch) {
  const qd_model& model = engine.model;
  const int rows = engine.max_tokens;
  scratch.hidden = arena.rows(rows, model.hidden_size);
  scratch.normed = arena.rows(rows, model.hidden_size);
  scratch.product = arena.rows(rows, model.hidden_size);
  scratch.qkv = arena.rows(rows, engine.qkv_columns());
  scratch.mixed = arena.rows(rows, engine.head_columns());
  scratch.gate = arena.rows(rows, 2 * int64_t{engine.gate_columns()});
  scratch.up = scratch.gate;
  if (scratch.up.data != nullptr) scratch.up.data += engine.gate_columns();
  // the kernels of attention take cosines and sines of all rows without gaps
  scratch.rotary = {arena.take<float>(int64_t{rows} * model.rotary_dim), model.rotary_dim};
  scratch.window_rotary = {arena.take<float>(int64_t{rows} * model.rotary_dim), model.rotary_dim};
}

void take_others(const Engine& engine, Arena& arena, Scratch& scratch) {
  const qd_model& model = engine.model;
  const Widest widest = widest_of(engine);
  const int rows = round_up(engine.max_tokens, 2 * kInterleave);
  const int threads = num_threads(engine.pool);
  scratch.rounded = arena.take<uint8_t>(rows * widest.bytes);
  scratch.scales = arena.take<float>(rows * widest.groups);
  scratch.sums = arena.take<int32_t>(rows * widest.groups);
  scratch.scaled_sums = arena.take<float>(rows * widest.groups);
  scratch.queries = arena.take<uint8_t>(rows * int64_t{model.num_heads} *
                                        query_bytes(model.cache_dtype, model.head_dim));
  scratch.positions = arena.take<int32_t>(rows);
  scratch.blocks = arena.take<int32_t>(rows);
  scratch.window_blocks = arena.take<int32_t>(rows);
  scratch.has_adapter = arena.take<uint8_t>(rows);
  scratch.row_of_thread = arena.rows(threads, model.hidden_size);
  scratch.low_rank_of_thread = arena.rows(threads, int64_t{kLowRankRows} * kMaxLowRank);
  scratch.attention_of_thread = arena.rows(
      threads, attention_scratch_floats(model.num_heads / model.num_kv_heads, model.head_dim));
}

size_t take_all(const Engine& engine, Arena arena, Scratch& scratch) {
  take_float_rows(engine, arena, scratch);
  take_others(engine, arena, scratch);
  return arena.used();
}

}  // namespace

Memory::~Memory() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

bool Memory::reserve(size_t bytes) {
  bytes_ = rounded_up(bytes, kHugePage);
  void* found = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (found == MAP_FAILED) return false;
  data_ = static_cast<uint8_t*>(found);
#ifdef MADV_HUGEPAGE
  madvise(data_, bytes_, MADV_HUGEPAGE);  // advice: without it, pages are small
#endif
  return true;
}

bool reserve_scratch(Engine& engine) {
  const size_t bytes = take_all(engine, Arena(nullptr), engine.scratch);
  if (!engine.memory.reserve(bytes)) return false;
  take_all(engine, Arena(engine.memory.data()), engine.scratch);
  return true;
}

}  // namespace qd
