// Included before every source of llama.cpp, which is compiled as it is otherwise.
// GCC 12's _tile_loadconfig tells the compiler that the instruction reads 8 of the 64 bytes of the tile configuration.
// The stores to the others are then dropped, and llama.cpp ends with an illegal instruction on processors with AMX.
#pragma once

#if defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>

#undef _tile_loadconfig
#define _tile_loadconfig(config) __asm__ volatile("ldtilecfg\t%0" ::"m"(*(const char(*)[64])(config)))
#endif
