#include "offgraph/program/passes.h"

#include <array>
#include <utility>

namespace offgraph::program {

std::span<const Pass> Passes() {
  static constexpr std::array<Pass, 10> kPasses{{
      {"unique-temps", "gives every value a slot of its own", UniqueTemps},
      {"embeddings", "look-ups in a quantized table become one op", FindEmbeddings},
      {"linears", "products with a constant weight become linear layers", FindLinears},
      {"rotary", "rotary embedding that is spelled out becomes one op", FuseRotary},
      {"gates", "an activation and its product become one op", FuseGates},
      {"projections", "linear layers of the same input become one", MergeProjections},
      {"activations", "quantized linear layers round their activations to 12 bits", RoundActivations, false},
      {"constants", "what follows from constants alone is computed once", FoldConstants},
      {"dead", "results that nobody reads are not computed", RemoveDead},
      {"regions", "runs of per-token ops run as one", FormRegions},
  }};
  return kPasses;
}

Graph Optimize(Graph graph, bool exact) {
  for (const Pass& pass : Passes()) {
    if (pass.exact || !exact) graph = pass.run(std::move(graph));
  }
  return graph;
}

}  // namespace offgraph::program
