// A small pool of threads that share one piece of work after the other.
//
// Work is cut into items that any thread may take: a thread that the system takes away for a while
// delays one item and not its whole share.
#pragma once
#include <atomic>
#include <cstdint>

#include "abi.h"

namespace qd {

struct Pool;

// Runs `body(context, item, thread)` for each item in [0, items), on all threads of the pool;
// returns when all are done. Items that neighbour each other mostly go to one thread. With one
// item, or one thread, the caller does it all. One thread at a time may call this.
void parallel(Pool& pool, int items, void (*body)(void* context, int item, int thread),
              void* context);

// As `parallel`, but items are begun in their order: the longest first.
void parallel_in_order(Pool& pool, int items, void (*body)(void* context, int item, int thread),
                       void* context);

template <typename Body>
void parallel(Pool& pool, int items, Body&& body) {
  auto call = [](void* context, int item, int thread) {
    (*static_cast<Body*>(context))(item, thread);
  };
  parallel(pool, items, +call, &body);
}

template <typename Body>
void parallel_in_order(Pool& pool, int items, Body&& body) {
  auto call = [](void* context, int item, int thread) {
    (*static_cast<Body*>(context))(item, thread);
  };
  parallel_in_order(pool, items, +call, &body);
}

// Wakes threads that sleep, so that they are there when work comes in a moment.
void wake(Pool& pool);

int num_threads(const Pool& pool);

Pool& pool_of(qd_pool* handle);

}  // namespace qd
