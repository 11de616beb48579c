// A pool of threads that claim items of work; waits awake for a moment, then asleep.
//
// Each thread has a range of neighbouring items. It claims its own from the front, then what is
// left of the others'. Who sees that all items are claimed is done: nobody waits for a thread that
// the system has taken away, unless it holds an item.
#include "threads.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#include "abi.h"

namespace qd {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kCacheLine = 64;

// Regions of one step follow each other within microseconds, steps within a millisecond: the first
// wait is worth staying awake for, the second is not. Yielding lets other processes have the core.
constexpr auto kSpinTime = std::chrono::microseconds(20);
constexpr auto kAwakeTime = std::chrono::microseconds(80);
constexpr int kPausesPerLook = 16;  // at the clock

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

// Waits awake until `ready`; false when that took too long.
template <typename Ready>
bool wait_awake(const Ready& ready) {
  using Clock = std::chrono::steady_clock;
  for (int i = 0; i < kPausesPerLook; ++i, pause())
    if (ready()) return true;
  const Clock::time_point start = Clock::now();
  for (Clock::duration waited{}; waited < kAwakeTime; waited = Clock::now() - start) {
    if (waited >= kSpinTime) std::this_thread::yield();
    for (int i = 0; i < kPausesPerLook; ++i, pause())
      if (ready()) return true;
  }
  return false;
}

// Where threads sleep until something has become true.
class Bell {
 public:
  // `ready` reads atomics in sequentially consistent order.
  template <typename Ready>
  void wait(const Ready& ready) {
    if (wait_awake(ready)) return;
    std::unique_lock<std::mutex> lock(mutex_);
    sleepers_.fetch_add(1);
    while (!ready()) bell_.wait(lock);
    sleepers_.fetch_sub(1);
  }

  // After what they wait for was written, in sequentially consistent order: either the writer sees
  // the sleeper, or the sleeper what was written.
  void ring() {
    if (sleepers_.load() == 0) return;
    std::lock_guard<std::mutex> lock(mutex_);
    bell_.notify_all();
  }

 private:
  std::atomic<int> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable bell_;
};

// Neighbouring items: the next to be claimed and the end, in one word, so that a claim is one
// addition. Whoever claims an item holds up its region, so what describes the region stays as it
// is; a claim in a range that is used up fails, in whatever region.
class alignas(kCacheLine) Range {
 public:
  void set(uint32_t first, uint32_t end) {
    word_.store(uint64_t{end} << 32 | first, std::memory_order_release);
  }

  // Returns the item, or -1.
  int claim() {
    if (is_empty(word_.load(std::memory_order_relaxed))) return -1;  // keeps the line shared
    const uint64_t word = word_.fetch_add(1, std::memory_order_acquire);
    return is_empty(word) ? -1 : static_cast<int>(static_cast<uint32_t>(word));
  }

 private:
  static bool is_empty(uint64_t word) { return static_cast<uint32_t>(word) >= word >> 32; }

  std::atomic<uint64_t> word_{0};
};

// One thread at a time may call `run`.
class Threads {
 public:
  explicit Threads(int count) : count_(count), ranges_(new (std::nothrow) Range[count]) {}
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  bool start();
  void wake();
  // Items are cut into so many ranges, at most one for each thread.
  void run(int items, int ranges, void (*body)(void*, int, int), void* context);
  int count() const { return count_; }

 private:
  void serve(int thread);
  void take_items(int thread);

  const int count_;
  // of the region at hand; written only while no item is left of the one before
  void (*body_)(void*, int, int) = nullptr;
  void* context_ = nullptr;
  int items_ = 0;
  const std::unique_ptr<Range[]> ranges_;
  std::unique_ptr<std::thread[]> workers_;
  std::atomic<bool> is_ending_{false};
  alignas(kCacheLine) std::atomic<uint32_t> region_{0};
  Bell begun_;
  alignas(kCacheLine) std::atomic<int> done_{0};  // items
  Bell finished_;
};

// False: a thread could not be made.
bool Threads::start() {
  workers_.reset(new (std::nothrow) std::thread[count_ - 1]);
  if (ranges_ == nullptr || workers_ == nullptr) return false;
  try {
    for (int i = 1; i < count_; ++i) workers_[i - 1] = std::thread([this, i] { serve(i); });
  } catch (const std::system_error&) {
    return false;
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

Threads::~Threads() {
  is_ending_.store(true);
  wake();
  for (int i = 0; workers_ != nullptr && i < count_ - 1; ++i)
    if (workers_[i].joinable()) workers_[i].join();
}

void Threads::serve(int thread) {
  for (uint32_t seen = 0;;) {
    begun_.wait([&] { return region_.load() != seen; });
    seen = region_.load();
    if (is_ending_.load()) return;
    take_items(thread);
  }
}

void Threads::take_items(int thread) {
  int taken = 0, items = 0;
  for (int i = 0; i < count_; ++i) {
    Range& range = ranges_[(thread + i) % count_];
    for (int item = range.claim(); item >= 0; item = range.claim(), ++taken) {
      items = items_;  // what an unfinished item holds still
      body_(context_, item, thread);
    }
  }
  if (taken > 0 && done_.fetch_add(taken) + taken == items) finished_.ring();
}

void Threads::wake() {
  region_.fetch_add(1);
  begun_.ring();
}

// Of the range `index`; ranges beyond the last are empty.
uint32_t start_of(int index, int ranges, int items) {
  return static_cast<uint32_t>(int64_t{items} * std::min(index, ranges) / ranges);
}

void Threads::run(int items, int ranges, void (*body)(void*, int, int), void* context) {
  body_ = body;
  context_ = context;
  items_ = items;
  done_.store(0);
  for (int i = 0; i < count_; ++i)
    ranges_[i].set(start_of(i, ranges, items), start_of(i + 1, ranges, items));
  wake();
  take_items(0);
  finished_.wait([&] { return done_.load() == items; });
}

}  // namespace

struct Pool : Threads {
  using Threads::Threads;
};

namespace {

void run(Pool& pool, int items, int ranges, void (*body)(void*, int, int), void* context) {
  if (items > 1 && pool.count() > 1) return pool.run(items, ranges, body, context);
  for (int item = 0; item < items; ++item) body(context, item, 0);
}

}  // namespace

void parallel(Pool& pool, int items, void (*body)(void* context, int item, int thread),
              void* context) {
  run(pool, items, pool.count(), body, context);
}

void parallel_in_order(Pool& pool, int items, void (*body)(void* context, int item, int thread),
                       void* context) {
  run(pool, items, 1, body, context);
}

void wake(Pool& pool) {
  if (pool.count() > 1) pool.wake();
}

int num_threads(const Pool& pool) { return pool.count(); }

}  // namespace qd

struct qd_pool : qd::Pool {
  using Pool::Pool;
};

namespace qd {

Pool& pool_of(qd_pool* handle) { return *handle; }

}  // namespace qd

extern "C" qd_pool* qd_pool_create(int32_t threads) {
  if (threads < 1 || threads > qd::kMaxThreads) return nullptr;
  std::unique_ptr<qd_pool> pool(new (std::nothrow) qd_pool(threads));
  return pool != nullptr && pool->start() ? pool.release() : nullptr;
}

extern "C" void qd_pool_destroy(qd_pool* pool) { delete pool; }
