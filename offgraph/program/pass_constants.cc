// Constant folding: instructions that read constants alone move from the main chain to a chain that runs once, at load,
// or else to the init chain.
#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "offgraph/program/passes.h"
#include "offgraph/program/rewrite.h"

namespace offgraph::program {
namespace {

// Ops that are pure and whose result is about as large as their operands: folding them cannot blow up memory.
constexpr std::array<std::string_view, 14> kFoldable = {
    "AddNode",     "SubtractNode",   "MultiplyNode", "DivideNode", "NegNode",        "AsTypeNode", "TransposeNode",
    "ReshapeNode", "ExpandDimsNode", "SqueezeNode",  "SliceNode",  "ContiguousNode", "IdCopyNode", "SqrtNode"};

bool IsFoldableOp(std::string_view op) { return std::find(kFoldable.begin(), kFoldable.end(), op) != kFoldable.end(); }

bool IsFoldable(const Graph& graph, const Instruction& instruction, const std::vector<bool>& constant) {
  if (!IsFoldableOp(instruction.op)) return false;
  const SlotUse use = UseOf(instruction);
  if (use.reads.empty() || !use.value_reads.empty() || !use.value_writes.empty()) return false;
  return std::all_of(use.reads.begin(), use.reads.end(), [&](Tid tid) { return constant[tid.index]; }) &&
         std::all_of(use.writes.begin(), use.writes.end(), [&](Tid tid) { return graph.IsTemp(tid); });
}

// Makes the slots in `promoted` constants: they take the numbers behind the last constant, and all others move up.
void PromoteToConstants(Graph& graph, const std::vector<uint32_t>& promoted) {
  const uint32_t first = graph.n_constants;
  const auto count = static_cast<uint32_t>(promoted.size());
  std::vector<uint32_t> renumbered(graph.n_tensors());
  for (uint32_t i = 0; i < renumbered.size(); ++i) renumbered[i] = i < first ? i : i + count;
  for (uint32_t i = 0; i < count; ++i) renumbered[promoted[i]] = first + i;

  const auto renumber = [&](std::vector<Slot>& slots) {
    for (Slot& slot : slots) {
      if (slot.kind == SlotKind::kTensor) slot.index = renumbered[slot.index];
    }
  };
  for (Chain& chain : graph.chains) {
    for (Instruction& instruction : chain) {
      ForEachTid(instruction, [&](Tid& tid, bool /*write*/) { tid.index = renumbered[tid.index]; });
    }
  }
  renumber(graph.inputs);
  renumber(graph.outputs);
  renumber(graph.buffers);
  for (NamedSlot& named : graph.names) {
    if (named.slot.kind == SlotKind::kTensor) named.slot.index = renumbered[named.slot.index];
  }
  const auto behind = static_cast<std::ptrdiff_t>(std::min<size_t>(first, graph.metas.size()));
  graph.metas.insert(graph.metas.begin() + behind, count, std::nullopt);
  // The numbers that the promoted slots had stay behind as temporaries that nobody uses.
  graph.n_constants += count;
}

// Whether the init chain does no more than giving constants their values.
bool InitializesConstantsAlone(const Graph& graph) {
  if (!graph.init_chain) return false;
  const Chain& chain = graph.chains[*graph.init_chain];
  const auto is_constant = [&](Tid tid) { return graph.IsConstant(tid); };
  return std::all_of(chain.begin(), chain.end(), [&](const Instruction& instruction) {
    const SlotUse use = UseOf(instruction);
    return IsFoldableOp(instruction.op) && use.value_reads.empty() && use.value_writes.empty() &&
           std::all_of(use.reads.begin(), use.reads.end(), is_constant) &&
           std::all_of(use.writes.begin(), use.writes.end(), is_constant);
  });
}

}  // namespace

Graph FoldConstants(Graph graph) {
  if (graph.n_buffers != 0) return graph;
  // Executors need not repeat it.
  if (InitializesConstantsAlone(graph)) graph.fold_chain = std::exchange(graph.init_chain, std::nullopt);
  Chain& main = graph.chains[graph.main_chain];
  const DefUse uses(graph, main);
  std::vector<bool> constant(graph.n_tensors(), false);
  std::fill_n(constant.begin(), graph.n_constants, true);

  Chain folded;
  std::vector<uint32_t> promoted;
  std::vector<bool> moved(main.size(), false);
  for (size_t i = 0; i < main.size(); ++i) {
    if (!IsFoldable(graph, main[i], constant)) continue;
    const std::vector<Tid> writes = UseOf(main[i]).writes;
    if (!std::all_of(writes.begin(), writes.end(), [&](Tid tid) { return uses.Producer(tid) == i; })) continue;
    for (Tid tid : writes) {
      constant[tid.index] = true;
      promoted.push_back(tid.index);
    }
    folded.push_back(std::move(main[i]));
    moved[i] = true;
  }
  if (folded.empty()) return graph;
  Erase(main, moved);
  // Behind what else gives constants their values.
  std::optional<uint32_t>& target = graph.init_chain ? graph.init_chain : graph.fold_chain;
  if (!target) {
    target = static_cast<uint32_t>(graph.chains.size());
    graph.chains.emplace_back();
  }
  Chain& fold = graph.chains[*target];
  fold.insert(fold.end(), std::make_move_iterator(folded.begin()), std::make_move_iterator(folded.end()));
  PromoteToConstants(graph, promoted);
  return graph;
}

}  // namespace offgraph::program
