// The C entries that tests and benches use for the kernels of single rows.
#include "isa.h"

using namespace qd;

namespace {

Activations activations_of(const qd_linear& linear, void* rounded, float* scales, int32_t* sums,
                           float* scaled_sums) {
  Activations into;
  into.kind = linear.input;
  into.width = linear.width;
  into.q = static_cast<int8_t*>(rounded);
  into.bf16 = static_cast<uint16_t*>(rounded);
  into.scale = scales;
  into.sum = sums;
  into.scaled_sum = scaled_sums;
  return into;
}

}  // namespace

extern "C" {

QD_EXPORT int32_t qd_op_embed(const char* isa, const qd_linear* table, int32_t token_id,
                              float scale, int32_t size, float* out) {
  const Kernels* kernels = kernels_named(isa);
  if (kernels == nullptr || size > table->width || token_id < 0 || token_id >= table->columns)
    return QD_BAD_VALUE;
  kernels->embed(*table, token_id, scale, size, out);
  return QD_OK;
}

QD_EXPORT int32_t qd_op_rms_norm(const char* isa, const float* row, const qd_norm* norm,
                                 int32_t size, float* out) {
  const Kernels* kernels = kernels_named(isa);
  if (kernels == nullptr) return QD_BAD_VALUE;
  kernels->rms_norm(row, *norm, size, out);
  return QD_OK;
}

QD_EXPORT int32_t qd_op_add(const char* isa, const float* row, int32_t size, float* out) {
  const Kernels* kernels = kernels_named(isa);
  if (kernels == nullptr) return QD_BAD_VALUE;
  kernels->add(row, size, out);
  return QD_OK;
}

// Rounds one row of `size` values to row `row` of inputs of `linear`, of which only `input` and
// `width` are read.
QD_EXPORT int32_t qd_op_round_row(const char* isa, const float* values, int32_t size,
                                  const qd_linear* linear, void* rounded, float* scales,
                                  int32_t* sums, float* scaled_sums, int32_t row) {
  const Kernels* kernels = kernels_named(isa);
  if (kernels == nullptr || size > linear->width) return QD_BAD_VALUE;
  const Activations into = activations_of(*linear, rounded, scales, sums, scaled_sums);
  kernels->round_row(values, size, into, row);
  return QD_OK;
}

QD_EXPORT int32_t qd_op_glu(const char* isa, int32_t activation, const float* gate,
                            const float* up, int32_t size, float* out) {
  const Kernels* kernels = kernels_named(isa);
  if (kernels == nullptr) return QD_BAD_VALUE;
  kernels->glu(activation, gate, up, size, out);
  return QD_OK;
}

QD_EXPORT int32_t qd_op_softcap(const char* isa, float cap, float* row, int32_t size) {
  const Kernels* kernels = kernels_named(isa);
  if (kernels == nullptr) return QD_BAD_VALUE;
  kernels->softcap(cap, row, size);
  return QD_OK;
}

QD_EXPORT int32_t qd_op_rotary(const char* isa, const float* frequencies, float factor,
                               int32_t position, int32_t half, float* out) {
  const Kernels* kernels = kernels_named(isa);
  if (kernels == nullptr) return QD_BAD_VALUE;
  kernels->rotary(frequencies, factor, position, half, out);
  return QD_OK;
}

}  // extern "C"
