// Ops that move elements and compute nothing.
#include <mlx/ops.h>

#include <algorithm>
#include <limits>

#include "offgraph/cache/error.h"
#include "offgraph/program/handler.h"
#include "offgraph/program/mlx_types.h"

namespace offgraph::program {
namespace {

namespace mx = mlx::core;

[[noreturn]] void Refuse(const std::string& problem) { throw Error(ErrorCode::kInvalidArgument, problem); }

std::vector<int> ToInts(const std::vector<int64_t>& values) {
  std::vector<int> ints;
  ints.reserve(values.size());
  for (int64_t value : values) ints.push_back(ToInt32(value, "operand"));
  return ints;
}

Action ExpandDims(const Operands& operands) {
  return [x = operands.Tensor("x"), out = operands.Tensor("out"), axis = operands.Int("axis")](Frame& frame) {
    const mx::array& input = frame.Get(x);
    frame.Set(out, mx::expand_dims(input, NormalizeNewAxis(axis, input)));
  };
}

Action Squeeze(const Operands& operands) {
  return [x = operands.Tensor("x"), out = operands.Tensor("out"), dims = operands.Ints("dims")](Frame& frame) {
    const mx::array& input = frame.Get(x);
    // An axis that is not 1 stays, as in torch.
    std::vector<int> axes;
    for (int dim : dims) {
      const int axis = NormalizeAxis(dim, input);
      if (input.shape(axis) == 1) axes.push_back(axis);
    }
    if (dims.empty()) {
      frame.Set(out, mx::squeeze(input));
    } else {
      frame.Set(out, axes.empty() ? input : mx::squeeze(input, axes));
    }
  };
}

Action Tile(const Operands& operands) {
  return [x = operands.Tensor("x"), out = operands.Tensor("out"), reps = operands.IntsOrSlots("reps")](Frame& frame) {
    const std::vector<int> counts = ToInts(frame.Ints(reps));
    if (std::any_of(counts.begin(), counts.end(), [](int count) { return count < 0; })) Refuse("a negative count");
    frame.Set(out, mx::tile(frame.Get(x), counts));
  };
}

Action Repeat(const Operands& operands) {
  return [x = operands.Tensor("x"), out = operands.Tensor("out"), repeats = operands.IntOrSlot("repeats"),
          axis = operands.Int("axis")](Frame& frame) {
    const int count = frame.Int32(repeats);
    if (count < 0) Refuse("a negative count of repeats");
    const mx::array& input = frame.Get(x);
    frame.Set(out, mx::repeat(input, count, NormalizeAxis(axis, input)));
  };
}

Action Roll(const Operands& operands) {
  auto axes = operands.Ints("axes");
  auto shifts = operands.IntsOrSlots("shift");
  if (axes.size() != shifts.size()) operands.Fail("as many shifts as axes are needed");
  return [x = operands.Tensor("x"), out = operands.Tensor("out"), shifts, axes](Frame& frame) {
    const mx::array& input = frame.Get(x);
    mx::Shape amounts;
    std::vector<int> normalized;
    for (size_t i = 0; i < axes.size(); ++i) {
      normalized.push_back(NormalizeAxis(axes[i], input));
      const int64_t size = std::max(input.shape(normalized.back()), 1);
      amounts.push_back(static_cast<int>(frame.Int(shifts[i]) % size));
    }
    frame.Set(out, mx::roll(input, amounts, normalized));
  };
}

Action Flip(const Operands& operands) {
  return [x = operands.Tensor("x"), out = operands.Tensor("out"), axes = operands.Ints("axes")](Frame& frame) {
    const mx::array& input = frame.Get(x);
    frame.Set(out, axes.empty() ? input : mx::flip(input, NormalizeAxes(axes, input)));
  };
}

Action Transpose(const Operands& operands) {
  return [x = operands.Tensor("x"), out = operands.Tensor("out"), perm = operands.Ints("perm")](Frame& frame) {
    const mx::array& input = frame.Get(x);
    frame.Set(out, mx::transpose(input, NormalizeAxes(perm, input)));
  };
}

Action Reshape(const Operands& operands) {
  return [x = operands.Tensor("x"), out = operands.Tensor("out"), shape = operands.IntsOrSlots("shape")](Frame& frame) {
    std::vector<int64_t> dims = frame.Ints(shape);
    const mx::array& input = frame.Get(x);
    const auto inferred = std::find(dims.begin(), dims.end(), -1);
    if (inferred != dims.end()) {
      *inferred = 1;
      int64_t known = 1;
      for (int64_t dim : ToShape(dims, 1, "reshape")) known *= dim;
      const auto size = static_cast<int64_t>(input.size());
      if (known == 0 || size % known != 0) {
        Refuse("shape " + ShapeText(input.shape()) + " does not divide by " + std::to_string(known));
      }
      *inferred = size / known;
    }
    frame.Set(out, mx::reshape(input, ToShape(dims, 1, "reshape")));
  };
}

Action BroadcastTo(const Operands& operands) {
  return [x = operands.Tensor("x"), out = operands.Tensor("out"), shape = operands.IntsOrSlots("shape")](Frame& frame) {
    std::vector<int64_t> dims = frame.Ints(shape);
    const mx::array& input = frame.Get(x);
    if (dims.size() < input.ndim()) Refuse("a shape of lower rank than the tensor's " + ShapeText(input.shape()));
    const size_t added = dims.size() - input.ndim();
    for (size_t i = added; i < dims.size(); ++i) {
      if (dims[i] == -1) dims[i] = input.shape(static_cast<int>(i - added));  // -1 keeps the size
    }
    frame.Set(out, mx::broadcast_to(input, ToShape(dims, static_cast<int64_t>(input.itemsize()), "broadcast")));
  };
}

// MLX does not check that the view lies inside of the tensor.
void CheckView(const mx::Shape& shape, const std::vector<int64_t>& strides, int64_t offset, const mx::array& x) {
  __int128 low = offset;
  __int128 high = offset;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0) return;
    const __int128 reach = static_cast<__int128>(shape[i] - 1) * strides[i];
    (reach < 0 ? low : high) += reach;
  }
  if (low < 0 || high >= static_cast<__int128>(x.size())) {
    Refuse("a view of shape " + ShapeText(shape) + " with strides " + ShapeText(strides) + " and offset " +
           std::to_string(offset) + " leaves a tensor of " + std::to_string(x.size()) + " elements");
  }
}

Action AsStrided(const Operands& operands) {
  auto shape = operands.IntsOrSlots("shape");
  auto strides = operands.IntsOrSlots("strides");
  if (shape.size() != strides.size()) operands.Fail("as many strides as dimensions are needed");
  return [x = operands.Tensor("x"), out = operands.Tensor("out"), shape, strides,
          offset = operands.Long("offset")](Frame& frame) {
    const mx::array& input = frame.Get(x);
    const mx::Shape dims = frame.Shape(shape, input.itemsize());
    const std::vector<int64_t> steps = frame.Ints(strides);
    CheckView(dims, steps, offset, input);
    // Copied at once: MLX's reductions trust strides to be those of a transposed or sliced tensor, and write beyond
    // their result where elements overlap in another way.
    frame.Set(out, mx::contiguous(mx::as_strided(input, dims, mx::Strides(steps.begin(), steps.end()),
                                                 static_cast<size_t>(offset))));
  };
}

// Start and stop on one axis, as Python counts them; a negative step runs backwards.
void SetSliceBounds(int64_t start, int64_t stop, int step, int size, int* from, int* to) {
  if (step > 0) {
    *from = ClampToAxis(start, size);
    *to = std::max(*from, ClampToAxis(stop, size));
    return;
  }
  const auto clamp = [size](int64_t bound) {
    return static_cast<int>(std::clamp<int64_t>(bound < 0 ? bound + size : bound, -1, size - 1));
  };
  // MLX takes a bound below -size for the place before the first element.
  const auto spell = [size](int bound) { return bound < 0 ? -size - 1 : bound; };
  *from = clamp(start);
  *to = spell(std::min(*from, clamp(stop)));
  *from = std::max(*from, 0);
}

Action Slice(const Operands& operands) {
  const int step = operands.Int("step");
  if (step == 0) operands.Fail("step 0");
  return [x = operands.Tensor("x"), out = operands.Tensor("out"), axis = operands.IntOrSlot("axis"),
          start = operands.IntOrSlot("start"), stop = operands.IntOrSlot("stop"), step](Frame& frame) {
    const mx::array& input = frame.Get(x);
    const auto dim = static_cast<size_t>(NormalizeAxis(frame.Int32(axis), input));
    mx::Shape from(input.ndim(), 0);
    mx::Shape to = input.shape();
    mx::Shape steps(input.ndim(), 1);
    const int size = input.shape()[dim];
    SetSliceBounds(frame.Int(start), frame.Int(stop), step, size, &from[dim], &to[dim]);
    steps[dim] = std::clamp(step, -std::max(size, 1), std::max(size, 1));  // one that leaves the axis; MLX adds to it
    frame.Set(out, mx::slice(input, from, to, steps));
  };
}

Action Split(const Operands& operands) {
  auto outs = operands.Tensors("outs");
  auto sizes = operands.IntsOrSlots("sizes");
  if (outs.size() != sizes.size() && sizes.size() != 1) operands.Fail("one size, or one for every result, is needed");
  return [x = operands.Tensor("x"), outs, sizes, axis = operands.Int("axis")](Frame& frame) {
    const mx::array input = frame.Get(x);
    const auto dim = static_cast<size_t>(NormalizeAxis(axis, input));
    const bool uniform = sizes.size() == 1 && outs.size() > 1;
    int64_t end = 0;
    for (size_t i = 0; i < outs.size(); ++i) {
      const int64_t begin = end;
      int64_t size = frame.Int(sizes[uniform ? 0 : i]);
      if (uniform && i + 1 == outs.size()) size = std::min(size, input.shape()[dim] - begin);
      if (size < 0 || size > input.shape()[dim] - begin) {
        Refuse("sizes do not fit axis " + std::to_string(dim) + " of " + ShapeText(input.shape()));
      }
      end = begin + size;
      mx::Shape from(input.ndim(), 0);
      mx::Shape to = input.shape();
      from[dim] = static_cast<int>(begin);
      to[dim] = static_cast<int>(end);
      frame.Set(outs[i], mx::slice(input, from, to));
    }
    if (end != input.shape()[dim])
      Refuse("sizes leave a part of axis " + std::to_string(dim) + " of " + ShapeText(input.shape()));
  };
}

Action Concatenate(const Operands& operands) {
  auto tensors = operands.Tensors("tensors");
  if (tensors.empty()) operands.Fail("nothing to concatenate");
  return [tensors, out = operands.Tensor("out"), axis = operands.Int("axis")](Frame& frame) {
    frame.Set(out, mx::concatenate(frame.Get(tensors), NormalizeAxis(axis, frame.Get(tensors.front()))));
  };
}

Action Stack(const Operands& operands) {
  auto tensors = operands.Tensors("tensors");
  if (tensors.empty()) operands.Fail("nothing to stack");
  return [tensors, out = operands.Tensor("out"), axis = operands.Int("axis")](Frame& frame) {
    frame.Set(out, mx::stack(frame.Get(tensors), NormalizeNewAxis(axis, frame.Get(tensors.front()))));
  };
}

// x with what negative widths cut off.
mx::array Crop(const mx::array& x, const std::vector<int>& widths) {
  mx::Shape from(x.ndim(), 0);
  mx::Shape to = x.shape();
  for (size_t d = 0; d < x.ndim(); ++d) {
    from[d] = std::max(-widths[2 * d], 0);
    to[d] -= std::max(-widths[2 * d + 1], 0);
    if (from[d] > to[d]) Refuse("widths that cut more than there is, of a tensor of shape " + ShapeText(x.shape()));
  }
  return to == x.shape() && from == mx::Shape(x.ndim(), 0) ? x : mx::slice(x, from, to);
}

Action Pad(const Operands& operands) {
  const std::string& mode = operands.Text("mode");
  if (mode != "constant" && mode != "edge") operands.Fail("mode \"" + mode + "\"; expected constant or edge");
  return [x = operands.Tensor("x"), out = operands.Tensor("out"), widths = operands.IntsOrSlots("pad_width"),
          value = operands.Float("constant_value"), mode](Frame& frame) {
    const mx::array& input = frame.Get(x);
    std::vector<int> flat = ToInts(frame.Ints(widths));
    for (int& width : flat) width = std::max(width, -std::numeric_limits<int>::max());
    if (flat.size() != 2 * input.ndim()) {
      Refuse(std::to_string(flat.size()) + " widths for a tensor of shape " + ShapeText(input.shape()));
    }
    std::vector<std::pair<int, int>> pairs;
    for (size_t i = 0; i < flat.size(); i += 2) {
      pairs.emplace_back(std::max(flat[i], 0), std::max(flat[i + 1], 0));
    }
    frame.Set(out, mx::pad(Crop(input, flat), pairs, NumberAs(double{value}, input.dtype()), mode));
  };
}

constexpr Handler kOps[] = {
    {"AsStridedNode", "a view by strides and offset, copied", AsStrided},
    {"BroadcastToNode", "x repeated to a shape; -1 keeps a size", BroadcastTo},
    {"ConcatenateNode", "tensors joined along an axis", Concatenate},
    {"ExpandDimsNode", "a new axis of size 1", ExpandDims},
    {"FlipNode", "axes in reverse order", Flip},
    {"PadNode", "x with a margin, constant or of its edge", Pad},
    {"RepeatNode", "each element several times along an axis", Repeat},
    {"ReshapeNode", "another shape of the same elements; -1 is inferred", Reshape},
    {"RollNode", "elements moved along axes, around the end", Roll},
    {"SliceNode", "from start to stop by step on an axis", Slice},
    {"SplitNode", "parts of given sizes along an axis", Split},
    {"SqueezeNode", "axes of size 1 removed", Squeeze},
    {"StackNode", "tensors joined along a new axis", Stack},
    {"TileNode", "the whole of x several times along each axis", Tile},
    {"TransposeNode", "axes in another order", Transpose},
};

}  // namespace

std::span<const Handler> ShapeOps() { return kOps; }

}  // namespace offgraph::program
