// Ops of one tensor, element by element.
#include <mlx/ops.h>

#include <cmath>

#include "offgraph/program/handler.h"

namespace offgraph::program {
namespace {

namespace mx = mlx::core;

using UnaryFunction = mx::array (*)(const mx::array&, mx::StreamOrDevice);

template <UnaryFunction F>
Action Unary(const Operands& operands) {
  return
      [x = operands.Tensor("x"), out = operands.Tensor("out")](Frame& frame) { frame.Set(out, F(frame.Get(x), {})); };
}

// Functions of several steps are computed in fp32 for narrower types, and rounded once.
template <mx::array (*F)(const mx::array&)>
mx::array InFloat32(const mx::array& x, mx::StreamOrDevice /*stream*/) {
  const bool narrow = x.dtype() == mx::float16 || x.dtype() == mx::bfloat16;
  return narrow ? mx::astype(F(mx::astype(x, mx::float32)), x.dtype()) : F(x);
}

mx::array Silu(const mx::array& x) { return mx::multiply(x, mx::sigmoid(x)); }

mx::array Scalar(double value, const mx::array& like) { return mx::array(value, like.dtype()); }

// x Phi(x) with the error function, and Hendrycks and Gimpel's approximation of it (arXiv:1606.08415).
mx::array GeluExact(const mx::array& x) {
  const mx::array phi = mx::add(Scalar(1, x), mx::erf(mx::multiply(x, Scalar(std::sqrt(0.5), x))));
  return mx::multiply(mx::multiply(x, phi), Scalar(0.5, x));
}
mx::array GeluTanh(const mx::array& x) {
  const mx::array cube = mx::multiply(x, mx::multiply(x, x));
  const mx::array inner = mx::add(x, mx::multiply(cube, Scalar(0.044715, x)));
  const mx::array phi = mx::add(Scalar(1, x), mx::tanh(mx::multiply(inner, Scalar(std::sqrt(2 / M_PI), x))));
  return mx::multiply(mx::multiply(x, phi), Scalar(0.5, x));
}

Action Gelu(const Operands& operands) {
  const std::string& approximate = operands.Text("approximate");
  if (approximate == "none") return Unary<InFloat32<GeluExact>>(operands);
  if (approximate == "tanh") return Unary<InFloat32<GeluTanh>>(operands);
  operands.Fail("approximation \"" + approximate + "\" of GELU is not known; expected none or tanh");
}

mx::array Truncate(const mx::array& x, mx::StreamOrDevice /*stream*/) {
  if (!mx::issubdtype(x.dtype(), mx::floating)) return x;
  return mx::where(mx::less(x, Scalar(0, x)), mx::ceil(x), mx::floor(x));
}

mx::array Same(const mx::array& x, mx::StreamOrDevice /*stream*/) { return x; }

mx::array Contiguous(const mx::array& x, mx::StreamOrDevice stream) { return mx::contiguous(x, false, stream); }

Action Round(const Operands& operands) {
  return [x = operands.Tensor("x"), out = operands.Tensor("out"), decimals = operands.Int("decimals")](Frame& frame) {
    frame.Set(out, mx::round(frame.Get(x), decimals));
  };
}

Action AsType(const Operands& operands) {
  return [x = operands.Tensor("x"), out = operands.Tensor("out"), type = operands.Type("scalar_type")](Frame& frame) {
    frame.Set(out, mx::astype(frame.Get(x), type));
  };
}

constexpr Handler kOps[] = {
    {"AbsNode", Unary<mx::abs>},
    {"ArccosNode", Unary<mx::arccos>},
    {"ArccoshNode", Unary<mx::arccosh>},
    {"ArcsinNode", Unary<mx::arcsin>},
    {"ArcsinhNode", Unary<mx::arcsinh>},
    {"ArctanNode", Unary<mx::arctan>},
    {"ArctanhNode", Unary<mx::arctanh>},
    {"AsTypeNode", AsType},
    {"BitwiseInvertNode", Unary<mx::bitwise_invert>},
    {"CeilNode", Unary<mx::ceil>},
    {"ContiguousNode", Unary<Contiguous>},
    {"CosNode", Unary<mx::cos>},
    {"CoshNode", Unary<mx::cosh>},
    {"ErfNode", Unary<mx::erf>},
    {"ExpNode", Unary<mx::exp>},
    {"Expm1Node", Unary<mx::expm1>},
    {"FloorNode", Unary<mx::floor>},
    {"GeluNode", Gelu},
    {"IdCopyNode", Unary<Same>},
    {"Log10Node", Unary<mx::log10>},
    {"Log1pNode", Unary<mx::log1p>},
    {"Log2Node", Unary<mx::log2>},
    {"LogNode", Unary<mx::log>},
    {"LogicalNotNode", Unary<mx::logical_not>},
    {"NegNode", Unary<mx::negative>},
    {"ReciprocalNode", Unary<mx::reciprocal>},
    {"RoundNode", Round},
    {"RsqrtNode", Unary<mx::rsqrt>},
    {"SigmoidNode", Unary<mx::sigmoid>},
    {"SignNode", Unary<mx::sign>},
    {"SiluNode", Unary<InFloat32<Silu>>},
    {"SinNode", Unary<mx::sin>},
    {"SinhNode", Unary<mx::sinh>},
    {"SqrtNode", Unary<mx::sqrt>},
    {"SquareNode", Unary<mx::square>},
    {"TanNode", Unary<mx::tan>},
    {"TanhNode", Unary<mx::tanh>},
    {"TruncNode", Unary<Truncate>},
};

}  // namespace

std::span<const Handler> UnaryOps() { return kOps; }

}  // namespace offgraph::program
