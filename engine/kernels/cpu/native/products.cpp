// Deals the panels of a product to threads.
//
// A panel stays in the first cache for all rows. Cutting rows, too, so that their inputs stay in
// the second cache, brought nothing (512 rows, every format).
#include <algorithm>

#include "forward.h"

namespace qd {
namespace {

constexpr int kItemsPerThread = 16;          // so that a thread that starts late can catch up
constexpr int64_t kBytesPerItem = 64 << 10;  // of weights, at most

int panels_of(const qd_segment& segment) {
  return round_up(segment.rows, kPanel) / kPanel;
}

int panels_of(const qd_linear& linear) {
  int panels = 0;
  for (int i = 0; i < linear.num_segments; ++i) panels += panels_of(linear.segments[i]);
  return panels;
}

// Neighbouring panels of one item: one stream of memory that is worth the claim.
int panels_together(const qd_linear& linear, int panels, int threads) {
  const int64_t bytes = int64_t{linear.width} * kPanel;  // of an int8 panel
  const int fair = panels / (threads * kItemsPerThread);
  return std::max(1, std::min<int>(fair, static_cast<int>(kBytesPerItem / bytes)));
}

}  // namespace

void multiply(Engine& engine, const qd_linear& linear, int num_rows, const Output& out) {
  const Activations inputs = engine.inputs_of(linear);
  const int panels = panels_of(linear);
  const int each = panels_together(linear, panels, num_threads(engine.pool));
  const auto multiply_panel = [&](int panel) {
    const qd_segment* segment = linear.segments;
    for (; panel >= panels_of(*segment); ++segment) panel -= panels_of(*segment);
    engine.kernels.linear(*segment, inputs, 0, num_rows, panel, out);
  };
  parallel(engine.pool, (panels + each - 1) / each, [&](int item, int) {
    const int end = std::min((item + 1) * each, panels);
    for (int panel = item * each; panel < end; ++panel) multiply_panel(panel);
  });
}

}  // namespace qd
