// Makes the table of kernels of one instruction set. Included by isa_*.cpp after a vec_*.h and
// inside of a target region, with QD_TABLE and QD_NAME defined.
#include "math.inl"
// these use it
#include "attention.inl"
#include "linear.inl"
#include "low_rank.inl"
#include "rows.inl"
#include "sampling.inl"

namespace qd {

extern const Kernels QD_TABLE;
const Kernels QD_TABLE = {
    QD_NAME,   linear,     embed,      rms_norm,    add,    round_row, glu,   softcap,
    rotary,    low_rank,   store_token, attend,     combine, argmax,    weigh, block_maxima,
    collect,   log_softmax, forbid,
};

}  // namespace qd
