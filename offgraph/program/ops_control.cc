// Control flow: instructions that run other chains.
#include <mlx/ops.h>

#include "offgraph/cache/error.h"
#include "offgraph/program/handler.h"
#include "offgraph/program/interpreter.h"
#include "offgraph/program/mlx_types.h"

namespace offgraph::program {
namespace {

namespace mx = mlx::core;

Action Noop(const Operands& /*operands*/) {
  return [](Frame&) {};
}

Action If(const Operands& operands) {
  return [cond = operands.IntOrSlot("cond"), then_chain = static_cast<size_t>(operands.Long("then_chain_idx")),
          else_chain = static_cast<size_t>(operands.Long("else_chain_idx"))](Frame& frame) {
    frame.interpreter().Run(frame.Int(cond) != 0 ? then_chain : else_chain, frame);
  };
}

mx::array StepOf(const mx::array& x, size_t axis, int step) {
  mx::Shape from(x.ndim(), 0);
  mx::Shape to = x.shape();
  from[axis] = step;
  to[axis] = step + 1;
  return mx::squeeze(mx::slice(x, from, to), static_cast<int>(axis));
}

// Runs its body once per position of `scan_axis`: `sliced` holds that position of `originals`, `carry` stays from one
// position to the next, and what the body leaves in `outputs` is stacked along the axis.
class Scan {
 public:
  // What carries from one position to the next stays in its slots, so that there is nothing to do for it.
  explicit Scan(const Operands& operands)
      : originals_(operands.Tensors("originals")),
        sliced_(operands.Tensors("sliced")),
        outputs_(operands.Tensors("outputs")),
        body_(static_cast<size_t>(operands.Long("body_chain_idx"))),
        axis_(operands.Int("scan_axis")) {
    operands.Tensors("carry");
    if (originals_.empty() || originals_.size() != sliced_.size()) {
      operands.Fail("as many slices as scanned tensors are needed, and at least one");
    }
  }

  void operator()(Frame& frame) const {
    const std::vector<mx::array> inputs = frame.Get(originals_);
    const int steps = inputs.front().shape(NormalizeAxis(axis_, inputs.front()));
    for (const mx::array& input : inputs) {
      if (input.shape(NormalizeAxis(axis_, input)) != steps || steps == 0) {
        throw Error(ErrorCode::kInvalidArgument, "a tensor of shape " + ShapeText(input.shape()) + " scanned over " +
                                                     std::to_string(steps) + " positions of axis " +
                                                     std::to_string(axis_));
      }
    }
    std::vector<std::vector<mx::array>> results(outputs_.size());
    for (int step = 0; step < steps; ++step) {
      for (size_t i = 0; i < inputs.size(); ++i) {
        frame.Set(sliced_[i], StepOf(inputs[i], static_cast<size_t>(NormalizeAxis(axis_, inputs[i])), step));
      }
      frame.interpreter().Run(body_, frame);
      for (size_t i = 0; i < outputs_.size(); ++i) results[i].push_back(frame.Get(outputs_[i]));
    }
    for (size_t i = 0; i < outputs_.size(); ++i) frame.Set(outputs_[i], mx::stack(results[i], axis_));
  }

 private:
  std::vector<Tid> originals_;
  std::vector<Tid> sliced_;
  std::vector<Tid> outputs_;
  size_t body_;
  int axis_;
};

Action BindScan(const Operands& operands) { return Scan(operands); }

constexpr Handler kOps[] = {
    {"IfNode", "runs one of two chains", If},
    {"NoopNode", "nothing", Noop},
    {"ScanNode", "runs a chain once per position of an axis, with a carried state", BindScan},
};

}  // namespace

std::span<const Handler> ControlOps() { return kOps; }

}  // namespace offgraph::program
