// Which instruction sets this build has and this machine runs.
#include <cstdint>
#include <cstring>

#include "isa.h"
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace qd {

extern const Kernels kernels_portable;
#if defined(__x86_64__)
extern const Kernels kernels_avx512_bf16, kernels_avx512, kernels_avx2_vnni, kernels_avx2;
#endif

namespace {

bool always() { return true; }

#if defined(__x86_64__)

struct Leaf {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Leaf leaf(uint32_t number, uint32_t part) {
  Leaf found;
  if (!__get_cpuid_count(number, part, &found.eax, &found.ebx, &found.ecx, &found.edx)) return {};
  return found;
}

bool all_of(uint32_t bits, uint32_t wanted) { return (bits & wanted) == wanted; }

// The parts of the registers that the system saves when it switches threads (XCR0).
bool saves(uint32_t wanted) {
  const uint32_t has_xgetbv = 1u << 27;
  if (!all_of(leaf(1, 0).ecx, has_xgetbv)) return false;
  uint32_t low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return all_of(low, wanted);
}

// Bits of cpuid and XCR0.
//
// Source:
//   Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2A (CPUID) and volume 1,
//   section 13.2 (XCR0)
bool runs_avx2() {
  const uint32_t fma = 1u << 12, avx = 1u << 28, f16c = 1u << 29;  // of leaf 1, ecx
  const uint32_t avx2 = 1u << 5;                                   // of leaf 7, ebx
  const uint32_t sse_and_avx_state = 0x6;
  return all_of(leaf(1, 0).ecx, fma | avx | f16c) && all_of(leaf(7, 0).ebx, avx2) &&
         saves(sse_and_avx_state);
}

bool runs_avx2_vnni() {
  const uint32_t avx_vnni = 1u << 4;  // of leaf 7 part 1, eax
  return runs_avx2() && leaf(7, 0).eax >= 1 && all_of(leaf(7, 1).eax, avx_vnni);
}

bool runs_avx512() {
  const uint32_t f = 1u << 16, dq = 1u << 17, bw = 1u << 30, vl = 1u << 31;  // of leaf 7, ebx
  const uint32_t vnni = 1u << 11;                                            // of leaf 7, ecx
  const uint32_t mask_and_zmm_state = 0xe0;
  return runs_avx2() && all_of(leaf(7, 0).ebx, f | dq | bw | vl) &&
         all_of(leaf(7, 0).ecx, vnni) && saves(mask_and_zmm_state);
}

bool runs_avx512_bf16() {
  const uint32_t bf16 = 1u << 5;  // of leaf 7 part 1, eax
  return runs_avx512() && leaf(7, 0).eax >= 1 && all_of(leaf(7, 1).eax, bf16);
}

#endif

struct InstructionSet {
  const Kernels* kernels;
  bool (*runs_here)();
};

// Best first.
const InstructionSet kInstructionSets[] = {
#if defined(__x86_64__)
    {&kernels_avx512_bf16, runs_avx512_bf16},
    {&kernels_avx512, runs_avx512},
    {&kernels_avx2_vnni, runs_avx2_vnni},
    {&kernels_avx2, runs_avx2},
#endif
    {&kernels_portable, always},
};
constexpr int kNumInstructionSets = sizeof kInstructionSets / sizeof kInstructionSets[0];

struct RunHere {
  bool at[kNumInstructionSets];

  RunHere() {
    for (int i = 0; i < kNumInstructionSets; ++i) at[i] = kInstructionSets[i].runs_here();
  }
};

// Asked once: on virtual machines cpuid takes tens of microseconds, as it stops the machine.
bool runs_here(int index) {
  static const RunHere found;
  return found.at[index];
}

}  // namespace

const Kernels* kernels_named(const char* name) {
  for (int i = 0; i < kNumInstructionSets; ++i)
    if (name && strcmp(kInstructionSets[i].kernels->name, name) == 0)
      return runs_here(i) ? kInstructionSets[i].kernels : nullptr;
  return nullptr;
}

}  // namespace qd

extern "C" {

int32_t qd_abi_version(void) { return QD_ABI_VERSION; }

const char* qd_isa_name(int32_t index) {
  if (index < 0 || index >= qd::kNumInstructionSets) return nullptr;
  return qd::kInstructionSets[index].kernels->name;
}

int32_t qd_isa_runs_here(int32_t index) {
  if (index < 0 || index >= qd::kNumInstructionSets) return 0;
  return qd::runs_here(index);
}

}  // extern "C"
