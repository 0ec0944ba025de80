// Ops that reduce or scan along axes.
#include <mlx/ops.h>

#include <numeric>

#include "offgraph/program/handler.h"

namespace offgraph::program {
namespace {

namespace mx = mlx::core;

// No axes means all of them.
std::vector<int> AxesOf(const std::vector<int>& axes, const mx::array& x) {
  if (!axes.empty()) return NormalizeAxes(axes, x);
  std::vector<int> all(x.ndim());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

using ReduceFunction = mx::array (*)(const mx::array&, const std::vector<int>&, bool, mx::StreamOrDevice);

template <ReduceFunction F>
Action Reduce(const Operands& operands) {
  return [x = operands.Tensor("x"), out = operands.Tensor("out"), axes = operands.Ints("axes"),
          keepdims = operands.Flag("keepdims")](Frame& frame) {
    const mx::array& input = frame.Get(x);
    frame.Set(out, F(input, AxesOf(axes, input), keepdims, {}));
  };
}

using SpreadFunction = mx::array (*)(const mx::array&, const std::vector<int>&, bool, int, mx::StreamOrDevice);

template <SpreadFunction F>
Action Spread(const Operands& operands) {
  return [x = operands.Tensor("x"), out = operands.Tensor("out"), axes = operands.Ints("axes"),
          keepdims = operands.Flag("keepdims"), ddof = operands.Int("ddof")](Frame& frame) {
    const mx::array& input = frame.Get(x);
    frame.Set(out, F(input, AxesOf(axes, input), keepdims, ddof, {}));
  };
}

using PickFunction = mx::array (*)(const mx::array&, int, bool, mx::StreamOrDevice);

template <PickFunction F>
Action Pick(const Operands& operands) {
  return [x = operands.Tensor("x"), out = operands.Tensor("out"), axis = operands.Int("axis"),
          keepdims = operands.Flag("keepdims")](Frame& frame) {
    const mx::array& input = frame.Get(x);
    frame.Set(out, F(input, NormalizeAxis(axis, input), keepdims, {}));
  };
}

Action CumulativeSum(const Operands& operands) {
  return [x = operands.Tensor("x"), out = operands.Tensor("out"), axis = operands.Int("axis"),
          reverse = operands.Flag("reverse"), inclusive = operands.Flag("inclusive")](Frame& frame) {
    const mx::array& input = frame.Get(x);
    frame.Set(out, mx::cumsum(input, NormalizeAxis(axis, input), reverse, inclusive, std::nullopt));
  };
}

constexpr Handler kOps[] = {
    {"AllNode", "whether no element is 0", Reduce<mx::all>},
    {"AnyNode", "whether some element is not 0", Reduce<mx::any>},
    {"ArgmaxNode", "index of the largest element", Pick<mx::argmax>},
    {"ArgminNode", "index of the smallest element", Pick<mx::argmin>},
    {"CumsumNode", "running sum along an axis", CumulativeSum},
    {"LogSumExpNode", "log(sum(exp(x)))", Reduce<mx::logsumexp>},
    {"MaxNode", "largest element", Reduce<mx::max>},
    {"MeanNode", "mean", Reduce<mx::mean>},
    {"MedianNode", "median, the mean of the two middle ones of an even count", Reduce<mx::median>},
    {"MinNode", "smallest element", Reduce<mx::min>},
    {"ProdNode", "product", Reduce<mx::prod>},
    {"StdNode", "standard deviation", Spread<mx::std>},
    {"SumNode", "sum", Reduce<mx::sum>},
    {"VarNode", "variance", Spread<mx::var>},
};

}  // namespace

std::span<const Handler> ReductionOps() { return kOps; }

}  // namespace offgraph::program
