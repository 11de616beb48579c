// The C interface that brings stored weights into the layout of the kernels, which abi.h describes.
#ifndef QUARTERDECK_PACK_H
#define QUARTERDECK_PACK_H
#include "abi.h"

#ifdef __cplusplus
extern "C" {
#endif

// How a row is stored: the numbers of ggml_type.
enum {
  QD_STORED_F32 = 0, QD_STORED_F16 = 1, QD_STORED_BF16 = 30,
  QD_STORED_Q4_0 = 2, QD_STORED_Q4_1 = 3, QD_STORED_Q5_0 = 6, QD_STORED_Q5_1 = 7,
  QD_STORED_Q8_0 = 8, QD_STORED_Q2_K = 10, QD_STORED_Q3_K = 11, QD_STORED_Q4_K = 12,
  QD_STORED_Q5_K = 13, QD_STORED_Q6_K = 14,
};

typedef struct {
  const uint8_t* data;  // NULL: a row of zeros
  int32_t kind;         // QD_STORED_*; rows of one panel may differ
  int32_t pad;
} qd_stored_row;

// Sums of squares over the values that the format cannot hold exactly.
typedef struct {
  double error;
  double values;
} qd_squares;

// Packs 32 * num_panels rows of `columns` values each; `width` is `columns` padded to whole groups.
// Adds to `squares`. Returns QD_OK, QD_NO_MEMORY, or QD_BAD_VALUE: a format or kind is unknown, or
// the rows are no whole blocks of their kind.
QD_EXPORT int32_t qd_pack(const qd_stored_row* rows, int32_t num_panels, int32_t columns,
                          int32_t format, int32_t width, uint8_t* panels, qd_squares* squares);

#ifdef __cplusplus
}
#endif
#endif
