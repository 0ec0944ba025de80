// Tile registers (AMX; Intel SDM volume 1, chapter 18): what this processor has of them, their configuration, and the
// instructions as functions. Not for other rooms.
//
// The instructions are written as assembler, so that a function may use them whatever compiler target it has.
#pragma once

#include <cstdint>

namespace offgraph::kernels {

// Whether tile registers may be used for products of int8, or of bfloat16, to which vectors can be rounded then
// (AVX512_BF16). The first call asks Linux for the permission of this process to hold tile data (x86/xstate.rst).
bool AmxInt8Available();
bool AmxBf16Available();

// What LDTILECFG reads. Objects of it are static: compilers take the intrinsic to read 8 bytes, and may drop the rest
// of an object on the stack.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

// Bytes of a whole tile register: 16 rows of 64.
inline constexpr int64_t kTileBytes = 1024;

#if defined(__x86_64__)
// The configuration of this thread, for as long as the object lives.
class TileScope {
 public:
  explicit TileScope(const TileConfig& config) { asm volatile("ldtilecfg %0" : : "m"(config)); }
  ~TileScope() { asm volatile("tilerelease"); }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

// Rows of a register from or to memory, `stride` bytes apart.
template <int kTile>
inline __attribute__((always_inline)) void LoadTile(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "n"(kTile) : "memory");
}
// The same of memory that the nearest cache need not keep, so that it keeps the rest.
template <int kTile>
inline __attribute__((always_inline)) void StreamTile(const void* from, int64_t stride) {
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "n"(kTile) : "memory");
}
template <int kTile>
inline __attribute__((always_inline)) void StoreTile(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "n"(kTile) : "memory");
}
template <int kTile>
inline __attribute__((always_inline)) void ZeroTile() {
  asm volatile("tilezero %%tmm%c0" : : "n"(kTile));
}

// sum[m, n] += a[m, 2 k] b[k, 2 n] + a[m, 2 k + 1] b[k, 2 n + 1] over bfloat16 pairs, in fp32.
template <int kSum, int kA, int kB>
inline __attribute__((always_inline)) void DotTilesBf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "n"(kSum), "n"(kA), "n"(kB));
}
#endif

}  // namespace offgraph::kernels
