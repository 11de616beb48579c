// Cuts the attention of a step into tasks for threads; the sizes of the cache.
#include "attention_tasks.h"

#include <algorithm>

namespace qd {
namespace {

constexpr int kTasksPerThread = 8;  // so that one slow task at the end costs little
constexpr int64_t kMostPartials = int64_t{8} << 20;  // floats of a plan; what needs more is not cut

// Neighbouring tokens of one request, for all key-value heads.
struct Chunk {
  const int32_t* blocks;
  int first_row, num_tokens, position;
  int first_piece, num_pieces;
  int64_t keys;  // that its tokens see, together
  int step;      // neighbouring pieces that one task takes
};

int64_t keys_seen(const AttentionCut& cut, int position, int num_tokens) {
  int64_t keys = 0;
  for (int at = position; at < position + num_tokens; ++at)
    keys += at + 1 - first_seen(at, cut.window);
  return keys;
}

Chunk make_chunk(const AttentionCut& cut, const qd_request& request, int offset, int num_tokens) {
  Chunk chunk;
  chunk.blocks = cut.window > 0 ? request.window_blocks : request.blocks;
  chunk.first_row = request.first_row + offset;
  chunk.num_tokens = num_tokens;
  chunk.position = request.start_position + offset;
  const int first = first_seen(chunk.position, cut.window);
  const int last = chunk.position + num_tokens - 1;
  chunk.first_piece = piece_of(first, cut.block_size);
  chunk.num_pieces = piece_of(last, cut.block_size) - chunk.first_piece + 1;
  chunk.keys = keys_seen(cut, chunk.position, num_tokens);
  chunk.step = chunk.num_pieces;
  return chunk;
}

std::vector<Chunk> cut_requests(const AttentionCut& cut, const qd_request* requests, int count) {
  const int most = task_tokens(cut.num_heads / cut.num_kv_heads);
  std::vector<Chunk> chunks;
  for (int r = 0; r < count; ++r)
    for (int offset = 0; offset < requests[r].num_rows; offset += most)
      chunks.push_back(make_chunk(cut, requests[r], offset,
                                  std::min(most, requests[r].num_rows - offset)));
  std::stable_sort(chunks.begin(), chunks.end(),
                   [](const Chunk& a, const Chunk& b) { return a.keys > b.keys; });
  return chunks;
}

// How many neighbouring pieces of a chunk one task should take: all, unless it would then be a
// large share of the step.
int pieces_per_task(const AttentionCut& cut, const Chunk& chunk, int64_t all_keys) {
  const int64_t share = all_keys * cut.num_kv_heads / (kTasksPerThread * cut.num_threads);
  if (cut.num_threads == 1 || chunk.keys <= share) return chunk.num_pieces;
  return std::max<int>(1, static_cast<int>(chunk.num_pieces * share / chunk.keys));
}

AttentionTask make_task(const Chunk& chunk, int kv_head) {
  return {chunk.blocks, chunk.first_row,   chunk.num_tokens, chunk.position,
          kv_head,      chunk.first_piece, chunk.num_pieces, nullptr};
}

struct Planner {
  const AttentionCut& cut;
  AttentionPlan& plan;

  int64_t floats_of_piece(const Chunk& chunk) const {
    const int group = cut.num_heads / cut.num_kv_heads;
    return chunk.num_tokens * group * part_floats(cut.head_dim);
  }

  // Says how chunks are cut; returns the floats that their parts need.
  int64_t cut_chunks(std::vector<Chunk>& chunks) const {
    int64_t keys = 0, floats = 0;
    for (const Chunk& chunk : chunks) keys += chunk.keys;
    for (Chunk& chunk : chunks) {
      const int step = pieces_per_task(cut, chunk, keys);
      const int64_t needed = floats_of_piece(chunk) * chunk.num_pieces * cut.num_kv_heads;
      if (step == chunk.num_pieces || floats + needed > kMostPartials) continue;
      chunk.step = step;
      floats += needed;
    }
    return floats;
  }

  // The tasks of a chunk that is cut, their parts beginning at `partial`; returns where they end.
  float* split(const Chunk& chunk, float* partial) {
    const int64_t floats = floats_of_piece(chunk);
    for (int head = 0; head < cut.num_kv_heads; ++head, partial += floats * chunk.num_pieces) {
      AttentionTask task = make_task(chunk, head);
      task.partial = partial;
      plan.combines.push_back(task);
      for (int piece = 0; piece < chunk.num_pieces; piece += chunk.step) {
        task.first_piece = chunk.first_piece + piece;
        task.num_pieces = std::min(chunk.step, chunk.num_pieces - piece);
        task.partial = partial + floats * piece;
        plan.tasks.push_back(task);
      }
    }
    return partial;
  }

  void keep(const Chunk& chunk) {
    for (int head = 0; head < cut.num_kv_heads; ++head)
      plan.tasks.push_back(make_task(chunk, head));
  }
};

}  // namespace

void plan_attention(const AttentionCut& cut, const qd_request* requests, int num_requests,
                    AttentionPlan& plan) {
  std::vector<Chunk> chunks = cut_requests(cut, requests, num_requests);
  plan.tasks.clear();
  plan.combines.clear();
  Planner planner{cut, plan};
  const int64_t floats = planner.cut_chunks(chunks);
  if (plan.partials.size() < static_cast<size_t>(floats)) plan.partials.resize(floats);
  float* partial = plan.partials.data();
  for (const Chunk& chunk : chunks) {
    if (chunk.step == chunk.num_pieces)
      planner.keep(chunk);
    else
      partial = planner.split(chunk, partial);
  }
}

}  // namespace qd

extern "C" int64_t qd_cache_block_bytes(int32_t cache_dtype, int32_t block_size,
                                        int32_t num_kv_heads, int32_t head_dim) {
  return qd::cache_layout(cache_dtype, block_size, num_kv_heads, head_dim).block_bytes;
}
