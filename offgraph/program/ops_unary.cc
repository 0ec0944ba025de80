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
template <typename Function>
mx::array ThroughFloat32(const mx::array& x, Function function) {
  const bool narrow = x.dtype() == mx::float16 || x.dtype() == mx::bfloat16;
  return narrow ? mx::astype(function(mx::astype(x, mx::float32)), x.dtype()) : function(x);
}
template <mx::array (*F)(const mx::array&)>
mx::array InFloat32(const mx::array& x, mx::StreamOrDevice /*stream*/) {
  return ThroughFloat32(x, F);
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
    // The power of ten may be beyond a narrow type.
    const mx::array& input = frame.Get(x);
    frame.Set(
        out, ThroughFloat32(input, [decimals = decimals](const mx::array& wide) { return mx::round(wide, decimals); }));
  };
}

Action AsType(const Operands& operands) {
  return [x = operands.Tensor("x"), out = operands.Tensor("out"), type = operands.Type("scalar_type")](Frame& frame) {
    frame.Set(out, mx::astype(frame.Get(x), type));
  };
}

constexpr Handler kOps[] = {
    {"AbsNode", "|x|", Unary<mx::abs>},
    {"ArccosNode", "arccosine", Unary<mx::arccos>},
    {"ArccoshNode", "inverse hyperbolic cosine", Unary<mx::arccosh>},
    {"ArcsinNode", "arcsine", Unary<mx::arcsin>},
    {"ArcsinhNode", "inverse hyperbolic sine", Unary<mx::arcsinh>},
    {"ArctanNode", "arctangent", Unary<mx::arctan>},
    {"ArctanhNode", "inverse hyperbolic tangent", Unary<mx::arctanh>},
    {"AsTypeNode", "x in another element type", AsType},
    {"BitwiseInvertNode", "every bit flipped; of a bool, not", Unary<mx::bitwise_invert>},
    {"CeilNode", "rounded up", Unary<mx::ceil>},
    {"ContiguousNode", "x in row-major order", Unary<Contiguous>},
    {"CosNode", "cosine", Unary<mx::cos>},
    {"CoshNode", "hyperbolic cosine", Unary<mx::cosh>},
    {"ErfNode", "error function", Unary<mx::erf>},
    {"ExpNode", "e to the power of x", Unary<mx::exp>},
    {"Expm1Node", "e to the power of x, minus 1", Unary<mx::expm1>},
    {"FloorNode", "rounded down", Unary<mx::floor>},
    {"GeluNode", "x times the normal distribution function of x, exact or by tanh", Gelu},
    {"IdCopyNode", "x itself", Unary<Same>},
    {"Log10Node", "logarithm to base 10", Unary<mx::log10>},
    {"Log1pNode", "logarithm of 1 + x", Unary<mx::log1p>},
    {"Log2Node", "logarithm to base 2", Unary<mx::log2>},
    {"LogNode", "natural logarithm", Unary<mx::log>},
    {"LogicalNotNode", "whether x is 0", Unary<mx::logical_not>},
    {"NegNode", "-x", Unary<mx::negative>},
    {"ReciprocalNode", "1 / x", Unary<mx::reciprocal>},
    {"RoundNode", "rounded to decimals, halves to even", Round},
    {"RsqrtNode", "1 / sqrt(x)", Unary<mx::rsqrt>},
    {"SigmoidNode", "1 / (1 + exp(-x))", Unary<mx::sigmoid>},
    {"SignNode", "-1, 0 or 1", Unary<mx::sign>},
    {"SiluNode", "x sigmoid(x)", Unary<InFloat32<Silu>>},
    {"SinNode", "sine", Unary<mx::sin>},
    {"SinhNode", "hyperbolic sine", Unary<mx::sinh>},
    {"SqrtNode", "square root", Unary<mx::sqrt>},
    {"SquareNode", "x x", Unary<mx::square>},
    {"TanNode", "tangent", Unary<mx::tan>},
    {"TanhNode", "hyperbolic tangent", Unary<mx::tanh>},
    {"TruncNode", "rounded towards 0", Unary<Truncate>},
};

}  // namespace

std::span<const Handler> UnaryOps() { return kOps; }

}  // namespace offgraph::program
