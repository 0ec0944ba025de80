// Included before every source of llama.cpp, which is compiled as it is otherwise, so that it is as fast here as it can
// be.
#pragma once

// With this, llama.cpp's fp16 loops work on 128 numbers at a time and do the rest one by one: heads of 64 numbers are
// all rest, and decoding at depth 2048 takes five times as long. Without it they work on 64, as in its own releases.
#undef __AVX512FP16__

// GCC 12's _tile_loadconfig tells the compiler that the instruction reads 8 of the 64 bytes of the tile configuration.
// The stores to the others are then dropped, and llama.cpp ends with an illegal instruction on processors with AMX.
#if defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>

#undef _tile_loadconfig
#define _tile_loadconfig(config) __asm__ volatile("ldtilecfg\t%0" ::"m"(*(const char(*)[64])(config)))
#endif
