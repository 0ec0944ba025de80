// Ops that make tensors out of numbers.
#include <mlx/ops.h>
#include <mlx/random.h>

#include <algorithm>
#include <limits>

#include "offgraph/cache/error.h"
#include "offgraph/program/handler.h"
#include "offgraph/program/mlx_types.h"

namespace offgraph::program {
namespace {

namespace mx = mlx::core;

[[noreturn]] void Refuse(const std::string& problem) { throw Error(ErrorCode::kInvalidArgument, problem); }

int CountOfRange(int64_t first, int64_t last, int64_t step) {
  const __int128 distance = static_cast<__int128>(last) - first;
  const __int128 count = step == 0 ? -1 : (distance + step - (step > 0 ? 1 : -1)) / step;
  if (step == 0 || count > std::numeric_limits<int32_t>::max()) {
    Refuse("a range from " + std::to_string(first) + " to " + std::to_string(last) + " by " + std::to_string(step));
  }
  return static_cast<int>(std::max<__int128>(count, 0));
}

Action ARange(const Operands& operands) {
  return [out = operands.Tensor("out"), start = operands.IntOrSlot("start"), stop = operands.IntOrSlot("stop"),
          step = operands.IntOrSlot("step"), type = operands.OptionalType("scalar_type")](Frame& frame) {
    const int64_t first = frame.Int(start);
    const int64_t stride = frame.Int(step);
    const int count = CountOfRange(first, frame.Int(stop), stride);
    // Counted in integers, and converted once: MLX adds the step up in the result's own type, and in bf16 256 + 1 is
    // 256.
    const mx::array steps = mx::multiply(mx::arange(0, count, 1, mx::int64), mx::array(stride));
    frame.Set(out, mx::astype(mx::add(steps, mx::array(first)), type.value_or(mx::int32)));
  };
}

Action Full(const Operands& operands) {
  return [out = operands.Tensor("out"), shape = operands.IntsOrSlots("shape"), value = operands.FloatOrSlot("v"),
          type = operands.Type("scalar_type")](Frame& frame) {
    frame.Set(out, mx::full(frame.Shape(shape, type.size()), NumberAs(frame.Number(value), type), type));
  };
}

Action FullLike(const Operands& operands) {
  return [x = operands.Tensor("x"), out = operands.Tensor("out"), value = operands.FloatOrSlot("v"),
          type = operands.OptionalType("scalar_type")](Frame& frame) {
    const mx::array& input = frame.Get(x);
    const mx::Dtype dtype = type.value_or(input.dtype());
    frame.Set(out, mx::full(input.shape(), NumberAs(frame.Number(value), dtype), dtype));
  };
}

// A diagonal beyond the corners is as one at them; MLX adds to it.
int ClampDiagonal(int k, int rows, int columns) { return std::clamp(k, -rows, columns); }

Action Tri(const Operands& operands) {
  return [out = operands.Tensor("out"), n = operands.IntOrSlot("n"), m = operands.IntOrSlot("m"), k = operands.Int("k"),
          type = operands.Type("scalar_type")](Frame& frame) {
    const mx::Shape shape = frame.Shape({n, m}, type.size());
    frame.Set(out, mx::tri(shape[0], shape[1], ClampDiagonal(k, shape[0], shape[1]), type));
  };
}

using TriangleFunction = mx::array (*)(mx::array, int, mx::StreamOrDevice);

template <TriangleFunction F>
Action Triangle(const Operands& operands) {
  return [x = operands.Tensor("x"), out = operands.Tensor("out"), k = operands.Int("k")](Frame& frame) {
    const mx::array& input = frame.Get(x);
    if (input.ndim() < 2) Refuse("a matrix is needed, and the tensor is " + ShapeText(input.shape()));
    frame.Set(out, F(input, ClampDiagonal(k, input.shape(-2), input.shape(-1)), {}));
  };
}

Action RandomBits(const Operands& operands) {
  const int width = operands.Int("width");
  if (width != 1 && width != 2 && width != 4) operands.Fail("width " + std::to_string(width) + ", must be 1, 2 or 4");
  return [out = operands.Tensor("out"), shape = operands.IntsOrSlots("shape"),
          seed = operands.OptionalValueSlot("seed"), width](Frame& frame) {
    const mx::array key = seed ? mx::random::key(static_cast<uint64_t>(frame.Int(*seed))) : frame.NextRandomKey();
    frame.Set(out, mx::random::bits(frame.Shape(shape, static_cast<size_t>(width)), width, key));
  };
}

constexpr Handler kOps[] = {
    {"ARangeNode", "start, start + step, .. up to stop", ARange},
    {"FullLikeNode", "x's shape, filled with one number", FullLike},
    {"FullNode", "a shape filled with one number", Full},
    {"RandomBitsNode", "random bits, by a seed or the executor's own sequence", RandomBits},
    {"TriNode", "1 on and below a diagonal, 0 above", Tri},
    {"TrilNode", "x on and below a diagonal, 0 above", Triangle<mx::tril>},
    {"TriuNode", "x on and above a diagonal, 0 below", Triangle<mx::triu>},
};

}  // namespace

std::span<const Handler> CreationOps() { return kOps; }

}  // namespace offgraph::program
