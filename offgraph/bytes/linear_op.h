// Matrix products as MLX operations over the CPU kernels: the same shapes and types as MLX's own ops, at the speed of
// the machine, and with bits that do not depend on the number of rows.
//
// On a CPU stream, products of fp32, fp16 and bf16 run in kernels/linear.h and kernels/quantized.h: operands of any
// strides, accumulation in fp32 in one fixed order, the result rounded once. A row of the result therefore has the
// same bits whatever rows are computed beside it. Everything else (another device, another element type, a
// quantization mode other than affine) is MLX's own op, with its own rounding.
//
// All functions are lazy as MLX's ops are, read weights where they lie, and copy nothing but an operand whose
// innermost axis has no unit stride. Shapes that do not fit throw Error(kInvalidArgument) that names the op, expected
// and actual.
//
// Thread rule: that of MLX's ops (graphs are built by one thread at a time).
#pragma once

#include <mlx/array.h>
#include <mlx/utils.h>

#include <optional>
#include <string>

namespace offgraph::bytes {

// y = x w^T (+ bias), for a weight in the layout of a linear layer.
//   x [..., K]   w [N, K]   bias [N]   result [..., N], in MLX's promoted type of all operands
mlx::core::array Linear(const mlx::core::array& x, const mlx::core::array& w,
                        const std::optional<mlx::core::array>& bias = std::nullopt, mlx::core::StreamOrDevice s = {});

// a b, as mlx::core::matmul: vectors are promoted to matrices, batch dimensions broadcast.
//   a [..., M, K]   b [..., K, N]   result [..., M, N], in the promoted type
mlx::core::array Matmul(const mlx::core::array& a, const mlx::core::array& b, mlx::core::StreamOrDevice s = {});

// alpha a b + beta c, as mlx::core::addmm.
//   a [..., M, K]   b [..., K, N]   c broadcasts to [..., M, N]   result [..., M, N], in the promoted type of all
mlx::core::array Addmm(const mlx::core::array& c, const mlx::core::array& a, const mlx::core::array& b,
                       float alpha = 1.0F, float beta = 1.0F, mlx::core::StreamOrDevice s = {});

// x w^T (transpose) or x w, for a quantized w, as mlx::core::quantized_matmul. Weights are dequantized to fp32 in
// registers and never rounded to a narrower type.
//   x [..., K]   w uint32 [..., N, K * bits / 32], or [..., K, N * bits / 32] where not transposed
//   scales, biases: w's shape with the last axis divided into groups   result [..., N], in the promoted type of x,
//   scales and biases
// `biases` is required for mode "affine" and absent for the others.
mlx::core::array QuantizedMatmul(const mlx::core::array& x, const mlx::core::array& w, const mlx::core::array& scales,
                                 const std::optional<mlx::core::array>& biases, bool transpose, int group_size,
                                 int bits, const std::string& mode = "affine", mlx::core::StreamOrDevice s = {});

}  // namespace offgraph::bytes
