// RegionRunner: what the Region op does in a step. It lowers the region's chain at the first step, and runs the chain
// through its handlers where lowering refused or the device is no CPU.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "offgraph/program/frame.h"
#include "offgraph/program/graph.h"
#include "offgraph/program/region.h"

namespace offgraph::program {

class RegionRunner {
 public:
  // `graph` must outlive the runner.
  RegionRunner(const Graph& graph, size_t body, std::vector<Tid> inputs, std::vector<Tid> outs)
      : graph_(graph), body_(body), inputs_(std::move(inputs)), outs_(std::move(outs)) {}

  void Run(Frame& frame);

 private:
  // T: the tokens of the step, from the first index input [1, T]. 0: not known.
  int64_t TokensOf(const Frame& frame) const;
  bool CanRun(const Frame& frame, int64_t tokens) const;
  void RunLowered(Frame& frame, int64_t tokens) const;

  const Graph& graph_;
  size_t body_;
  std::vector<Tid> inputs_;
  std::vector<Tid> outs_;
  bool tried_ = false;
  LoweringResult lowering_;
};

}  // namespace offgraph::program
