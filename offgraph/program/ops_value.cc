// Integers of value slots: sizes, elements of tensors, and arithmetic on them. Nothing wraps around silently.
#include <mlx/ops.h>
#include <mlx/transforms.h>

#include "offgraph/cache/error.h"
#include "offgraph/program/handler.h"
#include "offgraph/program/mlx_types.h"

namespace offgraph::program {
namespace {

namespace mx = mlx::core;

// False where the result has no value in 64 bits.
using IntFunction = bool (*)(int64_t a, int64_t b, int64_t* result);

bool Add(int64_t a, int64_t b, int64_t* result) { return !__builtin_add_overflow(a, b, result); }
bool Subtract(int64_t a, int64_t b, int64_t* result) { return !__builtin_sub_overflow(a, b, result); }
bool Multiply(int64_t a, int64_t b, int64_t* result) { return !__builtin_mul_overflow(a, b, result); }

// Rounds down, as Python does; the remainder then has the divisor's sign.
bool FloorDivide(int64_t a, int64_t b, int64_t* result) {
  if (b == 0 || (b == -1 && __builtin_sub_overflow(int64_t{0}, a, result))) return false;
  if (b == -1) return true;
  *result = a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
  return true;
}
bool Modulo(int64_t a, int64_t b, int64_t* result) {
  if (b == 0) return false;
  *result = b == -1 ? 0 : a % b;
  if (*result != 0 && (*result < 0) != (b < 0)) *result += b;
  return true;
}

template <IntFunction F>
Action IntArithmetic(const Operands& operands) {
  return [a = operands.IntOrSlot("a"), b = operands.IntOrSlot("b"), out = operands.ValueSlot("out")](Frame& frame) {
    const int64_t left = frame.Int(a);
    const int64_t right = frame.Int(b);
    int64_t result = 0;
    if (!F(left, right, &result)) {
      throw Error(ErrorCode::kInvalidArgument,
                  "no result in 64 bits for " + std::to_string(left) + " and " + std::to_string(right));
    }
    frame.Set(out, result);
  };
}

Action SymSize(const Operands& operands) {
  return [a = operands.Tensor("a"), dim = operands.Int("dim"), out = operands.ValueSlot("out")](Frame& frame) {
    const mx::array& input = frame.Get(a);
    frame.Set(out, int64_t{input.shape(NormalizeAxis(dim, input))});
  };
}

// Evaluates the tensor where it is computed in the step; an input is just read.
Action ItemInt(const Operands& operands) {
  return [x = operands.Tensor("x"), out = operands.ValueSlot("out")](Frame& frame) {
    mx::array item = frame.Get(x);
    if (item.size() != 1) {
      throw Error(ErrorCode::kInvalidArgument, "one element is needed, and the tensor is " + ShapeText(item.shape()));
    }
    if (mx::issubdtype(item.dtype(), mx::floating)) item = mx::astype(item, mx::int64);
    mx::eval(item);
    frame.Set(out, HostIntegers(item).front());
  };
}

constexpr Handler kOps[] = {
    {"AddIntNode", "a + b of integers", IntArithmetic<Add>},
    {"FloorDivideIntNode", "a / b of integers, rounded down", IntArithmetic<FloorDivide>},
    {"ItemIntNode", "the one element of a tensor as an integer", ItemInt},
    {"ModIntNode", "what FloorDivideIntNode leaves, with b's sign", IntArithmetic<Modulo>},
    {"MultiplyIntNode", "a b of integers", IntArithmetic<Multiply>},
    {"SubtractIntNode", "a - b of integers", IntArithmetic<Subtract>},
    {"SymSizeNode", "size of an axis", SymSize},
};

}  // namespace

std::span<const Handler> ValueOps() { return kOps; }

}  // namespace offgraph::program
