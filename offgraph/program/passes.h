// The optimizer: a list of named pure functions, graph to graph. Each finds its pattern by structure, never by a
// model's name, and leaves alone what it does not know.
//
// What passes bring into a graph, beside the schema's ops (each has a handler of its own, so that a graph runs after
// any number of passes; x, out and the like are tensor slots, [T] the token axis):
//   Rotary(x, cos, sin, out)            x * cos + rotate_half(x) * sin, where rotate_half([a, b]) = [-b, a] over halves
//                                       of the last axis; cos and sin broadcast
//   GatedActivation(gate, up, activation, out)   activation(gate) * up; "silu", "gelu" or "gelu_tanh"
//   Linears(x, weights, biases, outs)   outs[i] = x weights[i]^T (+ biases[i], where biases are not empty)
//   QuantizedLinears(x, weights, scales, biases, group_size, bits, outs, fast)   the same for affine quantized weights;
//                                       `fast` allows activations to be rounded (kernels/packed_weights.h)
//   QuantizedEmbedding(index, w, scales, biases, group_size, bits, dtype, out)   dequantized rows of w
//   Region(body_chain_idx, inputs, outs)   runs a chain that only needs `inputs` and constants
#pragma once

#include <span>
#include <string_view>

#include "offgraph/program/graph.h"

namespace offgraph::program {

struct Pass {
  std::string_view name;
  std::string_view what;  // for people: what it does
  Graph (*run)(Graph graph);
  bool exact = true;  // values stay what they were, but for the rounding of the program's own types
};

// In the order in which Optimize runs them.
std::span<const Pass> Passes();

// All passes, in order; with `exact`, without those that change values beyond the rounding of the program's own types.
Graph Optimize(Graph graph, bool exact);

// The passes, each in pass_<family>.cc.
Graph UniqueTemps(Graph graph);       // every temporary is written once
Graph RemoveDead(Graph graph);        // drops instructions whose results nobody reads
Graph FindLinears(Graph graph);       // products with a constant weight -> Linears, QuantizedLinears
Graph FindEmbeddings(Graph graph);    // three look-ups and a dequantization -> QuantizedEmbedding
Graph RoundActivations(Graph graph);  // lets quantized linear layers round their activations
Graph FoldConstants(Graph graph);     // what follows from constants alone moves to the fold chain
Graph FuseRotary(Graph graph);        // rotary embedding spelled out -> Rotary
Graph FuseGates(Graph graph);         // activation and product -> GatedActivation
Graph MergeProjections(Graph graph);  // linear layers of one input -> one instruction
Graph FormRegions(Graph graph);       // runs of per-token instructions -> Region

}  // namespace offgraph::program
