// Several linear layers of the same input as one.
#pragma once

#include <cstdint>
#include <span>

#include "offgraph/kernels/dtype.h"
#include "offgraph/kernels/linear.h"
#include "offgraph/kernels/thread_pool.h"

namespace offgraph::kernels {

struct LinearPart {
  MatrixView w;  // [n, K]
  int64_t n = 0;
  Epilogue epilogue;
  DType round = DType::kFloat32;  // what results are rounded to, where y could hold more
};

// y = [x w_0^T, x w_1^T, ...]: the results of all parts side by side, each with the bits that Linear gives it alone.
//   x [M, K]   y [M, sum of n]
// `x_values` is x's type, or a narrower one that holds every element of x: the fewer bits, the faster.
void Linear(int64_t m, int64_t k, const MatrixView& x, DType x_values, std::span<const LinearPart> parts,
            const MutableMatrixView& y, ThreadPool& threads);

}  // namespace offgraph::kernels
