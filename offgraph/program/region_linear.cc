// Linear layers of regions, in their exact form.
#include <utility>

#include "offgraph/kernels/linear.h"
#include "offgraph/kernels/quantized.h"
#include "offgraph/program/region.h"

namespace offgraph::program {
namespace {

using kernels::Block;

kernels::MatrixView MatrixOf(const mlx::core::array& array) {
  return {array.data<void>(), bytes::ToKernelType(array.dtype()), array.shape(-1), 1};
}

// One weight of several that share an input: it fills `width` columns of the result.
void MultiplyOne(const LinearWeights& linear, size_t n, int64_t rows, const Block& x, const Block& y,
                 kernels::ThreadPool& threads) {
  const mlx::core::array& w = linear.weights[n];
  const int64_t width = w.shape(0);
  const kernels::MatrixView input{x.data, kernels::DType::kFloat32, x.row_stride, 1};
  const kernels::MutableMatrixView output{y.data, kernels::DType::kFloat32, y.row_stride};
  if (linear.bits > 0) {
    const kernels::QuantizedView view{w.data<uint32_t>(),         w.shape(1),  MatrixOf(linear.scales[n]),
                                      MatrixOf(linear.biases[n]), linear.bits, linear.group_size};
    kernels::QuantizedLinear(rows, width, x.dim, input, view, output, {}, threads);
    return;
  }
  kernels::Epilogue epilogue;
  if (!linear.biases.empty()) {
    epilogue.addend = MatrixOf(linear.biases[n]);
    epilogue.addend.row_stride = 0;
  }
  kernels::Linear(rows, width, x.dim, input, MatrixOf(w), output, epilogue, threads);
}

}  // namespace

bytes::RegionLinear ExactLinear(const LinearWeights& linear) {
  return [linear](int64_t rows, const Block& x, const Block& y, kernels::ThreadPool& threads) {
    Block part = y;
    for (size_t n = 0; n < linear.weights.size(); ++n) {
      part.dim = linear.weights[n].shape(0);
      MultiplyOne(linear, n, rows, x, part, threads);
      part.data += part.dim;
    }
    if (linear.round == kernels::DType::kFloat32) return;
    kernels::Activate(rows, kernels::Activation::kCopy, y, linear.round, y, threads);
  };
}

}  // namespace offgraph::program
