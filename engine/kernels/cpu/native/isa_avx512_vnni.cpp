// Kernels for AVX-512 with VNNI alone (Cascade Lake, Ice Lake, Tiger Lake).
#include "cache_layout.h"  // not within the target: its functions have external linkage
#if defined(__x86_64__)
#define QD_TABLE kernels_avx512
#define QD_NAME "avx512-vnni"
#include <immintrin.h>
#include <cmath>
#include <cstring>

#include "target.h"
QD_TARGET_BEGIN("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")
#include "vec_avx512.h"
#include "isa.inl"
QD_TARGET_END
#endif
