// The instruction sets that kernels are compiled for. Include it before any Highway header.
//
// x86: SSE2 as the base, AVX2 (with FMA and F16C), AVX-512, AVX-512 with VNNI ("AVX3_DL"). Arm: NEON.
// SSSE3 and SSE4 would add code size and no speed that matters. The sizeless vectors of SVE and RVV cannot be members
// of arrays, which the kernels use for register tiles.
#pragma once

// NOLINTBEGIN(bugprone-macro-parentheses)
#define HWY_WANT_AVX3_DL
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
// NOLINTEND(bugprone-macro-parentheses)
