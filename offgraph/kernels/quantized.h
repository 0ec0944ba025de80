// Matrix products with group-quantized weights, on the CPU, in the exact mode: a weight is dequantized to fp32 in
// registers, w = scale * q + bias (fused where the instruction set fuses), and what follows is kernels/linear.h: the
// same order of additions, the same promise about bits.
//
// The layout is that of MLX's affine quantization. A row is cut into groups of `group_size` values that share a scale
// and a bias. The codes of a row, `bits` wide each, lie one after the other in a stream of bits that fills 32-bit words
// from their lowest bit up: 32 codes take exactly `bits` words, and a code of 3, 5 or 6 bits may straddle two words.
//
// Thread rule: that of linear.h.
#pragma once

#include <cstdint>

#include "offgraph/kernels/linear.h"

namespace offgraph::kernels {

// A quantized matrix [rows, cols]. REQUIRES: cols is a multiple of group_size.
struct QuantizedView {
  const uint32_t* codes = nullptr;  // [rows, cols * bits / 32]
  int64_t code_stride = 0;          // words from one row to the next
  MatrixView scales;                // [rows, cols / group_size], contiguous columns
  MatrixView biases;                // [rows, cols / group_size], contiguous columns
  int bits = 4;                     // one that IsQuantizedBits accepts
  int group_size = 32;              // a multiple of 32
};

constexpr bool IsQuantizedBits(int bits) {
  return bits == 1 || bits == 2 || bits == 3 || bits == 4 || bits == 5 || bits == 6 || bits == 8;
}

// y = x w^T.
//   x [M, K]   w [N, K]   y [M, N]
void QuantizedLinear(int64_t m, int64_t n, int64_t k, const MatrixView& x, const QuantizedView& w,
                     const MutableMatrixView& y, const Epilogue& epilogue, ThreadPool& threads);

// y = a b, the groups of b lying along N.
//   a [M, K]   b [K, N]   y [M, N]
void QuantizedMatMul(int64_t m, int64_t n, int64_t k, const MatrixView& a, const QuantizedView& b,
                     const MutableMatrixView& y, const Epilogue& epilogue, ThreadPool& threads);

}  // namespace offgraph::kernels
