// Linear layers of regions.
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "offgraph/kernels/linear_parts.h"
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

kernels::MatrixView InputOf(const Block& x) { return {x.data, kernels::DType::kFloat32, x.row_stride, 1}; }
kernels::MutableMatrixView OutputOf(const Block& y) { return {y.data, kernels::DType::kFloat32, y.row_stride}; }

void RoundTo(kernels::DType type, int64_t rows, const Block& y, kernels::ThreadPool& threads) {
  if (type == kernels::DType::kFloat32) return;
  kernels::Activate(rows, kernels::Activation::kCopy, y, type, y, threads);
}

// Of a quantized layer.
int64_t ColumnsOf(const LinearWeights& linear) { return int64_t{linear.weights.front().shape(1)} * 32 / linear.bits; }

bytes::RegionLinear DenseLinear(const LinearWeights& linear) {
  std::vector<kernels::LinearPart> parts;
  for (size_t n = 0; n < linear.weights.size(); ++n) {
    kernels::LinearPart part{MatrixOf(linear.weights[n]), linear.weights[n].shape(0), {}, linear.round};
    if (!linear.biases.empty()) {
      part.epilogue.addend = MatrixOf(linear.biases[n]);
      part.epilogue.addend.row_stride = 0;
    }
    parts.push_back(part);
  }
  // The result is of the widest type among the layer's, so that x holds no more bits than that type has.
  return
      [linear, parts = std::move(parts)](int64_t rows, const Block& x, const Block& y, kernels::ThreadPool& threads) {
        kernels::Linear(rows, x.dim, InputOf(x), linear.round, parts, OutputOf(y), threads);
      };
}

bytes::RegionLinear QuantizedLinear(const LinearWeights& linear) {
  return [linear](int64_t rows, const Block& x, const Block& y, kernels::ThreadPool& threads) {
    Block part = y;
    for (size_t n = 0; n < linear.weights.size(); ++n) {
      part.dim = linear.weights[n].shape(0);
      kernels::QuantizedLinear(rows, part.dim, x.dim, InputOf(x), QuantizedOf(linear, n), OutputOf(part), {}, threads);
      part.data += part.dim;
    }
    RoundTo(linear.round, rows, y, threads);
  };
}

}  // namespace

bytes::RegionLinear ExactLinear(const LinearWeights& linear) {
  return linear.bits > 0 ? QuantizedLinear(linear) : DenseLinear(linear);
}

bool IsLaidOutAnew(const LinearWeights& linear) {
  // Activations share a scale in units of 64; a rest would be a unit of its own that no kernel knows.
  return linear.fast && ColumnsOf(linear) % 64 == 0;
}

std::shared_ptr<const kernels::PackedWeights> LayOut(const LinearWeights& linear, kernels::WeightArena& arena,
                                                     kernels::PartOrder order) {
  std::vector<kernels::QuantizedRows> parts;
  for (size_t n = 0; n < linear.weights.size(); ++n) {
    parts.push_back({QuantizedOf(linear, n), linear.weights[n].shape(0)});
  }
  return std::make_shared<const kernels::PackedWeights>(parts, ColumnsOf(linear), kernels::ThreadPool::Default(), arena,
                                                        order);
}

bytes::RegionLinear PackedLinear(std::shared_ptr<const kernels::PackedWeights> packed, kernels::DType round) {
  return
      [packed = std::move(packed), round](int64_t rows, const Block& x, const Block& y, kernels::ThreadPool& threads) {
        kernels::PackedLinear(rows, InputOf(x), *packed, OutputOf(y), {}, threads);
        RoundTo(round, rows, y, threads);
      };
}

bytes::RegionLinear PackedGatedLinear(std::shared_ptr<const kernels::PackedWeights> packed,
                                      kernels::Activation activation) {
  return [packed = std::move(packed), activation](int64_t rows, const Block& x, const Block& y,
                                                  kernels::ThreadPool& threads) {
    kernels::PackedGatedLinear(rows, InputOf(x), *packed, activation, OutputOf(y), threads);
  };
}

}  // namespace offgraph::program
