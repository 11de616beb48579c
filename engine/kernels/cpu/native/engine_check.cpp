// Refuses models whose values would make the kernels read or write out of bounds.
#include <cmath>

#include "forward.h"

namespace qd {
namespace {

constexpr int kMostOfAnything = 1 << 24;  // so that no product of two sizes overflows 64 bits

bool is_size(int32_t value) { return value > 0 && value <= kMostOfAnything; }

bool is_aligned(const void* pointer) {
  return pointer != nullptr && reinterpret_cast<uintptr_t>(pointer) % 64 == 0;
}

// Inputs of which the width of a format is a multiple; 0: there is no such format.
int group_of_format(int32_t format) {
  switch (format) {
    case QD_BF16: return 2;
    case QD_W4_G32: return 32;
    case QD_I8_G32: return 32;
    case QD_I8_G64: return 64;
    default: return 0;
  }
}

int input_of_format(int32_t format) {
  if (format == QD_BF16) return QD_INPUT_BF16;
  return format == QD_I8_G64 ? QD_INPUT_I8_G64 : QD_INPUT_I8_G32;
}

struct Shape {
  int width;    // inputs, not padded
  int columns;  // of the output
  bool is_gated = false;
};

bool is_sound(const qd_segment& segment, const qd_linear& linear) {
  const int group = group_of_format(segment.format);
  return is_aligned(segment.panels) && group != 0 && is_size(segment.rows) &&
         segment.width == linear.width && segment.width % group == 0 &&
         input_of_format(segment.format) == linear.input;
}

// Segments must follow each other without gaps.
bool is_sound(const qd_linear& linear, const Shape& shape) {
  if (linear.segments == nullptr || linear.num_segments < 1 || !is_size(linear.width) ||
      linear.width < shape.width || linear.columns != shape.columns)
    return false;
  int64_t column = 0;
  for (int i = 0; i < linear.num_segments; ++i) {
    const qd_segment& segment = linear.segments[i];
    if (!is_sound(segment, linear) || segment.first_column != column) return false;
    if (shape.is_gated && segment.rows % kPanel != 0) return false;
    column += shape.is_gated ? segment.rows / 2 : segment.rows;
  }
  return column == shape.columns;
}

bool is_sound(const qd_norm& norm) { return norm.weight != nullptr && norm.epsilon >= 0.0f; }

bool is_sound_or_none(const qd_norm& norm) { return norm.weight == nullptr || is_sound(norm); }

bool has_sound_sizes(const qd_model& model) {
  return model.layers != nullptr && is_size(model.num_layers) && is_size(model.hidden_size) &&
         is_size(model.num_heads) && is_size(model.num_kv_heads) && is_size(model.inner_size) &&
         is_size(model.vocab_size) && is_size(model.block_size) && is_size(model.num_blocks) &&
         model.head_dim > 0 && model.head_dim <= kMaxHeadDim && model.num_window_blocks >= 0 &&
         model.num_heads % model.num_kv_heads == 0 &&
         int64_t{model.num_heads} * model.head_dim <= kMostOfAnything / 4;
}

bool has_sound_constants(const qd_model& model) {
  return (model.activation == QD_SILU || model.activation == QD_GELU_TANH) &&
         (model.cache_dtype == QD_KV_BF16 || model.cache_dtype == QD_KV_I8) && model.window >= 0 &&
         std::isfinite(model.attention_scale) && std::isfinite(model.embedding_scale) &&
         model.attention_softcap >= 0.0f && model.logits_softcap >= 0.0f;
}

bool has_sound_rotary(const qd_model& model) {
  return model.rotary_dim >= 0 && model.rotary_dim <= model.head_dim &&
         model.rotary_dim % 2 == 0 && (model.rotary_dim == 0 || model.frequencies != nullptr);
}

bool has_sound_norms(const qd_layer& layer) {
  return is_sound(layer.attention_norm) && is_sound(layer.mlp_norm) &&
         is_sound_or_none(layer.query_norm) && is_sound_or_none(layer.key_norm) &&
         is_sound_or_none(layer.attention_out_norm) && is_sound_or_none(layer.mlp_out_norm);
}

bool has_sound_products(const qd_layer& layer, const qd_model& model) {
  const int heads = model.num_heads * model.head_dim;
  const int kv_heads = model.num_kv_heads * model.head_dim;
  const int gate = round_up(model.inner_size, kLanes);
  return is_sound(layer.qkv, {model.hidden_size, heads + 2 * kv_heads}) &&
         is_sound(layer.output, {heads, model.hidden_size}) &&
         is_sound(layer.gate_up, {model.hidden_size, gate, true}) &&
         is_sound(layer.down, {model.inner_size, model.hidden_size});
}

bool has_sound_cache(const qd_layer& layer, const qd_model& model) {
  if (!is_aligned(layer.cache)) return false;
  return !layer.is_window ||
         (model.window > 0 && model.num_window_blocks > 0 &&
          (model.rotary_dim == 0 || model.window_frequencies != nullptr));
}

}  // namespace

bool is_sound(const qd_model& model) {
  if (!has_sound_sizes(model) || !has_sound_constants(model) || !has_sound_rotary(model))
    return false;
  for (int i = 0; i < model.num_layers; ++i) {
    const qd_layer& layer = model.layers[i];
    if (!has_sound_norms(layer) || !has_sound_products(layer, model) ||
        !has_sound_cache(layer, model))
      return false;
  }
  return is_sound(model.final_norm) &&
         is_sound(model.embedding, {model.hidden_size, model.vocab_size}) &&
         is_sound(model.head, {model.hidden_size, model.vocab_size});
}

}  // namespace qd
