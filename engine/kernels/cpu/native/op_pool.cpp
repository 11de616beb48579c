// The C entries that tests and benches use for the pool of threads.
#include <atomic>
#include <chrono>
#include <thread>

#include "threads.h"

using namespace qd;

// Runs `regions` regions of `items` items, each of which counts how often it was run; returns the
// nanoseconds that all took, or a negative number if an item was not run once in each region.
extern "C" QD_EXPORT int64_t qd_op_pool_count(qd_pool* pool, int32_t items, int32_t regions,
                                              int32_t* counts) {
  const auto start = std::chrono::steady_clock::now();
  bool is_right = true;
  for (int32_t region = 0; region < regions; ++region) {
    parallel(pool_of(pool), items, [&](int item, int) { ++counts[item]; });
    for (int32_t item = 0; item < items; ++item) is_right = is_right && counts[item] == region + 1;
  }
  const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - start;
  return is_right ? took.count() : -1;
}

// Sums the numbers up to `items` in one region, each on whichever thread; adds up in `by_thread`
// how many items each thread took.
extern "C" QD_EXPORT int64_t qd_op_pool_sum(qd_pool* pool, int32_t items, int64_t* by_thread) {
  std::atomic<int64_t> sum{0};
  parallel(pool_of(pool), items, [&](int item, int thread) {
    sum.fetch_add(item);
    ++by_thread[thread];
  });
  return sum.load();
}

// One of the items waits until all others are done: whether that came to pass in `patience_s`.
extern "C" QD_EXPORT int32_t qd_op_pool_hold(qd_pool* pool, int32_t items, int32_t held,
                                             int32_t in_order, int32_t patience_s) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(patience_s);
  std::atomic<int32_t> done{0};
  std::atomic<bool> is_free{false};
  const auto work = [&](int item, int) {
    if (item != held) {
      done.fetch_add(1);
      return;
    }
    while (done.load() < items - 1 && std::chrono::steady_clock::now() < end)
      std::this_thread::yield();
    is_free.store(done.load() == items - 1);
  };
  if (in_order)
    parallel_in_order(pool_of(pool), items, [&](int item, int thread) { work(item, thread); });
  else
    parallel(pool_of(pool), items, [&](int item, int thread) { work(item, thread); });
  return is_free.load();
}
