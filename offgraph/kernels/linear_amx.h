// The configuration of AMX tile registers (Intel SDM volume 1, chapter 18). Not for other files.
#pragma once

#include <cstdint>

namespace offgraph::kernels {

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

}  // namespace offgraph::kernels
