// Kernels for AVX2 with AVX-VNNI, the same instruction in its shorter registers (Alder Lake, Sierra
// Forest, Zen 5 and later).
#include "cache_layout.h"  // not within the target: its functions have external linkage
#if defined(__x86_64__)
#define QD_HAS_AVX_VNNI
#define QD_TABLE kernels_avx2_vnni
#define QD_NAME "avx2-vnni"
#include <immintrin.h>
#include <cmath>
#include <cstring>

#include "target.h"
QD_TARGET_BEGIN("avx2,fma,f16c")
#include "vec_avx2.h"
#include "isa.inl"
QD_TARGET_END
#endif
