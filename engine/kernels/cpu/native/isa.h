// Finds the kernels of an instruction set by its name.
#pragma once
#include "kernels.h"

namespace qd {

// NULL: this build has none of that name, or this machine cannot run them.
const Kernels* kernels_named(const char* name);

}  // namespace qd
