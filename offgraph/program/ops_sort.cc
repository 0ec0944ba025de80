// Sorting and partitioning along an axis.
#include <mlx/ops.h>

#include "offgraph/cache/error.h"
#include "offgraph/program/handler.h"

namespace offgraph::program {
namespace {

namespace mx = mlx::core;

using SortFunction = mx::array (*)(const mx::array&, int, mx::StreamOrDevice);

template <SortFunction F>
Action Sort(const Operands& operands) {
  return [x = operands.Tensor("x"), out = operands.Tensor("out"), axis = operands.Int("axis")](Frame& frame) {
    const mx::array& input = frame.Get(x);
    frame.Set(out, F(input, NormalizeAxis(axis, input), {}));
  };
}

using PartitionFunction = mx::array (*)(const mx::array&, int, int, mx::StreamOrDevice);

template <PartitionFunction F>
Action Partition(const Operands& operands) {
  return [x = operands.Tensor("x"), out = operands.Tensor("out"), kth = operands.IntOrSlot("kth"),
          axis = operands.Int("axis")](Frame& frame) {
    const mx::array& input = frame.Get(x);
    const int dim = NormalizeAxis(axis, input);
    const int64_t k = frame.Int(kth);
    const int size = input.shape(dim);
    if (k < -size || k >= size) {
      throw Error(ErrorCode::kInvalidArgument,
                  "element " + std::to_string(k) + " of an axis of " + std::to_string(size));
    }
    frame.Set(out, F(input, static_cast<int>(k < 0 ? k + size : k), dim, {}));
  };
}

constexpr Handler kOps[] = {
    {"ArgPartitionNode", "indices that put the kth element in its place", Partition<mx::argpartition>},
    {"ArgsortNode", "indices that sort", Sort<mx::argsort>},
    {"PartitionNode", "the kth element in its place, smaller ones before it", Partition<mx::partition>},
    {"SortNode", "sorted, ascending", Sort<mx::sort>},
};

}  // namespace

std::span<const Handler> SortOps() { return kOps; }

}  // namespace offgraph::program
