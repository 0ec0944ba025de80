// Normalization, softmax and the rotary embedding.
#include <mlx/fast.h>
#include <mlx/ops.h>

#include "offgraph/program/handler.h"

namespace offgraph::program {
namespace {

namespace mx = mlx::core;

Action RmsNorm(const Operands& operands) {
  return [x = operands.Tensor("x"), weight = operands.OptionalTensor("weight"), out = operands.Tensor("out"),
          eps = operands.Float("eps")](Frame& frame) {
    frame.Set(out, mx::fast::rms_norm(frame.Get(x), frame.GetOptional(weight), eps));
  };
}

Action LayerNorm(const Operands& operands) {
  return [x = operands.Tensor("x"), weight = operands.OptionalTensor("weight"), bias = operands.OptionalTensor("bias"),
          out = operands.Tensor("out"), eps = operands.Float("eps")](Frame& frame) {
    frame.Set(out, mx::fast::layer_norm(frame.Get(x), frame.GetOptional(weight), frame.GetOptional(bias), eps));
  };
}

Action Softmax(const Operands& operands) {
  return [x = operands.Tensor("x"), out = operands.Tensor("out"), axis = operands.Int("axis"),
          precise = operands.Flag("precise")](Frame& frame) {
    const mx::array& input = frame.Get(x);
    frame.Set(out, mx::softmax(input, NormalizeAxis(axis, input), precise));
  };
}

// x [B, H, T, D]: rotates the first `dims` of D. Angles come from `freqs` where it is given, else from `base`.
Action Rope(const Operands& operands) {
  const std::optional<Tid> freqs = operands.OptionalTensor("freqs");
  std::optional<float> base = operands.Float("base");
  if (freqs) base.reset();
  return [x = operands.Tensor("x"), out = operands.Tensor("out"), offset = operands.AnySlot("offset"), freqs, base,
          dims = operands.Int("dims"), traditional = operands.Flag("traditional"),
          scale = operands.Float("scale")](Frame& frame) {
    const mx::array& input = frame.Get(x);
    if (const Tid* positions = std::get_if<Tid>(&offset.value)) {
      frame.Set(out,
                mx::fast::rope(input, dims, traditional, base, scale, frame.Get(*positions), frame.GetOptional(freqs)));
      return;
    }
    const int position = ToInt32(frame.Int(std::get<Vid>(offset.value)), "position");
    frame.Set(out, mx::fast::rope(input, dims, traditional, base, scale, position, frame.GetOptional(freqs)));
  };
}

constexpr Handler kOps[] = {
    {"LayerNormNode", "x less its mean, over its standard deviation", LayerNorm},
    {"RMSNormNode", "x over its root mean square", RmsNorm},
    {"RopeNode", "rotary position embedding", Rope},
    {"SoftmaxNode", "exp(x) over its sum along an axis", Softmax},
};

}  // namespace

std::span<const Handler> NormOps() { return kOps; }

}  // namespace offgraph::program
