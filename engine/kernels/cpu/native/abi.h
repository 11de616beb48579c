// The C interface of the CPU kernels: all that Python sees. Mirrored by engine/kernels/cpu/structs.py.
//
// Structures hold plain pointers: whoever fills them keeps what they point to alive. Matrices of
// floats are row-major. Pointers to weights and caches are aligned to 64 bytes.
#ifndef QUARTERDECK_ABI_H
#define QUARTERDECK_ABI_H
#include <stddef.h>
#include <stdint.h>

#define QD_EXPORT __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

enum { QD_ABI_VERSION = 1 };

enum { QD_OK = 0, QD_NO_MEMORY = -1, QD_BAD_VALUE = -2 };

// How a matrix is stored: panels of 32 output channels, one after the other, each with all its
// input channels (the width, a multiple of the format's group; of 2 for bf16).
//   QD_BF16    [width/2][2 halves][16 channels][2 inputs] bfloat16
//   QD_W4_G32  per 32 inputs: 32 fp16 scales d, 32 fp16 minima m, then [8][64] bytes of which a
//              low nibble is an input of channels 0-15, a high one of channels 16-31, laid out
//              [16 channels][4 inputs]; weight = d * q + m, q in 0..15
//   QD_I8_Gn   per n inputs: 32 fp16 scales d, then [n/4][2 halves][16 channels][4 inputs] bytes;
//              weight = d * (byte - 128)
enum { QD_BF16 = 0, QD_W4_G32 = 1, QD_I8_G32 = 2, QD_I8_G64 = 3 };

// How the inputs of a product are rounded, as its format wants it: to bfloat16, or to int8 with a
// scale for each row and group of so many inputs.
enum { QD_INPUT_BF16 = 0, QD_INPUT_I8_G32 = 1, QD_INPUT_I8_G64 = 2 };

enum { QD_SILU = 0, QD_GELU_TANH = 1 };
enum { QD_KV_BF16 = 0, QD_KV_I8 = 1 };

// A matrix, or the part of one that has a format of its own. Rows beyond `rows` in the last panel
// are zeros. Gate and up matrices are stored as one, each panel 16 channels of the gate and the
// same 16 of up; `rows` then counts both, padded to whole panels.
typedef struct {
  const uint8_t* panels;
  const float* bias;     // one for each packed row, padded to whole panels; NULL: none
  int32_t format;
  int32_t rows;          // output channels
  int32_t width;         // input channels, padded with zeros to the format's multiple
  int32_t first_column;  // of the output
} qd_segment;

typedef struct {
  const qd_segment* segments;
  int32_t num_segments;
  int32_t input;    // QD_INPUT_*, the same for all segments
  int32_t width;    // of the inputs, padded
  int32_t columns;  // of the output
} qd_linear;

typedef struct {
  const float* weight;  // NULL: no norm here
  float epsilon;
  int32_t pad;
} qd_norm;

typedef struct {
  qd_norm attention_norm;
  qd_linear qkv;             // queries, keys, values of all heads, one after the other
  qd_norm query_norm;        // over head_dim
  qd_norm key_norm;
  qd_linear output;
  qd_norm attention_out_norm;  // sandwich norms: before the residual is added
  qd_norm mlp_norm;
  qd_linear gate_up;         // columns: the inner size, padded to a multiple of 16
  qd_linear down;
  qd_norm mlp_out_norm;
  uint8_t* cache;            // of this layer, see `qd_cache_block_bytes`
  int32_t is_window;         // whether only a sliding window is seen
  int32_t pad;
} qd_layer;

typedef struct {
  const qd_layer* layers;
  int32_t num_layers;
  int32_t hidden_size;
  int32_t num_heads, num_kv_heads, head_dim;
  int32_t rotary_dim;         // of each head, the first so many values rotate
  int32_t inner_size;         // of the feed-forward block, not padded
  int32_t vocab_size;
  int32_t activation;         // QD_SILU, QD_GELU_TANH
  int32_t window;             // tokens that a sliding-window layer sees, its own included; 0: none
  float attention_scale;      // of the scores
  float attention_softcap;    // 0: none; else scores become cap * tanh(score / cap)
  float logits_softcap;       // 0: none
  float embedding_scale;
  const float* frequencies;         // [rotary_dim / 2] radians per position
  const float* window_frequencies;  // of the sliding-window layers
  float rotary_factor, window_rotary_factor;  // of cosines and sines
  qd_linear embedding;        // one or more segments over the vocabulary; only looked up
  qd_norm final_norm;
  qd_linear head;
  int32_t cache_dtype;        // QD_KV_*
  int32_t block_size;         // positions of a block of the cache
  int32_t num_blocks, num_window_blocks;
} qd_model;

// One request's rows of a step.
typedef struct {
  const int32_t* blocks;         // of the full-attention layers, covering all positions
  const int32_t* window_blocks;  // of the sliding-window layers; entries before the window unused
  int32_t num_blocks;            // entries of either
  int32_t first_row, num_rows;
  int32_t start_position;        // of the first row; keys before it are in the cache
} qd_request;

// What a LoRA adapter adds to neighbouring columns: out += (x . down^T) . up
typedef struct {
  const float* down;     // [rank][width]
  const float* up;       // [rank][columns], with the scale in it
  int32_t rank, width;   // width: of the layer's inputs, not padded
  int32_t first_column, columns;  // of gate and up: those of up begin at the padded inner size
} qd_update;

typedef struct {
  const qd_update* updates;
  int64_t count;
} qd_update_list;

// The rows of a step that go through one adapter, none twice and none in two adapters.
typedef struct {
  const int32_t* rows;
  const qd_update_list* lists;  // [num_layers][4]: qkv, output, gate_up, down
  int64_t num_rows;
} qd_adapter_rows;

typedef struct {
  const int32_t* token_ids;     // [num_tokens]
  const qd_request* requests;   // in the order of their rows
  const int32_t* sampled_rows;  // [num_sampled], whose logits are wanted
  float* logits;                // [num_sampled][vocab_size]
  const qd_adapter_rows* adapters;
  int32_t num_tokens, num_requests, num_sampled, num_adapters;
} qd_step;

typedef struct qd_pool qd_pool;      // threads
typedef struct qd_engine qd_engine;  // a model, scratch memory, the kernels of one instruction set

// --- abi.cpp
QD_EXPORT int32_t qd_abi_version(void);
// Names of the instruction sets that this build has, best first; NULL beyond the last.
QD_EXPORT const char* qd_isa_name(int32_t index);
QD_EXPORT int32_t qd_isa_runs_here(int32_t index);
// `threads` counts the caller, which works too. NULL: no memory, no thread could be made, or the
// number makes no sense.
QD_EXPORT qd_pool* qd_pool_create(int32_t threads);
QD_EXPORT void qd_pool_destroy(qd_pool* pool);

// --- forward.cpp
// Copies `model` and its layers; what they point to must live as long as the engine.
QD_EXPORT qd_engine* qd_engine_create(const qd_model* model, qd_pool* pool, const char* isa,
                                      int32_t max_tokens, int32_t max_requests);
QD_EXPORT void qd_engine_destroy(qd_engine* engine);
// Returns QD_OK, QD_NO_MEMORY, or QD_BAD_VALUE when a value of the step is out of bounds (nothing
// was computed then).
QD_EXPORT int32_t qd_forward(qd_engine* engine, const qd_step* step);

// --- attention: the size of one block of one layer's cache, a multiple of 64 bytes
QD_EXPORT int64_t qd_cache_block_bytes(int32_t cache_dtype, int32_t block_size,
                                       int32_t num_kv_heads, int32_t head_dim);

// --- sampling.cpp: rows of logits. What works on many of them returns QD_OK or QD_BAD_VALUE;
// which rows there are is not checked.
typedef struct {
  float* values;
  const int32_t* rows;  // which ones; NULL: 0, 1, 2, ...
  int64_t stride;       // floats between rows
  int32_t num_rows;
  int32_t size;         // of a row: the vocabulary
} qd_logits;

// How tokens are drawn, one value for each row.
typedef struct {
  const float* temperature;  // 0: the first of the best tokens
  const float* min_p;
  const int64_t* top_k;      // 0: off
  const double* top_p;       // 1: off
  const double* uniform;     // random, in [0, 1)
} qd_draws;

// Memory for `qd_draw` and `qd_best`, for as many threads as the pool has; aligned to 64 bytes.
QD_EXPORT int64_t qd_sampling_bytes(qd_pool* pool, int32_t size);
// The largest value of each row and its first index; no number where one of the row is none.
QD_EXPORT int32_t qd_greatest(qd_pool* pool, const char* isa, const qd_logits* logits, float* best,
                              int64_t* ids);
// As `qd_greatest`, but ids are drawn; the logits are overwritten.
QD_EXPORT int32_t qd_draw(qd_pool* pool, const char* isa, const qd_logits* logits,
                          const qd_draws* draws, void* scratch, float* best, int64_t* ids);
// Log probabilities, into [num_rows][size].
QD_EXPORT int32_t qd_log_softmax(qd_pool* pool, const char* isa, const qd_logits* logits,
                                 float* out);
// The `num` largest values of each row and their indices, equal ones by index, into
// [num_rows][num].
QD_EXPORT int32_t qd_best(qd_pool* pool, const char* isa, const qd_logits* logits, int32_t num,
                          void* scratch, float* values, int64_t* ids);
// Minus infinity where bit `i % 32` of word `i / 32` is not set; words of each row.
QD_EXPORT int32_t qd_forbid(qd_pool* pool, const char* isa, const qd_logits* logits,
                            const int32_t* const* words, const int32_t* num_words);

// What a text has said so far: distinct tokens, and how often each is in its output.
typedef struct {
  const int64_t* ids;
  const int64_t* outputs;
  int64_t count;
  float repetition, frequency, presence;
} qd_penalties;

// Changes one row of `size` logits; ids beyond it are passed over.
QD_EXPORT void qd_penalise(float* row, int32_t size, const qd_penalties* penalties);

#ifdef __cplusplus
}
#endif
#endif
