// What the kernels of one instruction set offer to the code that is the same for all of them.
//
// The bits of a row of any result depend on that row alone: not on how many rows are computed
// together, nor on threads. So every kernel adds in one order, whatever the number of rows.
#pragma once
#include "abi.h"

namespace qd {

constexpr int kPanel = 32;      // output channels of a panel
constexpr int kInterleave = 6;  // rows whose inputs lie interleaved
constexpr int kLanes = 16;      // floats of a vector
constexpr int kPieceSlots = 512;  // of one piece of attention; partial tiles have fewer keys
constexpr int kLowRankRows = 4;   // of a LoRA product that are computed together
constexpr int kWeightBlock = 64;  // neighbours that are summed up first when a token is drawn

inline int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

// Inputs of products, rounded, in blocks of kInterleave rows:
//   int8      q      [rows/6][width/4][6][4]; scale, sum and scaled_sum [rows/6][width/group][6]
//   bfloat16  bf16   [rows/6][width/2][6][2]
struct Activations {
  int kind = 0;   // QD_INPUT_*
  int width = 0;  // padded
  int8_t* q = nullptr;
  uint16_t* bf16 = nullptr;
  float* scale = nullptr;
  int32_t* sum = nullptr;       // of a row's int8 values in a group
  float* scaled_sum = nullptr;  // times their scale
};

inline int group_of(int input) { return input == QD_INPUT_I8_G64 ? 64 : 32; }

enum class Store {
  kSet,    // out = product
  kAdd,    // out += product
  kSilu,   // out = silu(gate) * up, half a panel wide
  kGelu,   // out = gelu(gate) * up
  kSplit,  // gate into out, up into out + `up_offset`
};

// Where the product of a panel goes. Column = segment.first_column + 32 * panel (16 * panel for
// gate and up). Columns beyond segment.rows are not written (of gate and up all are: zeros).
struct Output {
  Store store = Store::kSet;
  float* data = nullptr;
  int64_t stride = 0;     // floats between rows
  int64_t up_offset = 0;  // for kSplit
};

// Everything that the attention of one layer needs; rows are those of the step.
struct AttentionLayer {
  int num_heads, num_kv_heads, head_dim, padded_dim;  // padded_dim: to a multiple of kLanes
  int rotary_dim;
  int window;  // 0: the whole context is seen
  float scale, softcap;
  qd_norm query_norm, key_norm;
  int cache_dtype, block_size;
  uint8_t* cache;
  const float* qkv;  // [rows][(heads + 2 * kv_heads) * head_dim]
  int64_t qkv_stride;
  const float* rotary;  // [rows][rotary_dim]: cosines of the first half, then sines
  uint8_t* queries;     // scratch, see query_bytes()
  float* out;           // [rows][out_stride], heads * head_dim used
  int64_t out_stride;
};

// Query rows of one request and one key-value head: rows of `num_tokens` tokens times the heads
// of the group, and the pieces of the context that this task looks at.
struct AttentionTask {
  const int32_t* blocks;
  int first_row, num_tokens;  // of the step
  int position;               // of the first token
  int kv_head;
  int first_piece, num_pieces;
  float* partial;  // [pieces][rows][part_floats]: combined later; NULL: all pieces are here
};

struct Weighing {
  float best;  // of the row, finite
  float temperature, min_p;
};

struct Kernels {
  const char* name;
  // linear.inl: rows [row, row + rows) of one panel; `row` is a multiple of kInterleave.
  void (*linear)(const qd_segment& segment, const Activations& in, int row, int rows, int panel,
                 const Output& out);
  // rows.inl
  void (*embed)(const qd_linear& table, int token_id, float scale, int size, float* out);
  void (*rms_norm)(const float* row, const qd_norm& norm, int size, float* out);
  void (*add)(const float* row, int size, float* out);  // out += row
  // Rounds `size` values into row `row` of the activations; zeros up to the padded width.
  void (*round_row)(const float* values, int size, const Activations& into, int row);
  void (*glu)(int activation, const float* gate, const float* up, int size, float* out);
  void (*softcap)(float cap, float* row, int size);
  void (*rotary)(const float* frequencies, float factor, int position, int half, float* out);
  // low_rank.inl: out row += (in row . down^T) . up, for `num_rows` rows of the step (several at a
  // time are faster); `scratch` holds kLowRankRows * rank floats
  void (*low_rank)(const qd_update& update, const int32_t* rows, int num_rows, const float* in,
                   int64_t in_stride, float* scratch, float* out, int64_t out_stride);
  // attention.inl
  void (*store_token)(const AttentionLayer& layer, int row, int position, int block);
  void (*attend)(const AttentionLayer& layer, const AttentionTask& task, float* scratch);
  // From the parts of all pieces of the task, one after the other at its `partial`.
  void (*combine)(const AttentionLayer& layer, const AttentionTask& task);
  // sampling.inl
  // First index of the largest; `best` is no number where one of the row is none.
  int32_t (*argmax)(const float* row, int size, float* best);
  // row = e^((row - best) / temperature), 0 where that is below `min_p`; and the sum and the
  // largest of each block of kWeightBlock.
  void (*weigh)(float* row, int size, const Weighing& how, double* sums, float* maxima);
  void (*block_maxima)(const float* row, int size, float* maxima);
  // Keys (candidates.h) of the values in [low, high), by index; returns how many.
  int (*collect)(const float* row, int size, const float* maxima, float low, float high,
                 uint64_t* keys);
  void (*log_softmax)(const float* row, int size, float best, float* out);
  // Minus infinity where a bit is not set, or there is none.
  void (*forbid)(const int32_t* words, int num_words, int size, float* row);
};

}  // namespace qd
