// Matrix products and quantized weights.
#include <mlx/ops.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "offgraph/bytes/linear_op.h"
#include "offgraph/cache/error.h"
#include "offgraph/program/handler.h"
#include "offgraph/program/mlx_types.h"

namespace offgraph::program {
namespace {

namespace mx = mlx::core;

Action Addmm(const Operands& operands) {
  return [mat1 = operands.Tensor("mat1"), mat2 = operands.Tensor("mat2"), bias = operands.OptionalTensor("bias"),
          out = operands.Tensor("out"), alpha = operands.Float("alpha"), beta = operands.Float("beta")](Frame& frame) {
    const mx::array& a = frame.Get(mat1);
    const mx::array& b = frame.Get(mat2);
    if (bias) {
      frame.Set(out, bytes::Addmm(frame.Get(*bias), a, b, alpha, beta));
      return;
    }
    mx::array product = bytes::Matmul(a, b);
    frame.Set(out, alpha == 1 ? product : mx::multiply(product, mx::array(alpha, product.dtype())));
  };
}

// How a weight is quantized: MLX's modes, "affine" with biases and the floating-point ones without.
struct Quantization {
  int group_size;
  int bits;
  std::string mode;
};

// The modes of MLX, each with its groups and its bits; zeros fill the lists.
struct QuantizationMode {
  std::string_view name;
  std::array<int, 3> groups;
  std::array<int, 6> bits;
};
constexpr QuantizationMode kModes[] = {
    {"affine", {32, 64, 128}, {2, 3, 4, 5, 6, 8}},
    {"mxfp4", {32}, {4}},
    {"mxfp8", {32}, {8}},
    {"nvfp4", {16}, {4}},
};

Quantization QuantizationOf(const Operands& operands) {
  Quantization quantization{operands.Int("group_size"), operands.Int("bits"), operands.Text("mode")};
  const auto has = [](const auto& list, int number) { return number > 0 && std::ranges::count(list, number) > 0; };
  const auto* const mode = std::ranges::find(kModes, quantization.mode, &QuantizationMode::name);
  if (mode == std::end(kModes) || !has(mode->groups, quantization.group_size) || !has(mode->bits, quantization.bits)) {
    operands.Fail("quantization \"" + quantization.mode + "\" in groups of " + std::to_string(quantization.group_size) +
                  " at " + std::to_string(quantization.bits) +
                  " bits; there are affine (groups of 32, 64 or 128; 2, 3, 4, 5, 6 or 8 bits), mxfp4 (32; 4), mxfp8 "
                  "(32; 8) and nvfp4 (16; 4)");
  }
  if (operands.OptionalTensor("biases").has_value() != (quantization.mode == "affine")) {
    operands.Fail("biases are needed for quantization \"affine\", and for no other; this one is \"" +
                  quantization.mode + "\"");
  }
  return quantization;
}

// MLX divides by the sizes of what it multiplies.
void RequireElements(const mx::array& x, const mx::array& w) {
  if (x.size() > 0 && w.size() > 0) return;
  throw Error(ErrorCode::kInvalidArgument,
              "a product of empty matrices: " + ShapeText(x.shape()) + " and " + ShapeText(w.shape()));
}

Action QuantizedMatmul(const Operands& operands) {
  return [x = operands.Tensor("x"), w = operands.Tensor("w"), scales = operands.Tensor("scales"),
          biases = operands.OptionalTensor("biases"), out = operands.Tensor("out"), q = QuantizationOf(operands),
          transpose = operands.Flag("transpose")](Frame& frame) {
    RequireElements(frame.Get(x), frame.Get(w));
    RequireFit(frame.Get(w), frame.Get(scales), frame.GetIf(biases));
    frame.Set(out, bytes::QuantizedMatmul(frame.Get(x), frame.Get(w), frame.Get(scales), frame.GetOptional(biases),
                                          transpose, q.group_size, q.bits, q.mode));
  };
}

Action Dequantize(const Operands& operands) {
  return [w = operands.Tensor("w"), scales = operands.Tensor("scales"), biases = operands.OptionalTensor("biases"),
          out = operands.Tensor("out"), q = QuantizationOf(operands),
          global_scale = operands.OptionalTensor("global_scale"), type = operands.OptionalType("dtype")](Frame& frame) {
    RequireFit(frame.Get(w), frame.Get(scales), frame.GetIf(biases));
    frame.Set(out, mx::dequantize(frame.Get(w), frame.Get(scales), frame.GetOptional(biases), q.group_size, q.bits,
                                  q.mode, frame.GetOptional(global_scale), type));
  };
}

// Indices of a gathered product pick matrices: of `x` viewed as [batches, rows, columns].
std::optional<mx::array> MatrixIndices(Frame& frame, const std::optional<Tid>& indices, const mx::array& x) {
  if (!indices) return std::nullopt;
  int64_t batches = 1;
  for (size_t d = 0; d + 2 < x.ndim(); ++d) batches *= x.shape(static_cast<int>(d));
  mx::array picked = CheckedIndices(frame.Get(*indices), ToInt32(batches, "number of matrices"));
  // The products take unsigned ones: those that count from the end are turned into others.
  if (mx::issubdtype(picked.dtype(), mx::signedinteger)) {
    picked = mx::remainder(mx::astype(picked, mx::int64), mx::array(batches, mx::int64));
  }
  return mx::astype(picked, mx::uint32);
}

// Whether the indices are sorted, which is a promise of the exporter: known at load, or computed.
struct SortedFlag {
  explicit SortedFlag(const Operands& operands)
      : known(operands.Flag("sorted_indices")), computed(operands.OptionalIntOrSlot("sorted_indices_flag")) {}
  bool operator()(const Frame& frame) const { return computed ? frame.Int(*computed) != 0 : known; }

  bool known;
  std::optional<IntOperand> computed;
};

// MLX gathers products on the CPU in fp32 only. Other types are widened, no more of `b` than the indices name, and the
// result is rounded once.
mx::array WideGatherMm(const mx::array& a, const mx::array& b, const std::optional<mx::array>& lhs,
                       std::optional<mx::array> rhs, bool sorted) {
  const mx::Dtype type = mx::promote_types(a.dtype(), b.dtype());
  mx::array matrices = mx::reshape(b, {-1, b.shape(-2), b.shape(-1)});
  if (rhs && rhs->size() < static_cast<size_t>(matrices.shape(0))) {
    matrices = mx::take(matrices, mx::flatten(*rhs), 0);
    rhs = mx::reshape(mx::arange(static_cast<int>(rhs->size()), mx::uint32), rhs->shape());
    sorted = true;
  } else if (!rhs) {
    matrices = b;  // no index: the batch axes themselves are matched
  }
  const mx::array product =
      mx::gather_mm(mx::astype(a, mx::float32), mx::astype(matrices, mx::float32), lhs, rhs, sorted);
  return mx::astype(product, type);
}

Action GatherMm(const Operands& operands) {
  return [a = operands.Tensor("a"), b = operands.Tensor("b"), lhs = operands.OptionalTensor("lhs_indices"),
          rhs = operands.OptionalTensor("rhs_indices"), out = operands.Tensor("out"),
          sorted = SortedFlag(operands)](Frame& frame) {
    const mx::array& left = frame.Get(a);
    const mx::array& right = frame.Get(b);
    RequireElements(left, right);
    if (left.ndim() < 2 || right.ndim() < 2) throw Error(ErrorCode::kInvalidArgument, "matrices are needed");
    const std::optional<mx::array> lhs_index = MatrixIndices(frame, lhs, left);
    const std::optional<mx::array> rhs_index = MatrixIndices(frame, rhs, right);
    const bool wide = left.dtype() == mx::float32 && right.dtype() == mx::float32;
    frame.Set(out, wide ? mx::gather_mm(left, right, lhs_index, rhs_index, sorted(frame))
                        : WideGatherMm(left, right, lhs_index, rhs_index, sorted(frame)));
  };
}

Action GatherQmm(const Operands& operands) {
  return [x = operands.Tensor("x"), w = operands.Tensor("w"), scales = operands.Tensor("scales"),
          biases = operands.OptionalTensor("biases"), lhs = operands.OptionalTensor("lhs_indices"),
          rhs = operands.OptionalTensor("rhs_indices"), out = operands.Tensor("out"), q = QuantizationOf(operands),
          transpose = operands.Flag("transpose"), sorted = SortedFlag(operands)](Frame& frame) {
    const mx::array& left = frame.Get(x);
    const mx::array& right = frame.Get(w);
    RequireElements(left, right);
    RequireFit(right, frame.Get(scales), frame.GetIf(biases));
    frame.Set(out, mx::gather_qmm(left, right, frame.Get(scales), frame.GetOptional(biases),
                                  MatrixIndices(frame, lhs, left), MatrixIndices(frame, rhs, right), transpose,
                                  q.group_size, q.bits, q.mode, std::nullopt, sorted(frame)));
  };
}

constexpr Handler kOps[] = {
    {"AddmmNode", "alpha mat1 mat2 + beta bias", Addmm},
    {"DequantizeNode", "a quantized matrix in floating point", Dequantize},
    {"GatherMmNode", "products of matrices that indices pick", GatherMm},
    {"GatherQmmNode", "products with quantized matrices that indices pick", GatherQmm},
    {"QuantizedMatmulNode", "product with a quantized matrix", QuantizedMatmul},
};

}  // namespace

std::span<const Handler> LinearOps() { return kOps; }

}  // namespace offgraph::program
