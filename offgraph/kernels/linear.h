// Matrix products with dense weights, on the CPU. Raw pointers, counts and strides; no tensor.
//
// Bits: a row of the result depends on that row of x, on the weights, and on nothing else. For one instruction set and
// one pair of types the order of the additions over k is fixed, whatever the number of rows, the strides, the threads:
//   Linear  With L the lanes of a vector register (16 for AVX-512, 8 for AVX2, 4 for NEON, else 1): L partial sums, of
//           which number l adds the products of k = l, l + L, l + 2 L, ... in that order, each product and its sum
//           fused where the instruction set fuses; then one fixed tree over the L sums.
//           With tile registers, for weights of fp16 or bf16: as linear_tiles.h says.
//   MatMul  One sum in the order k = 0, 1, ..., fused likewise.
// Operands are converted to fp32 without loss first; the result is rounded once, to nearest even.
//
// Thread rule: all functions may be called from any thread; they spread over `threads` and return when all is done.
#pragma once

#include <cstdint>

#include "offgraph/kernels/dtype.h"
#include "offgraph/kernels/thread_pool.h"

namespace offgraph::kernels {

// A matrix in memory: element (i, j) is at data + i * row_stride + j * col_stride, strides in elements.
struct MatrixView {
  const void* data = nullptr;
  DType type = DType::kFloat32;
  int64_t row_stride = 0;
  int64_t col_stride = 1;
};
struct MutableMatrixView {  // its columns are contiguous
  void* data = nullptr;
  DType type = DType::kFloat32;
  int64_t row_stride = 0;
};

// What becomes of a product p: alpha * p + beta * addend, in fp32, before it is rounded. Without an addend: alpha * p.
struct Epilogue {
  float alpha = 1.0F;
  float beta = 1.0F;
  MatrixView addend;  // [M, N]; strides of 0 broadcast; data null: none. A bias [N] has row_stride 0.
};

// y = x w^T, for a weight in the layout of a linear layer.
//   x [M, K]   w [N, K]   y [M, N]
// The result must not overlap the operands. Sizes may be zero: a sum over no k is 0.
// Fastest where w's rows are contiguous.
void Linear(int64_t m, int64_t n, int64_t k, const MatrixView& x, const MatrixView& w, const MutableMatrixView& y,
            const Epilogue& epilogue, ThreadPool& threads);

// y = a b.
//   a [M, K]   b [K, N]   y [M, N]
// As Linear in all else. Fastest where b's rows are contiguous.
void MatMul(int64_t m, int64_t n, int64_t k, const MatrixView& a, const MatrixView& b, const MutableMatrixView& y,
            const Epilogue& epilogue, ThreadPool& threads);

}  // namespace offgraph::kernels
