// Linear layers over packed weights (kernels/packed_weights.h) as MLX operations: the fast mode on CPU, with
// activations of 12 bits. Whoever builds the graph decides where it is used.
//
// Thread rule: packed weights are immutable and shared; operations are built by one thread at a time, as all of MLX's.
#pragma once

#include <mlx/array.h>
#include <mlx/utils.h>

#include <memory>
#include <optional>
#include <span>

#include "offgraph/kernels/packed_weights.h"

namespace offgraph::bytes {

// A quantized weight as mlx::core::quantize makes it (mode affine).
struct QuantizedArrays {
  mlx::core::array codes;   // uint32 [N, K * bits / 32]
  mlx::core::array scales;  // [N, K / group_size]
  mlx::core::array biases;  // [N, K / group_size]
};

// Packs the rows of all parts, one after the other, as one weight: projections of the same input are one product. The
// arrays are evaluated and read, and not kept: their memory is free to go when this returns.
// Throws Error(kInvalidArgument) where shapes or types do not fit each other, bits or group_size.
std::shared_ptr<const kernels::PackedWeights> PackWeights(std::span<const QuantizedArrays> parts, int group_size,
                                                          int bits);

// y = x w^T (+ bias), rounded once to `type`, which is x's where it is absent.
//   x [..., K] fp32, fp16 or bf16   bias [N]   result [..., N]
// Throws Error(kInvalidArgument) for shapes and types that do not fit, and where the stream is not a CPU's.
mlx::core::array PackedLinear(const mlx::core::array& x, std::shared_ptr<const kernels::PackedWeights> w,
                              const std::optional<mlx::core::array>& bias = std::nullopt,
                              std::optional<mlx::core::Dtype> type = std::nullopt, mlx::core::StreamOrDevice s = {});

}  // namespace offgraph::bytes
