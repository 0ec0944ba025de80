// Ops that pick elements by index.
#include <mlx/ops.h>

#include <algorithm>

#include "offgraph/cache/error.h"
#include "offgraph/program/handler.h"
#include "offgraph/program/mlx_types.h"

namespace offgraph::program {
namespace {

namespace mx = mlx::core;

Action Take(const Operands& operands) {
  return [x = operands.Tensor("x"), out = operands.Tensor("out"), index = operands.Index("index"),
          axis = operands.Int("axis")](Frame& frame) {
    const mx::array& input = frame.Get(x);
    const int dim = NormalizeAxis(axis, input);
    if (const Tid* indices = std::get_if<Tid>(&index.value)) {
      frame.Set(out, mx::take(input, CheckedIndices(frame.Get(*indices), input.shape(dim)), dim));
      return;
    }
    const int64_t* literal = std::get_if<int64_t>(&index.value);
    const int64_t position = literal != nullptr ? *literal : frame.Int(std::get<Vid>(index.value));
    const int size = input.shape(dim);
    if (position < -size || position >= size) {
      throw Error(ErrorCode::kInvalidArgument,
                  "index " + std::to_string(position) + " into an axis of " + std::to_string(size));
    }
    frame.Set(out, mx::take(input, static_cast<int>(position < 0 ? position + size : position), dim));
  };
}

Action TakeAlongAxis(const Operands& operands) {
  return [x = operands.Tensor("x"), indices = operands.Tensor("indices"), out = operands.Tensor("out"),
          axis = operands.Int("axis")](Frame& frame) {
    const mx::array& input = frame.Get(x);
    const int dim = NormalizeAxis(axis, input);
    frame.Set(out, mx::take_along_axis(input, CheckedIndices(frame.Get(indices), input.shape(dim)), dim));
  };
}

Action Gather(const Operands& operands) {
  auto indices = operands.Tensors("indices");
  auto axes = operands.Ints("axes");
  auto slice_sizes = operands.Ints("slice_sizes");
  if (axes.size() != indices.size()) operands.Fail("as many axes as index tensors are needed");
  return [x = operands.Tensor("x"), out = operands.Tensor("out"), indices, axes, slice_sizes](Frame& frame) {
    const mx::array& input = frame.Get(x);
    std::vector<int> dims;
    std::vector<mx::array> checked;
    for (size_t i = 0; i < axes.size(); ++i) {
      dims.push_back(NormalizeAxis(axes[i], input));
      if (static_cast<size_t>(dims.back()) >= slice_sizes.size()) {
        throw Error(ErrorCode::kInvalidArgument, "slice sizes for " + std::to_string(slice_sizes.size()) +
                                                     " axes of a tensor of shape " + ShapeText(input.shape()));
      }
      // The slice starts at the index and must end inside of the axis.
      const int axis = input.shape(dims.back());
      const int slice = slice_sizes[static_cast<size_t>(dims.back())];
      if (slice < 0 || slice > axis) {
        throw Error(ErrorCode::kInvalidArgument,
                    "a slice of " + std::to_string(slice) + " elements of an axis of " + std::to_string(axis));
      }
      checked.push_back(CheckedIndices(frame.Get(indices[i]), axis - slice + 1));
    }
    frame.Set(out, mx::gather(input, checked, dims, mx::Shape(slice_sizes.begin(), slice_sizes.end())));
  };
}

constexpr Handler kOps[] = {
    {"GatherNode", "slices of x at indices along several axes", Gather},
    {"TakeAlongAxisNode", "the element that each index names along an axis", TakeAlongAxis},
    {"TakeNode", "the slices that indices name along an axis", Take},
};

}  // namespace

std::span<const Handler> IndexOps() { return kOps; }

}  // namespace offgraph::program
