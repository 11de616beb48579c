// Kernels for AVX-512 with VNNI and BF16 (Zen 4 and later, Cooper Lake, Sapphire Rapids).
#include "cache_layout.h"  // not within the target: its functions have external linkage
#if defined(__x86_64__)
#define QD_HAS_BF16
#define QD_TABLE kernels_avx512_bf16
#define QD_NAME "avx512-bf16"
#include <immintrin.h>
#include <cmath>
#include <cstring>

#include "target.h"
QD_TARGET_BEGIN("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,avx2,fma,f16c")
#include "vec_avx512.h"
#include "isa.inl"
QD_TARGET_END
#endif
