// Passes about linear layers: products with a constant weight are found, whatever op the exporter wrote them as, and
// layers of the same input are put together.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "offgraph/program/passes.h"
#include "offgraph/program/rewrite.h"

namespace offgraph::program {
namespace {

// The constant that `tid` is the transpose of, where `tid` is written once, by Transpose(constant, [1, 0]).
std::optional<Tid> TransposedConstant(const Graph& graph, const Chain& chain, const DefUse& uses, Tid tid) {
  const std::optional<size_t> producer = uses.Producer(tid);
  if (!producer || chain[*producer].op != "TransposeNode") return std::nullopt;
  const std::optional<Tid> x = TidOf(chain[*producer], "x");
  const bool swaps = IntsOf(chain[*producer], "perm") == std::vector<int64_t>{1, 0};
  return x && graph.IsConstant(*x) && swaps ? x : std::nullopt;
}

std::optional<Instruction> AsLinear(const Graph& graph, const Chain& chain, const DefUse& uses,
                                    const Instruction& addmm) {
  const std::optional<Tid> x = TidOf(addmm, "mat1");
  const std::optional<Tid> w = TransposedConstant(graph, chain, uses, *TidOf(addmm, "mat2"));
  if (!x || graph.IsConstant(*x) || !w || FloatOf(addmm, "alpha") != 1.0 || FloatOf(addmm, "beta") != 1.0) {
    return std::nullopt;
  }
  std::vector<Tid> biases;
  if (const std::optional<Tid> bias = TidOf(addmm, "bias")) {
    if (!graph.IsConstant(*bias)) return std::nullopt;
    biases.push_back(*bias);
  }
  return MakeInstruction("Linears", {{"x", *x},
                                     {"weights", std::vector<Tid>{*w}},
                                     {"biases", std::move(biases)},
                                     {"outs", std::vector<Tid>{*TidOf(addmm, "out")}}});
}

std::optional<Instruction> AsQuantizedLinear(const Graph& graph, const Instruction& matmul) {
  const std::optional<Tid> x = TidOf(matmul, "x");
  const std::optional<Tid> operands[3] = {TidOf(matmul, "w"), TidOf(matmul, "scales"), TidOf(matmul, "biases")};
  const bool constant = std::all_of(std::begin(operands), std::end(operands),
                                    [&](const std::optional<Tid>& tid) { return tid && graph.IsConstant(*tid); });
  if (!x || !constant || !FlagOf(matmul, "transpose") || TextOf(matmul, "mode") != "affine") return std::nullopt;
  return MakeInstruction("QuantizedLinears", {{"x", *x},
                                              {"weights", std::vector<Tid>{*operands[0]}},
                                              {"scales", std::vector<Tid>{*operands[1]}},
                                              {"biases", std::vector<Tid>{*operands[2]}},
                                              {"group_size", *IntOf(matmul, "group_size")},
                                              {"bits", *IntOf(matmul, "bits")},
                                              {"outs", std::vector<Tid>{*TidOf(matmul, "out")}}});
}

// Layers of one input that are compared with each other; a payload may have any number.
constexpr ptrdiff_t kMostNeighbours = 256;

// Whether two linear instructions can be one: the same input and the same kind of weights.
bool CanMerge(const Instruction& a, const Instruction& b) {
  return a.op == b.op && TidOf(a, "x") == TidOf(b, "x") && IntOf(a, "bits") == IntOf(b, "bits") &&
         IntOf(a, "group_size") == IntOf(b, "group_size") && TidsOf(a, "biases").empty() == TidsOf(b, "biases").empty();
}

void Append(Instruction& to, const Instruction& from) {
  for (Field& field : to.fields) {
    auto* tids = std::get_if<std::vector<Tid>>(&field.value);
    if (tids == nullptr) continue;
    const std::vector<Tid> more = TidsOf(from, field.name);
    tids->insert(tids->end(), more.begin(), more.end());
  }
}

}  // namespace

Graph FindLinears(Graph graph) {
  Chain& chain = graph.chains[graph.main_chain];
  const DefUse uses(graph, chain);
  for (Instruction& instruction : chain) {
    std::optional<Instruction> found;
    if (instruction.op == "AddmmNode") found = AsLinear(graph, chain, uses, instruction);
    if (instruction.op == "QuantizedMatmulNode") found = AsQuantizedLinear(graph, instruction);
    if (found) instruction = std::move(*found);
  }
  return graph;
}

Graph RoundActivations(Graph graph) {
  for (Instruction& instruction : graph.chains[graph.main_chain]) {
    if (instruction.op == "QuantizedLinears") instruction.fields.push_back({"fast", true});
  }
  return graph;
}

Graph MergeProjections(Graph graph) {
  if (HasControlFlowOrState(graph)) return graph;
  Chain& chain = graph.chains[graph.main_chain];
  const DefUse uses(graph, chain);
  std::vector<bool> dead(chain.size(), false);
  for (size_t i = 0; i < chain.size(); ++i) {
    if (dead[i] || (chain[i].op != "Linears" && chain[i].op != "QuantizedLinears")) continue;
    const Tid x = *TidOf(chain[i], "x");
    if (!uses.Producer(x) && !(x.index >= graph.first_input() && x.index < graph.first_output())) continue;
    const std::vector<size_t>& readers = uses.Readers(x);
    const auto first = std::upper_bound(readers.begin(), readers.end(), i);
    for (auto reader = first; reader != readers.end() && reader - first < kMostNeighbours; ++reader) {
      const size_t j = *reader;
      // Everything that the later layer reads is there already; its result has one writer, so it may come earlier.
      if (j == DefUse::kElsewhere || dead[j] || !CanMerge(chain[i], chain[j])) continue;
      const std::vector<Tid> outs = TidsOf(chain[j], "outs");
      if (!std::all_of(outs.begin(), outs.end(), [&](Tid out) { return uses.Producer(out) == j; })) continue;
      Append(chain[i], chain[j]);
      dead[j] = true;
    }
  }
  Erase(chain, dead);
  return graph;
}

}  // namespace offgraph::program
