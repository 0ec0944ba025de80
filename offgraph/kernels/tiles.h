// Whether kernels may use tile registers. Not for other rooms.
#pragma once

namespace offgraph::kernels {

// That this processor has them for bfloat16, and the instruction set that their kernels are compiled for (AVX-512 with
// VNNI) is the one that Highway chose, or a test.
bool TilesAvailable();

}  // namespace offgraph::kernels
