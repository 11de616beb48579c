// Begins and ends code for an instruction set that the compiler's own target may lack.
//
// Inside, everything must have internal linkage (an anonymous namespace, no templates of the
// standard library): the linker merges equal symbols, and one that was compiled for a newer
// processor may win.
#pragma once
#define QD_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define QD_TARGET_BEGIN(features) \
  QD_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define QD_TARGET_END _Pragma("clang attribute pop")
#else
#define QD_TARGET_BEGIN(features) _Pragma("GCC push_options") QD_PRAGMA(GCC target(features))
#define QD_TARGET_END _Pragma("GCC pop_options")
#endif
#define QD_INLINE static inline __attribute__((always_inline))
