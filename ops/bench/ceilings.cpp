// What the machine can do at most: bytes read from memory, products of int8 and of bfloat16.
//
//   ceilings KIND THREADS SECONDS   prints one number: bytes or operations per second of all
//                                   threads, 0 when this CPU has no such instruction
//
// Two operations are one multiplication and one addition, as in all figures of this directory.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

namespace {

constexpr size_t kReadBytes = size_t{192} << 20;  // of each thread: far more than any cache
constexpr int kRounds = 4096;
constexpr int kChains = 12;  // independent sums, enough to hide the latency of each: QD_TWELVE

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Many sums, so that no addition waits for the one before; the compiler widens them.
uint64_t read_all(const uint64_t* words, size_t count) {
  uint64_t sums[32] = {};
  for (size_t at = 0; at + 32 <= count; at += 32) {
    __builtin_prefetch(words + at + 512);
    for (int lane = 0; lane < 32; ++lane) sums[lane] += words[at + lane];
  }
  uint64_t total = 0;
  for (uint64_t sum : sums) total += sum;
  return total;
}

#if defined(__x86_64__)
// Fixed registers: the compilers move accumulators that they choose to memory and back.
#define QD_ONE(op, sum) op " %%zmm15, %%zmm15, %%zmm" sum "\n\t"
#define QD_TWELVE(op)                                                                       \
  QD_ONE(op, "0") QD_ONE(op, "1") QD_ONE(op, "2") QD_ONE(op, "3") QD_ONE(op, "4")           \
  QD_ONE(op, "5") QD_ONE(op, "6") QD_ONE(op, "7") QD_ONE(op, "8") QD_ONE(op, "9")           \
  QD_ONE(op, "10") QD_ONE(op, "11")
#define QD_CLOBBERS                                                                         \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",  \
      "xmm11", "xmm15"

#define QD_LOOP(op) \
  "vzeroall\n\tvpbroadcastd %1, %%zmm15\n1:\n\t" QD_TWELVE(op) "dec %0\n\tjnz 1b\n\tvzeroupper"

double int8_work() {
  const uint32_t ones = 0x01010101;
  int rounds = kRounds;
  asm volatile(QD_LOOP("vpdpbusd") : "+r"(rounds) : "m"(ones) : "cc", QD_CLOBBERS);
  return 2.0 * 64 * kChains * kRounds;
}

double bf16_work() {
  const uint32_t ones = 0x3f803f80;
  int rounds = kRounds;
  asm volatile(QD_LOOP("vdpbf16ps") : "+r"(rounds) : "m"(ones) : "cc", QD_CLOBBERS);
  return 2.0 * 32 * kChains * kRounds;
}
#endif

// Returns what one call did: bytes or operations; 0 when it cannot run here.
using Work = double (*)(const uint64_t* words);

double read_work(const uint64_t* words) {
  volatile uint64_t kept = read_all(words, kReadBytes / 8);
  (void)kept;
  return kReadBytes;
}

double int8_or_nothing(const uint64_t*) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512vnni")) return int8_work();
#endif
  return 0;
}

double bf16_or_nothing(const uint64_t*) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512bf16")) return bf16_work();
#endif
  return 0;
}

struct Share {
  double done = 0;
  double seconds = 1;
};

// Works for so long, once all threads are ready; each measures its own time.
Share run(Work work, bool reads, double seconds, std::atomic<int>& missing) {
  std::unique_ptr<uint64_t[]> words;
  if (reads) {
    words.reset(new uint64_t[kReadBytes / 8]);
    std::memset(words.get(), 1, kReadBytes);
  }
  Share share;
  work(words.get());
  missing.fetch_sub(1);
  while (missing.load() > 0) {
  }
  const auto start = Clock::now();
  do {
    const double done = work(words.get());
    if (done == 0) return Share{};
    share.done += done;
    share.seconds = seconds_since(start);
  } while (share.seconds < seconds);
  return share;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const bool reads = std::strcmp(argv[1], "read") == 0;
  const bool is_int8 = std::strcmp(argv[1], "int8") == 0;
  const Work work = reads ? read_work : is_int8 ? int8_or_nothing : bf16_or_nothing;
  const int threads = std::atoi(argv[2]);
  const double seconds = std::atof(argv[3]);
  std::atomic<int> missing{threads};
  std::vector<Share> shares(threads);
  std::vector<std::thread> workers;
  for (int index = 0; index < threads; ++index) {
    workers.emplace_back([&, index] { shares[index] = run(work, reads, seconds, missing); });
  }
  double total = 0;
  for (auto& worker : workers) worker.join();
  for (const Share& share : shares) total += share.done / share.seconds;
  std::printf("%.6e\n", total);
  return 0;
}
