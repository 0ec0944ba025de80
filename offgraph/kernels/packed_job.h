// What the parts of the fast mode hand to each other; packed_weights.h says what it all means. Not for other files.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "offgraph/kernels/linear_isa.h"
#include "offgraph/kernels/packed_weights.h"

namespace offgraph::kernels {

inline constexpr int64_t kPackedTile = 32;  // columns in a tile
inline constexpr int64_t kPackedUnit = 64;  // activations that share a scale
// Bytes ahead of its use that weights are asked for. The processor's own prefetcher stops at the end of each page, and
// starts anew in each layer.
inline constexpr int64_t kPackedAhead = 4096;
inline constexpr float kPackedLargest = 2039.0F;

// Rows of activations. In batches of `batch` rows (the last one is filled up with zeros), so that a tile of 16 rows
// lies in one piece for AMX.
struct PackedRows {
  const int8_t* codes = nullptr;        // [rows / batch][k / 32][batch][64]: 32 times hi, then 32 times lo
  const float* scales = nullptr;        // [rows / batch][units][batch]
  const int32_t* zero_sums = nullptr;   // [rows / batch][pieces][batch]: -zero * (sum of the codes)
  const float* bias_factors = nullptr;  // [rows / batch][pieces][batch]: scale * (sum of the codes)
  int64_t batch = 1;
};

// Where a row's quantized form goes.
struct PackedRowOut {
  int8_t* codes = nullptr;
  int64_t batch = 1;  // distance from one number of the row to its next, and from a tile in units of 64
  float* scales = nullptr;
  int32_t* zero_sums = nullptr;  // null: sums are not wanted
  float* bias_factors = nullptr;
};

struct PackedJob {
  const PackedWeights* w = nullptr;
  PackedRows x;
  int64_t units = 0;
  int64_t pieces = 0;  // in a row
  int64_t groups = 0;
};

// Rows [row, row + rows) times blocks [block, block + blocks), before the epilogue. Sum (r, n) of it goes to
// sums[r * row_stride + n].
// REQUIRES: row and rows are multiples of the batch.
struct PackedTask {
  int64_t row = 0;
  int64_t rows = 0;
  int64_t block = 0;
  int64_t blocks = 0;
  float* sums = nullptr;
  int64_t row_stride = 0;
};

// Batches of 1, 2 or 4 rows.
void MultiplyPortable(const PackedJob& job, const PackedTask& task);
#if defined(__x86_64__)
void MultiplyAvx2(const PackedJob& job, const PackedTask& task);
void MultiplyAvx512(const PackedJob& job, const PackedTask& task);
void MultiplyVnni(const PackedJob& job, const PackedTask& task);
// REQUIRES: batches of 16 rows.
void MultiplyAmx(const PackedJob& job, const PackedTask& task);
#endif

// One element of a matrix, exactly.
inline float ElementAsFloat(const MatrixView& view, int64_t row, int64_t col) {
  const int64_t index = row * view.row_stride + col * view.col_stride;
  if (view.type == DType::kFloat32) return static_cast<const float*>(view.data)[index];
  const uint32_t bits = static_cast<const uint16_t*>(view.data)[index];
  if (view.type == DType::kBFloat16) return std::bit_cast<float>(bits << 16);
  // The product moves the exponent's bias from 15 to 127, and makes subnormals normal.
  uint32_t value = std::bit_cast<uint32_t>(std::bit_cast<float>((bits & 0x7FFF) << 13) * 0x1p112F);
  if ((bits & 0x7C00) == 0x7C00) value |= 0x7F800000;
  return std::bit_cast<float>(value | (bits & 0x8000) << 16);
}

}  // namespace offgraph::kernels
