// The C entry that tests use for products.
#include <cstring>
#include <memory>
#include <new>

#include "isa.h"
#include "threads.h"

using namespace qd;

namespace {

// Inputs of products, on their own. Rows that nobody rounds are no numbers: none may matter.
class Inputs {
 public:
  bool reserve(const qd_linear& linear, int rows) {
    const int64_t padded_rows = round_up(rows, kInterleave);
    const int64_t values = padded_rows * linear.width * (linear.input == QD_INPUT_BF16 ? 2 : 1);
    const int64_t groups = padded_rows * (linear.width / group_of(linear.input));
    if (!make(values_, values) || !make(scales_, 4 * groups) || !make(sums_, 4 * groups) ||
        !make(scaled_sums_, 4 * groups))
      return false;
    activations.kind = linear.input;
    activations.width = linear.width;
    activations.q = reinterpret_cast<int8_t*>(values_.get());
    activations.bf16 = reinterpret_cast<uint16_t*>(values_.get());
    activations.scale = reinterpret_cast<float*>(scales_.get());
    activations.sum = reinterpret_cast<int32_t*>(sums_.get());
    activations.scaled_sum = reinterpret_cast<float*>(scaled_sums_.get());
    return true;
  }

  Activations activations;

 private:
  static bool make(std::unique_ptr<uint8_t[]>& bytes, int64_t count) {
    bytes.reset(new (std::nothrow) uint8_t[static_cast<size_t>(count)]);
    if (bytes != nullptr) memset(bytes.get(), 0xff, static_cast<size_t>(count));
    return bytes != nullptr;
  }

  std::unique_ptr<uint8_t[]> values_, scales_, sums_, scaled_sums_;
};

int panels_of(const qd_segment& segment) { return round_up(segment.rows, kPanel) / kPanel; }

}  // namespace

extern "C" {

// Rounds `rows` rows of `size` inputs, and computes what `store` (a qd::Store) says into `out`, whose
// rows are `stride` floats apart. Without a pool the caller computes alone.
QD_EXPORT int32_t qd_op_linear(const char* isa, qd_pool* pool, const qd_linear* linear,
                               const float* in, int32_t size, int32_t rows, int32_t store,
                               float* out, int64_t stride, int64_t up_offset) {
  const Kernels* kernels = kernels_named(isa);
  const bool is_store = store >= 0 && store <= static_cast<int32_t>(Store::kSplit);
  if (kernels == nullptr || size > linear->width || rows <= 0 || !is_store) return QD_BAD_VALUE;
  Inputs inputs;
  if (!inputs.reserve(*linear, rows)) return QD_NO_MEMORY;
  for (int row = 0; row < rows; ++row)
    kernels->round_row(in + int64_t{row} * size, size, inputs.activations, row);
  const Output output = {static_cast<Store>(store), out, stride, up_offset};
  for (int i = 0; i < linear->num_segments; ++i) {
    const qd_segment& segment = linear->segments[i];
    const auto multiply = [&](int panel, int) {
      kernels->linear(segment, inputs.activations, 0, rows, panel, output);
    };
    if (pool != nullptr)
      parallel(pool_of(pool), panels_of(segment),
               [&](int panel, int thread) { multiply(panel, thread); });
    else
      for (int panel = 0; panel < panels_of(segment); ++panel) multiply(panel, 0);
  }
  return QD_OK;
}

}  // extern "C"
