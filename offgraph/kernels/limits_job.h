// What limits.cc hands to the code per instruction set. Not for other files.
#pragma once

#include <cstdint>

#include "offgraph/kernels/linear_isa.h"

namespace offgraph::kernels {

// Multiplies int8 numbers in registers, `rounds` times, and returns the number of multiplications and additions.
int64_t SpinInt8(DotIsa isa, int64_t rounds);

}  // namespace offgraph::kernels
