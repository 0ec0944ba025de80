// Linear layers of regions.
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "offgraph/kernels/linear.h"
#include "offgraph/kernels/packed_weights.h"
#include "offgraph/kernels/quantized.h"
#include "offgraph/program/region.h"

namespace offgraph::program {
namespace {

using kernels::Block;

kernels::MatrixView MatrixOf(const mlx::core::array& array) {
  return {array.data<void>(), bytes::ToKernelType(array.dtype()), array.shape(-1), 1};
}

kernels::QuantizedView QuantizedOf(const LinearWeights& linear, size_t n) {
  const mlx::core::array& w = linear.weights[n];
  return {w.data<uint32_t>(),         w.shape(1),  MatrixOf(linear.scales[n]),
          MatrixOf(linear.biases[n]), linear.bits, linear.group_size};
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

void RoundTo(kernels::DType type, int64_t rows, const Block& y, kernels::ThreadPool& threads) {
  if (type == kernels::DType::kFloat32) return;
  kernels::Activate(rows, kernels::Activation::kCopy, y, type, y, threads);
}

// Of a quantized layer.
int64_t ColumnsOf(const LinearWeights& linear) { return int64_t{linear.weights.front().shape(1)} * 32 / linear.bits; }

}  // namespace

bytes::RegionLinear ExactLinear(const LinearWeights& linear) {
  return [linear](int64_t rows, const Block& x, const Block& y, kernels::ThreadPool& threads) {
    Block part = y;
    for (size_t n = 0; n < linear.weights.size(); ++n) {
      part.dim = linear.weights[n].shape(0);
      MultiplyOne(linear, n, rows, x, part, threads);
      part.data += part.dim;
    }
    RoundTo(linear.round, rows, y, threads);
  };
}

bool IsLaidOutAnew(const LinearWeights& linear) {
  // Activations share a scale in units of 64; a rest would be a unit of its own that no kernel knows.
  return linear.fast && ColumnsOf(linear) % 64 == 0;
}

std::shared_ptr<const kernels::PackedWeights> LayOut(const LinearWeights& linear, kernels::WeightArena& arena) {
  std::vector<kernels::QuantizedRows> parts;
  for (size_t n = 0; n < linear.weights.size(); ++n) {
    parts.push_back({QuantizedOf(linear, n), linear.weights[n].shape(0)});
  }
  return std::make_shared<const kernels::PackedWeights>(parts, ColumnsOf(linear), kernels::ThreadPool::Default(),
                                                        arena);
}

bytes::RegionLinear PackedLinear(std::shared_ptr<const kernels::PackedWeights> packed, kernels::DType round) {
  return
      [packed = std::move(packed), round](int64_t rows, const Block& x, const Block& y, kernels::ThreadPool& threads) {
        const kernels::MatrixView input{x.data, kernels::DType::kFloat32, x.row_stride, 1};
        kernels::PackedLinear(rows, input, *packed, {y.data, kernels::DType::kFloat32, y.row_stride}, {}, threads);
        RoundTo(round, rows, y, threads);
      };
}

}  // namespace offgraph::program
