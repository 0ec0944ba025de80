// Ops of two tensors and more, element by element with broadcasting: arithmetic, comparison, logic, choice.
#include <mlx/ops.h>

#include <utility>

#include "offgraph/program/handler.h"

namespace offgraph::program {
namespace {

namespace mx = mlx::core;

using BinaryFunction = mx::array (*)(const mx::array&, const mx::array&, mx::StreamOrDevice);

template <BinaryFunction F>
Action Binary(const Operands& operands) {
  return [a = operands.Tensor("a"), b = operands.Tensor("b"), out = operands.Tensor("out")](Frame& frame) {
    frame.Set(out, F(frame.Get(a), frame.Get(b), {}));
  };
}

bool IsInteger(mx::Dtype type) { return mx::issubdtype(type, mx::integer); }

mx::array Scalar(int value, const mx::array& like) { return mx::array(value, like.dtype()); }

// Both operands in their common type, bool counted as an integer.
std::pair<mx::array, mx::array> Promote(const mx::array& a, const mx::array& b) {
  mx::Dtype type = mx::promote_types(a.dtype(), b.dtype());
  if (type == mx::bool_) type = mx::int32;
  return {mx::astype(a, type), mx::astype(b, type)};
}

// The processor traps where an integer is divided by 0, and where the smallest integer is divided by -1. Both divisors
// become 1 here; the callers give those elements their value.
mx::array SafeDivisor(const mx::array& b) {
  const mx::array zero = mx::equal(b, Scalar(0, b));
  const bool is_signed = mx::issubdtype(b.dtype(), mx::signedinteger);
  const mx::array unsafe = is_signed ? mx::logical_or(zero, mx::equal(b, Scalar(-1, b))) : zero;
  return mx::where(unsafe, Scalar(1, b), b);
}

// The remainder has the divisor's sign. Of an integer division by 0 it is 0.
mx::array Remainder(const mx::array& a_in, const mx::array& b_in, mx::StreamOrDevice /*stream*/) {
  const auto [a, b] = Promote(a_in, b_in);
  return IsInteger(a.dtype()) ? mx::remainder(a, SafeDivisor(b)) : mx::remainder(a, b);
}

// Rounds down, for integers too (MLX alone would round towards 0). An integer divided by 0 gives 0.
mx::array FloorDivide(const mx::array& a_in, const mx::array& b_in, mx::StreamOrDevice stream) {
  const auto [a, b] = Promote(a_in, b_in);
  if (!IsInteger(a.dtype())) return mx::floor_divide(a, b);
  const mx::array exact = mx::subtract(a, Remainder(a, b, stream));
  mx::array quotient = mx::floor_divide(exact, SafeDivisor(b));
  if (mx::issubdtype(b.dtype(), mx::signedinteger)) {
    quotient = mx::where(mx::equal(b, Scalar(-1, b)), mx::negative(a), quotient);
  }
  return mx::where(mx::equal(b, Scalar(0, b)), Scalar(0, b), quotient);
}

// MLX's power of integers does not end for a negative exponent, which has no integer result: it counts as 0.
mx::array Power(const mx::array& a_in, const mx::array& b_in, mx::StreamOrDevice /*stream*/) {
  const auto [a, b] = Promote(a_in, b_in);
  return IsInteger(a.dtype()) ? mx::power(a, mx::maximum(b, Scalar(0, b))) : mx::power(a, b);
}

Action Where(const Operands& operands) {
  return [condition = operands.Tensor("condition"), x = operands.Tensor("x"), y = operands.Tensor("y"),
          out = operands.Tensor("out")](Frame& frame) {
    frame.Set(out, mx::where(frame.Get(condition), frame.Get(x), frame.Get(y)));
  };
}

Action Clip(const Operands& operands) {
  return [x = operands.Tensor("x"), out = operands.Tensor("out"), low = operands.OptionalTensor("a_min"),
          high = operands.OptionalTensor("a_max")](Frame& frame) {
    const mx::array& input = frame.Get(x);
    frame.Set(out, low || high ? mx::clip(input, frame.GetOptional(low), frame.GetOptional(high)) : input);
  };
}

constexpr Handler kOps[] = {
    {"AddNode", "a + b", Binary<mx::add>},
    {"Atan2Node", "angle of the point (b, a)", Binary<mx::arctan2>},
    {"BitwiseAndNode", "bits set in both", Binary<mx::bitwise_and>},
    {"BitwiseOrNode", "bits set in either", Binary<mx::bitwise_or>},
    {"BitwiseXorNode", "bits set in one of them", Binary<mx::bitwise_xor>},
    {"ClipNode", "x held between a_min and a_max", Clip},
    {"DivideNode", "a / b, in a floating type", Binary<mx::divide>},
    {"EqualNode", "a = b", Binary<mx::equal>},
    {"FloorDivideNode", "a / b rounded down; of an integer by 0, 0", Binary<FloorDivide>},
    {"GreaterEqualNode", "a >= b", Binary<mx::greater_equal>},
    {"GreaterNode", "a > b", Binary<mx::greater>},
    {"LessEqualNode", "a <= b", Binary<mx::less_equal>},
    {"LessNode", "a < b", Binary<mx::less>},
    {"LogAddExpNode", "log(exp(a) + exp(b))", Binary<mx::logaddexp>},
    {"LogicalAndNode", "neither is 0", Binary<mx::logical_and>},
    {"LogicalOrNode", "not both are 0", Binary<mx::logical_or>},
    {"MaximumNode", "the larger one", Binary<mx::maximum>},
    {"MinimumNode", "the smaller one", Binary<mx::minimum>},
    {"MultiplyNode", "a b", Binary<mx::multiply>},
    {"NotEqualNode", "a differs from b", Binary<mx::not_equal>},
    {"PowerNode", "a to the power of b; of integers by less than 0, as by 0", Binary<Power>},
    {"RemainderNode", "what FloorDivideNode leaves, with b's sign", Binary<Remainder>},
    {"SubtractNode", "a - b", Binary<mx::subtract>},
    {"WhereNode", "x where the condition holds, else y", Where},
};

}  // namespace

std::span<const Handler> BinaryOps() { return kOps; }

}  // namespace offgraph::program
