// The C entry that tests and benches use for the products of LoRA adapters.
#include <memory>
#include <new>

#include "isa.h"

using namespace qd;

extern "C" QD_EXPORT int32_t qd_op_low_rank(const char* isa, const qd_update* update,
                                            const int32_t* rows, int32_t num_rows, const float* in,
                                            int64_t in_stride, float* out, int64_t out_stride) {
  const Kernels* kernels = kernels_named(isa);
  if (kernels == nullptr || update->rank <= 0 || update->width <= 0 || update->columns <= 0)
    return QD_BAD_VALUE;
  const std::unique_ptr<float[]> scratch(new (std::nothrow) float[kLowRankRows * update->rank]);
  if (scratch == nullptr) return QD_NO_MEMORY;
  kernels->low_rank(*update, rows, num_rows, in, in_stride, scratch.get(), out, out_stride);
  return QD_OK;
}
