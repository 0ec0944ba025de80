// The x86 intrinsics. GCC 12 takes the "undefined" operands of its own AVX-512 intrinsics for a mistake of the caller
// (GCC bug 105593), and judges by where they are defined.
#pragma once

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
