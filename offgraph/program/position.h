// Position: where a program's update_and_attend nodes get their position from.
//
// The position decides what the cache does, so it must be known on the host before a step opens. It is traced back, at
// load, through ops that only move elements, to the program input that it comes from; a step then reads it there, and
// nothing is evaluated for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "offgraph/program/graph.h"
#include "offgraph/program/host_tensor.h"

namespace offgraph::program {

// Elements [start, stop) by step of a list, counted as Python does.
struct PositionSlice {
  int64_t start = 0;
  int64_t stop = 0;
  int64_t step = 1;
  bool operator==(const PositionSlice&) const = default;
};

struct PositionSource {
  size_t input = 0;  // index into the program's inputs
  std::vector<PositionSlice> slices;
  bool operator==(const PositionSource&) const = default;
};

// The one source of the position of all update_and_attend nodes; absent where there is no node, where one cannot be
// traced, or where they differ.
std::optional<PositionSource> TracePosition(const Graph& graph);

// The position's rows, as int64 whatever the tensor's integer type. REQUIRES: an integer type.
std::vector<int64_t> ReadPosition(const PositionSource& source, const HostTensor& tensor);

// Checks the rows of a position for a step of `tokens`: one row (where the step starts), or one per token that count
// up by one. Returns the first. Throws Error(kInvalidArgument) with expected and actual.
int64_t CheckPosition(const std::vector<int64_t>& rows, int64_t tokens);

}  // namespace offgraph::program
