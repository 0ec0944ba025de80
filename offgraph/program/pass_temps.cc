// Passes about slots: one value per temporary, and no instruction without a reader.
#include <optional>
#include <utility>
#include <vector>

#include "offgraph/program/passes.h"
#include "offgraph/program/rewrite.h"

namespace offgraph::program {
namespace {

// By tensor slot: whether a chain other than the main one names it, or the caller reads it.
std::vector<bool> SharedSlots(const Graph& graph) {
  std::vector<bool> shared(graph.n_tensors(), false);
  for (size_t c = 0; c < graph.chains.size(); ++c) {
    if (c == graph.main_chain) continue;
    for (const Instruction& instruction : graph.chains[c]) {
      const SlotUse use = UseOf(instruction);
      for (Tid tid : use.reads) shared[tid.index] = true;
      for (Tid tid : use.writes) shared[tid.index] = true;
    }
  }
  for (const Slot& slot : graph.outputs) {
    if (slot.kind == SlotKind::kTensor) shared[slot.index] = true;
  }
  return shared;
}

// By value slot: whether `chain` reads it, or another chain could.
std::vector<bool> LiveValues(const Graph& graph) {
  std::vector<bool> live(graph.n_values, false);
  for (const Chain& chain : graph.chains) {
    for (const Instruction& instruction : chain) {
      for (Vid vid : UseOf(instruction).value_reads) live[vid.index] = true;
    }
  }
  for (const Slot& slot : graph.outputs) {
    if (slot.kind != SlotKind::kTensor) live[slot.index] = true;
  }
  return live;
}

}  // namespace

Graph UniqueTemps(Graph graph) {
  const std::vector<bool> shared = SharedSlots(graph);
  std::vector<Tid> current(graph.n_tensors());
  std::vector<bool> written(graph.n_tensors(), false);
  for (uint32_t i = 0; i < current.size(); ++i) current[i] = Tid{i};

  const uint32_t first_new = graph.n_tensors();
  for (Instruction& instruction : graph.chains[graph.main_chain]) {
    // Reads come before writes: an instruction may read the slot that it writes.
    ForEachTid(instruction, [&](Tid& tid, bool write) {
      if (!write) tid = current[tid.index];
    });
    ForEachTid(instruction, [&](Tid& tid, bool write) {
      if (!write || tid.index >= first_new || !graph.IsTemp(tid) || shared[tid.index]) return;
      const uint32_t old = tid.index;
      if (written[old]) current[old] = NewTemp(graph);
      written[old] = true;
      tid = current[old];
    });
  }
  return graph;
}

Graph RemoveDead(Graph graph) {
  const std::vector<bool> shared = SharedSlots(graph);
  const std::vector<bool> live_values = LiveValues(graph);
  Chain& chain = graph.chains[graph.main_chain];
  std::vector<bool> live(graph.n_tensors(), false);
  const auto keeps = [&](Tid tid) { return live[tid.index] || shared[tid.index] || !graph.IsTemp(tid); };

  std::vector<bool> dead(chain.size(), false);
  for (size_t i = chain.size(); i-- > 0;) {
    const SlotUse use = UseOf(chain[i]);
    // An update of the cache is wanted for itself; so is what calls another chain.
    bool wanted = chain[i].op == "UpdateAndAttendNode" || !ChainsOf(chain[i]).empty();
    for (Tid tid : use.writes) wanted = wanted || keeps(tid);
    for (Vid vid : use.value_writes) wanted = wanted || live_values[vid.index];
    dead[i] = !wanted;
    if (dead[i]) continue;
    for (Tid tid : use.reads) live[tid.index] = true;
  }
  Erase(chain, dead);
  return graph;
}

}  // namespace offgraph::program
