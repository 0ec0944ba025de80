// Inspect: what a program holds, for people and for the command line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "offgraph/program/host_tensor.h"
#include "offgraph/program/program.h"

namespace offgraph::program {

struct OpCount {
  std::string op;
  int64_t count = 0;
};
struct WeightInfo {
  std::string name;
  ScalarType type = ScalarType::kFloat;
  std::vector<int64_t> shape;
  int64_t bytes = 0;
};

// Ops over all chains, the most frequent first, equal counts by name.
std::vector<OpCount> CountOps(const Program& program);
// Constants in slot order.
std::vector<WeightInfo> ListWeights(const Program& program);
// Mutable buffers (a cache inside of the graph, say), in slot order.
std::vector<WeightInfo> ListBuffers(const Program& program);
// One instruction a line, chain by chain, with all fields.
std::string DumpInstructions(const Program& program);

// Ops of the schema that this build was made with and has no handler for.
std::vector<std::string> UnhandledOps();

}  // namespace offgraph::program
