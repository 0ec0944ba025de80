// Ops that write a part of a tensor. Where the result's slot is the tensor's own, as for a mutable buffer, nothing else
// holds the old array when the step is evaluated, and MLX writes in place.
#include <mlx/ops.h>

#include <algorithm>

#include "offgraph/cache/error.h"
#include "offgraph/program/handler.h"
#include "offgraph/program/mlx_types.h"

namespace offgraph::program {
namespace {

namespace mx = mlx::core;

[[noreturn]] void Refuse(const std::string& problem) { throw Error(ErrorCode::kInvalidArgument, problem); }

// dst[.., from:to:step, ..] = update on one axis.
mx::array UpdateSlice(const mx::array& dst, const mx::array& update, size_t axis, int from, int to, int step) {
  const auto rows = static_cast<int>((int64_t{to} - from + step - 1) / step);
  mx::Shape expected = dst.shape();
  expected[axis] = rows;
  if (update.ndim() == dst.ndim() && update.shape(static_cast<int>(axis)) != rows) {
    Refuse("an update of shape " + ShapeText(update.shape()) + " for rows " + std::to_string(from) + " to " +
           std::to_string(to) + " on axis " + std::to_string(axis) + " of " + ShapeText(dst.shape()));
  }
  if (rows == 0) return dst;
  mx::Shape start(dst.ndim(), 0);
  mx::Shape stop = dst.shape();
  mx::Shape steps(dst.ndim(), 1);
  start[axis] = from;
  stop[axis] = to;
  steps[axis] = std::min(step, dst.shape()[axis]);  // one that leaves the axis at once; MLX adds to it
  return mx::slice_update(dst, mx::broadcast_to(update, expected), start, stop, steps);
}

Action SliceUpdate(const Operands& operands) {
  const int step = operands.Int("step");
  if (step <= 0) operands.Fail("step " + std::to_string(step) + ", must be positive");
  return [dst = operands.Tensor("dst"), update = operands.Tensor("update"), out = operands.Tensor("out"),
          axis = operands.IntOrSlot("axis"), start = operands.IntOrSlot("start"), stop = operands.IntOrSlot("stop"),
          step](Frame& frame) {
    const mx::array& target = frame.Get(dst);
    const int dim = NormalizeAxis(frame.Int32(axis), target);
    const int size = target.shape(dim);
    const int from = ClampToAxis(frame.Int(start), size);
    const int to = std::max(from, ClampToAxis(frame.Int(stop), size));
    frame.Set(out, UpdateSlice(target, frame.Get(update), static_cast<size_t>(dim), from, to, step));
  };
}

// Whether the indices are known, and count up by one from a first that is in range.
bool IsRun(const mx::array& indices, int size, int64_t* first) {
  if (indices.size() == 0 || !indices.is_available() || !indices.flags().row_contiguous) return false;
  const std::vector<int64_t> values = HostIntegers(indices);
  *first = values.front();
  for (size_t i = 1; i < values.size(); ++i) {
    if (values[i] != values.front() + static_cast<int64_t>(i)) return false;
  }
  return *first >= 0 && values.back() < size;
}

Action IndexCopy(const Operands& operands) {
  return [dst = operands.Tensor("dst"), update = operands.Tensor("update"), indices = operands.Tensor("indices"),
          out = operands.Tensor("out"), axis = operands.Int("axis")](Frame& frame) {
    const mx::array& target = frame.Get(dst);
    const mx::array& rows = frame.Get(indices);
    const mx::array& values = frame.Get(update);
    const int dim = NormalizeAxis(axis, target);
    mx::Shape expected = target.shape();
    if (rows.ndim() == 1) expected[static_cast<size_t>(dim)] = rows.shape(0);
    if (rows.ndim() != 1 || values.shape() != expected) {
      Refuse("an update of shape " + ShapeText(values.shape()) + " at indices of shape " + ShapeText(rows.shape()) +
             " on axis " + std::to_string(dim) + " of " + ShapeText(target.shape()));
    }
    const int size = target.shape(dim);
    int64_t first = 0;
    if (IsRun(rows, size, &first)) {
      const auto from = static_cast<int>(first);
      frame.Set(out, UpdateSlice(target, values, static_cast<size_t>(dim), from, from + rows.shape(0), 1));
      return;
    }
    // Updates of a scatter: [indices, the target's shape with the axis 1].
    const mx::array moved = mx::expand_dims(mx::moveaxis(values, dim, 0), dim + 1);
    frame.Set(out, mx::scatter(target, CheckedIndices(rows, size), mx::astype(moved, target.dtype()), dim));
  };
}

// The part [0, shape) of x.
mx::array Corner(const mx::array& x, const mx::Shape& shape) {
  return x.shape() == shape ? x : mx::slice(x, mx::Shape(x.ndim(), 0), shape);
}

// out = x, and out[.., indices[i, j], ..] += updates[i, j]. As in torch, indices may be smaller than x on the other
// axes and smaller than updates on all: what lies beyond them is not touched.
Action ScatterAdd(const Operands& operands) {
  return [x = operands.Tensor("x"), indices = operands.Tensor("indices"), updates = operands.Tensor("updates"),
          out = operands.Tensor("out"), axis = operands.Int("axis")](Frame& frame) {
    const mx::array& input = frame.Get(x);
    const mx::array& rows = frame.Get(indices);
    const mx::array& values = frame.Get(updates);
    const int dim = NormalizeAxis(axis, input);
    bool fits = rows.ndim() == input.ndim() && values.ndim() == input.ndim();
    mx::Shape region = input.shape();
    for (int d = 0; fits && d < static_cast<int>(input.ndim()); ++d) {
      if (d != dim) region[static_cast<size_t>(d)] = rows.shape(d);
      fits = rows.shape(d) <= values.shape(d) && (d == dim || rows.shape(d) <= input.shape(d));
    }
    if (!fits) {
      Refuse("indices of shape " + ShapeText(rows.shape()) + " and updates of shape " + ShapeText(values.shape()) +
             " on axis " + std::to_string(dim) + " of " + ShapeText(input.shape()));
    }
    const mx::array added = mx::scatter_add_axis(Corner(input, region), CheckedIndices(rows, input.shape(dim)),
                                                 mx::astype(Corner(values, rows.shape()), input.dtype()), dim);
    frame.Set(out,
              region == input.shape() ? added : mx::slice_update(input, added, mx::Shape(input.ndim(), 0), region));
  };
}

constexpr Handler kOps[] = {
    {"IndexCopyNode", "dst with slices replaced at indices", IndexCopy},
    {"ScatterAddNode", "x with updates added where indices name", ScatterAdd},
    {"SliceUpdateNode", "dst with a slice replaced", SliceUpdate},
};

}  // namespace

std::span<const Handler> UpdateOps() { return kOps; }

}  // namespace offgraph::program
