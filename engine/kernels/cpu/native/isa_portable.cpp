// Kernels for any processor, as the compiler makes them.
#include "kernels.h"
#define QD_TABLE kernels_portable
#define QD_NAME "portable"
#include "vec_portable.h"
#include "isa.inl"
