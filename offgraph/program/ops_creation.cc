// Ops that make tensors out of numbers.
#include <mlx/ops.h>
#include <mlx/random.h>

#include <limits>

#include "offgraph/cache/error.h"
#include "offgraph/program/handler.h"

namespace offgraph::program {
namespace {

namespace mx = mlx::core;

[[noreturn]] void Refuse(const std::string& problem) { throw Error(ErrorCode::kInvalidArgument, problem); }

Action ARange(const Operands& operands) {
  return [out = operands.Tensor("out"), start = operands.IntOrSlot("start"), stop = operands.IntOrSlot("stop"),
          step = operands.IntOrSlot("step"), type = operands.OptionalType("scalar_type")](Frame& frame) {
    const auto first = static_cast<double>(frame.Int(start));
    const auto last = static_cast<double>(frame.Int(stop));
    const auto stride = static_cast<double>(frame.Int(step));
    if (stride == 0 || (last - first) / stride >= std::numeric_limits<int32_t>::max()) {
      Refuse("a range from " + std::to_string(first) + " to " + std::to_string(last) + " by " + std::to_string(stride));
    }
    frame.Set(out, mx::arange(first, last, stride, type.value_or(mx::int32)));
  };
}

Action Full(const Operands& operands) {
  return [out = operands.Tensor("out"), shape = operands.IntsOrSlots("shape"), value = operands.FloatOrSlot("v"),
          type = operands.Type("scalar_type")](Frame& frame) {
    frame.Set(out, mx::full(frame.Shape(shape, type.size()), mx::array(frame.Float(value), type), type));
  };
}

Action FullLike(const Operands& operands) {
  return [x = operands.Tensor("x"), out = operands.Tensor("out"), value = operands.FloatOrSlot("v"),
          type = operands.OptionalType("scalar_type")](Frame& frame) {
    const mx::array& input = frame.Get(x);
    const mx::Dtype dtype = type.value_or(input.dtype());
    frame.Set(out, mx::full(input.shape(), mx::array(frame.Float(value), dtype), dtype));
  };
}

Action Tri(const Operands& operands) {
  return [out = operands.Tensor("out"), n = operands.IntOrSlot("n"), m = operands.IntOrSlot("m"), k = operands.Int("k"),
          type = operands.Type("scalar_type")](Frame& frame) {
    const mx::Shape shape = frame.Shape({n, m}, type.size());
    frame.Set(out, mx::tri(shape[0], shape[1], k, type));
  };
}

using TriangleFunction = mx::array (*)(mx::array, int, mx::StreamOrDevice);

template <TriangleFunction F>
Action Triangle(const Operands& operands) {
  return [x = operands.Tensor("x"), out = operands.Tensor("out"), k = operands.Int("k")](Frame& frame) {
    frame.Set(out, F(frame.Get(x), k, {}));
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
    {"ARangeNode", ARange},           {"FullLikeNode", FullLike}, {"FullNode", Full},
    {"RandomBitsNode", RandomBits},   {"TriNode", Tri},           {"TrilNode", Triangle<mx::tril>},
    {"TriuNode", Triangle<mx::triu>},
};

}  // namespace

std::span<const Handler> CreationOps() { return kOps; }

}  // namespace offgraph::program
