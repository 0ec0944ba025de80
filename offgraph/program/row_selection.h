// Row selection: where only the last row of the first output is wanted, the rows before it need not be computed by
// the ops that treat every row alone, which are the costly ones (the output head is a third of a small model).
#pragma once

#include <mlx/array.h>

#include <cstddef>
#include <optional>

#include "offgraph/program/graph.h"

namespace offgraph::program {

// After main-chain instruction `instruction`, which writes `tensor` [1, T, n], the tensor can be replaced by its last
// row [1, 1, n], and the first output becomes its last row.
struct RowCut {
  size_t instruction = 0;
  Tid tensor;
};

// The earliest such place; absent where the first output is no tensor that the main chain computes. At the latest it
// is the instruction that writes the output.
std::optional<RowCut> FindRowCut(const Graph& graph);

// Row -1 of axis -2, kept as an axis of one. Lower ranks come back as they are.
mlx::core::array LastRow(const mlx::core::array& x);

}  // namespace offgraph::program
