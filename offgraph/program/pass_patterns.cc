// Passes that find a small pattern and put one op in its place: rotary embeddings, gates, quantized look-ups.
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "offgraph/program/passes.h"
#include "offgraph/program/rewrite.h"

namespace offgraph::program {
namespace {

// A view of a chain with its uses, for finding patterns from their last instruction backwards.
class Matcher {
 public:
  Matcher(const Graph& graph, const Chain& chain) : chain_(chain), uses_(graph, chain), dead_(chain.size(), false) {}

  const Instruction& at(size_t i) const { return chain_[i]; }
  const DefUse& uses() const { return uses_; }

  // The instruction of that op which alone writes `tid`, where only `reader` reads it.
  std::optional<size_t> Sole(std::optional<Tid> tid, size_t reader, std::string_view op) const {
    if (!tid) return std::nullopt;
    const std::optional<size_t> producer = uses_.SoleProducer(*tid, reader);
    return producer && !dead_[*producer] && chain_[*producer].op == op ? producer : std::nullopt;
  }
  void Consume(size_t i) { dead_[i] = true; }
  const std::vector<bool>& dead() const { return dead_; }

 private:
  const Chain& chain_;
  DefUse uses_;
  std::vector<bool> dead_;
};

bool IsLastAxis(const Instruction& instruction, int64_t rank) {
  const std::optional<int64_t> axis = IntOf(instruction, "axis");
  return axis && (*axis == -1 || *axis == rank - 1);
}

// Slice(x, last axis, start, stop, step 1) of a rank 4 tensor.
struct LastAxisSlice {
  Tid x;
  int64_t start = 0;
  int64_t stop = 0;
};
std::optional<LastAxisSlice> AsLastAxisSlice(const Instruction& instruction) {
  if (instruction.op != "SliceNode" || !IsLastAxis(instruction, 4) || IntOf(instruction, "step") != 1) {
    return std::nullopt;
  }
  const std::optional<Tid> x = TidOf(instruction, "x");
  const std::optional<int64_t> start = IntOf(instruction, "start");
  const std::optional<int64_t> stop = IntOf(instruction, "stop");
  if (!x || !start || !stop) return std::nullopt;
  return LastAxisSlice{*x, *start, *stop};
}

// The pattern that ends in Add(Multiply(x, cos), Multiply(Concatenate(Neg(x[h:]), x[:h]), sin)), factors and terms in
// any order.
struct RotaryMatch {
  Tid x;
  Tid cos;
  Tid sin;
  std::vector<size_t> inner;  // instructions that vanish
};

// rotate_half: the x of Concatenate(Neg(x[h:]), x[:h]), read by `reader` alone.
std::optional<RotaryMatch> MatchRotateHalf(const Matcher& match, std::optional<Tid> rotated, size_t reader) {
  const std::optional<size_t> concat = match.Sole(rotated, reader, "ConcatenateNode");
  if (!concat || !IsLastAxis(match.at(*concat), 4)) return std::nullopt;
  const std::vector<Tid> halves = TidsOf(match.at(*concat), "tensors");
  if (halves.size() != 2) return std::nullopt;
  const std::optional<size_t> negated = match.Sole(halves[0], *concat, "NegNode");
  const std::optional<size_t> low = match.Sole(halves[1], *concat, "SliceNode");
  if (!negated || !low) return std::nullopt;
  const std::optional<size_t> high = match.Sole(TidOf(match.at(*negated), "x"), *negated, "SliceNode");
  if (!high) return std::nullopt;
  const std::optional<LastAxisSlice> first = AsLastAxisSlice(match.at(*low));
  const std::optional<LastAxisSlice> second = AsLastAxisSlice(match.at(*high));
  if (!first || !second || !(first->x == second->x) || first->start != 0 || second->start != first->stop) {
    return std::nullopt;
  }
  // The upper half must reach the end: as the exporter writes it, or twice the lower one, which the op checks.
  if (second->stop != std::numeric_limits<int64_t>::max() && second->stop != 2 * first->stop) return std::nullopt;
  return RotaryMatch{first->x, {}, {}, {*concat, *negated, *low, *high}};
}

std::optional<RotaryMatch> MatchRotary(const Matcher& match, size_t add) {
  const std::optional<Tid> terms[2] = {TidOf(match.at(add), "a"), TidOf(match.at(add), "b")};
  for (int order = 0; order < 2; ++order) {
    const std::optional<size_t> straight = match.Sole(terms[order], add, "MultiplyNode");
    const std::optional<size_t> turned = match.Sole(terms[1 - order], add, "MultiplyNode");
    if (!straight || !turned) continue;
    for (const auto& [rotated, sin] : {std::pair("a", "b"), std::pair("b", "a")}) {
      std::optional<RotaryMatch> found = MatchRotateHalf(match, TidOf(match.at(*turned), rotated), *turned);
      if (!found) continue;
      const std::optional<Tid> a = TidOf(match.at(*straight), "a");
      const std::optional<Tid> b = TidOf(match.at(*straight), "b");
      if (!a || !b || (*a == found->x) == (*b == found->x)) continue;
      found->cos = *a == found->x ? *b : *a;
      found->sin = *TidOf(match.at(*turned), sin);
      found->inner.insert(found->inner.end(), {*straight, *turned});
      return found;
    }
  }
  return std::nullopt;
}

// "silu", "gelu" or "gelu_tanh"; empty for another op.
std::string ActivationOf(const Instruction& instruction) {
  if (instruction.op == "SiluNode") return "silu";
  if (instruction.op != "GeluNode") return "";
  const std::string_view approximate = TextOf(instruction, "approximate");
  if (approximate == "tanh") return "gelu_tanh";
  return approximate == "none" ? "gelu" : "";
}

// A look-up of rows in a constant table: Take(table, tensor of indices, axis 0).
bool IsRowLookup(const Graph& graph, const Instruction& instruction, Tid index) {
  const std::optional<Tid> table = TidOf(instruction, "x");
  const std::optional<Tid> found = TidOf(instruction, "index");
  return table && graph.IsConstant(*table) && found && *found == index && IntOf(instruction, "axis") == 0;
}

}  // namespace

Graph FuseRotary(Graph graph) {
  Chain& chain = graph.chains[graph.main_chain];
  Matcher match(graph, chain);
  for (size_t i = 0; i < chain.size(); ++i) {
    if (chain[i].op != "AddNode") continue;
    const std::optional<RotaryMatch> found = MatchRotary(match, i);
    if (!found) continue;
    for (size_t inner : found->inner) match.Consume(inner);
    chain[i] = MakeInstruction(
        "Rotary", {{"x", found->x}, {"cos", found->cos}, {"sin", found->sin}, {"out", *TidOf(chain[i], "out")}});
  }
  Erase(chain, match.dead());
  return graph;
}

Graph FuseGates(Graph graph) {
  Chain& chain = graph.chains[graph.main_chain];
  Matcher match(graph, chain);
  for (size_t i = 0; i < chain.size(); ++i) {
    if (chain[i].op != "MultiplyNode") continue;
    const std::optional<Tid> factors[2] = {TidOf(chain[i], "a"), TidOf(chain[i], "b")};
    for (int order = 0; order < 2; ++order) {
      if (!factors[0] || !factors[1]) break;
      const std::optional<size_t> producer = match.uses().SoleProducer(*factors[order], i);
      if (!producer || match.dead()[*producer]) continue;
      std::string activation = ActivationOf(chain[*producer]);
      if (activation.empty()) continue;
      match.Consume(*producer);
      chain[i] = MakeInstruction("GatedActivation", {{"gate", *TidOf(chain[*producer], "x")},
                                                     {"up", *factors[1 - order]},
                                                     {"activation", std::move(activation)},
                                                     {"out", *TidOf(chain[i], "out")}});
      break;
    }
  }
  Erase(chain, match.dead());
  return graph;
}

Graph FindEmbeddings(Graph graph) {
  Chain& chain = graph.chains[graph.main_chain];
  Matcher match(graph, chain);
  for (size_t i = 0; i < chain.size(); ++i) {
    if (chain[i].op != "DequantizeNode" || TextOf(chain[i], "mode") != "affine" || TidOf(chain[i], "global_scale")) {
      continue;
    }
    const std::optional<size_t> w = match.Sole(TidOf(chain[i], "w"), i, "TakeNode");
    const std::optional<size_t> scales = match.Sole(TidOf(chain[i], "scales"), i, "TakeNode");
    const std::optional<size_t> biases = match.Sole(TidOf(chain[i], "biases"), i, "TakeNode");
    if (!w || !scales || !biases) continue;
    const std::optional<Tid> index = TidOf(chain[*w], "index");
    if (!index || !IsRowLookup(graph, chain[*w], *index) || !IsRowLookup(graph, chain[*scales], *index) ||
        !IsRowLookup(graph, chain[*biases], *index)) {
      continue;
    }
    for (size_t lookup : {*w, *scales, *biases}) match.Consume(lookup);
    Instruction fused = MakeInstruction("QuantizedEmbedding", {{"index", *index},
                                                               {"w", *TidOf(chain[*w], "x")},
                                                               {"scales", *TidOf(chain[*scales], "x")},
                                                               {"biases", *TidOf(chain[*biases], "x")},
                                                               {"group_size", *IntOf(chain[i], "group_size")},
                                                               {"bits", *IntOf(chain[i], "bits")}});
    // The type may be absent: then the dequantized rows have the scales' type.
    if (const std::optional<int64_t> type = IntOf(chain[i], "dtype")) fused.fields.push_back({"dtype", *type});
    fused.fields.push_back({"out", *TidOf(chain[i], "out")});
    chain[i] = std::move(fused);
  }
  Erase(chain, match.dead());
  return graph;
}

}  // namespace offgraph::program
