// Ops that write a part of a tensor. Where the result's slot is the tensor's own, as for a mutable buffer, nothing else
// holds the old array when the step is evaluated, and MLX writes in place (see buffer_undo.h).
#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <optional>
#include <vector>

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

// A stretch of indices that count up by one: rows [to, to + count) take those from `from` on.
struct Run {
  int from;
  int to;
  int count;
};

// Absent where the indices are not known, or are more runs than a ring that wraps makes.
std::optional<std::vector<Run>> RunsOf(const mx::array& indices, int size) {
  constexpr size_t kMostRuns = 4;
  if (!indices.is_available() || !indices.flags().row_contiguous) return std::nullopt;
  std::vector<Run> runs;
  int from = 0;
  for (int64_t index : HostIntegers(CheckedIndices(indices, size))) {
    const auto to = static_cast<int>(index < 0 ? index + size : index);
    if (!runs.empty() && runs.back().to + runs.back().count == to) {
      ++runs.back().count;
    } else if (runs.size() == kMostRuns) {
      return std::nullopt;
    } else {
      runs.push_back({from, to, 1});
    }
    ++from;
  }
  return runs;
}

mx::array CopyRuns(mx::array target, const mx::array& values, const std::vector<Run>& runs, int axis) {
  for (const Run& run : runs) {
    mx::Shape start(values.ndim(), 0);
    mx::Shape stop = values.shape();
    start[static_cast<size_t>(axis)] = run.from;
    stop[static_cast<size_t>(axis)] = run.from + run.count;
    const mx::array part = runs.size() == 1 ? values : mx::slice(values, start, stop);
    target = UpdateSlice(target, part, static_cast<size_t>(axis), run.to, run.to + run.count, 1);
  }
  return target;
}

Action IndexCopy(const Operands& operands) {
  // Slices of a mutable buffer are written in place; for that, it must be known which.
  const bool is_buffer = operands.graph().IsBuffer(operands.Tensor("dst"));
  return [dst = operands.Tensor("dst"), update = operands.Tensor("update"), indices = operands.Tensor("indices"),
          out = operands.Tensor("out"), axis = operands.Int("axis"), is_buffer](Frame& frame) {
    const mx::array& target = frame.Get(dst);
    const mx::array& values = frame.Get(update);
    mx::array rows = frame.Get(indices);
    const int dim = NormalizeAxis(axis, target);
    mx::Shape expected = target.shape();
    if (rows.ndim() == 1) expected[static_cast<size_t>(dim)] = rows.shape(0);
    if (rows.ndim() != 1 || values.shape() != expected) {
      Refuse("an update of shape " + ShapeText(values.shape()) + " at indices of shape " + ShapeText(rows.shape()) +
             " on axis " + std::to_string(dim) + " of " + ShapeText(target.shape()));
    }
    if (is_buffer && !rows.is_available()) {
      rows = mx::contiguous(rows);
      mx::eval(rows);
    }
    const int size = target.shape(dim);
    if (const std::optional<std::vector<Run>> runs = RunsOf(rows, size)) {
      frame.Set(out, CopyRuns(target, values, *runs, dim));
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
