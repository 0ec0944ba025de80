// Ops that the optimizer's passes bring into a graph (passes.h says what each means), for where no region runs them.
#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "offgraph/bytes/linear_op.h"
#include "offgraph/cache/error.h"
#include "offgraph/program/handler.h"
#include "offgraph/program/mlx_types.h"
#include "offgraph/program/region_runner.h"

namespace offgraph::program {
namespace {

namespace mx = mlx::core;

Action Rotary(const Operands& operands) {
  return [x = operands.Tensor("x"), cos = operands.Tensor("cos"), sin = operands.Tensor("sin"),
          out = operands.Tensor("out")](Frame& frame) {
    const mx::array& input = frame.Get(x);
    const std::vector<mx::array> halves = mx::split(input, 2, -1);
    const mx::array rotated = mx::concatenate({mx::negative(halves[1]), halves[0]}, -1);
    frame.Set(out, mx::add(mx::multiply(input, frame.Get(cos)), mx::multiply(rotated, frame.Get(sin))));
  };
}

// The activation is the schema's own op, bound to write where the product goes.
Action GatedActivation(const Operands& operands) {
  const std::string& name = operands.Text("activation");
  const Tid out = operands.Tensor("out");
  Instruction activation{name == "silu" ? "SiluNode" : "GeluNode", {{"x", operands.Tensor("gate")}, {"out", out}}};
  if (name != "silu") {
    activation.fields.push_back({"approximate", std::string(name == "gelu_tanh" ? "tanh" : "none")});
  }
  const std::string where = "GatedActivation";
  return [activate = FindHandler(activation.op)->bind(Operands(operands.graph(), activation, where)),
          up = operands.Tensor("up"), out](Frame& frame) {
    activate(frame);
    frame.Set(out, mx::multiply(frame.Get(out), frame.Get(up)));
  };
}

Action Linears(const Operands& operands) {
  return [x = operands.Tensor("x"), weights = operands.Tensors("weights"), biases = operands.Tensors("biases"),
          outs = operands.Tensors("outs")](Frame& frame) {
    const mx::array input = frame.Get(x);
    for (size_t i = 0; i < weights.size(); ++i) {
      const auto bias = biases.empty() ? std::nullopt : std::optional(frame.Get(biases[i]));
      frame.Set(outs[i], bytes::Linear(input, frame.Get(weights[i]), bias));
    }
  };
}

Action QuantizedLinears(const Operands& operands) {
  return [x = operands.Tensor("x"), weights = operands.Tensors("weights"), scales = operands.Tensors("scales"),
          biases = operands.Tensors("biases"), outs = operands.Tensors("outs"), group_size = operands.Int("group_size"),
          bits = operands.Int("bits")](Frame& frame) {
    const mx::array input = frame.Get(x);
    for (size_t i = 0; i < weights.size(); ++i) {
      frame.Set(outs[i], bytes::QuantizedMatmul(input, frame.Get(weights[i]), frame.Get(scales[i]),
                                                frame.Get(biases[i]), true, group_size, bits));
    }
  };
}

Action QuantizedEmbedding(const Operands& operands) {
  return [index = operands.Tensor("index"), w = operands.Tensor("w"), scales = operands.Tensor("scales"),
          biases = operands.Tensor("biases"), out = operands.Tensor("out"), group_size = operands.Int("group_size"),
          bits = operands.Int("bits"), type = operands.OptionalType("dtype")](Frame& frame) {
    RequireFit(frame.Get(w), frame.Get(scales), &frame.Get(biases));
    const mx::array rows = CheckedIndices(frame.Get(index), frame.Get(w).shape(0));
    const auto take = [&](Tid table) { return mx::take(frame.Get(table), rows, 0); };
    frame.Set(out, mx::dequantize(take(w), take(scales), take(biases), group_size, bits, "affine", std::nullopt, type));
  };
}

Action Region(const Operands& operands) {
  auto runner = std::make_shared<RegionRunner>(operands.graph(), static_cast<size_t>(operands.Long("body_chain_idx")),
                                               operands.Tensors("inputs"), operands.Tensors("outs"));
  return [runner](Frame& frame) { runner->Run(frame); };
}

constexpr Handler kOps[] = {
    {"GatedActivation", "silu or gelu of the gate, times up", GatedActivation},
    {"Linears", "linear layers of one input", Linears},
    {"QuantizedEmbedding", "rows of a quantized table", QuantizedEmbedding},
    {"QuantizedLinears", "quantized linear layers of one input", QuantizedLinears},
    {"Region", "a chain that runs as one operation", Region},
    {"Rotary", "x cos + rotate_half(x) sin", Rotary},
};

}  // namespace

std::span<const Handler> FusedOps() { return kOps; }

}  // namespace offgraph::program
