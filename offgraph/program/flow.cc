#include "offgraph/program/flow.h"

#include <algorithm>
#include <optional>
#include <set>

#include "offgraph/cache/error.h"

namespace offgraph::program {
namespace {

// Bounds against files made to waste time: calls nest, and multiply.
constexpr int kMaxNesting = 16;
constexpr int64_t kMaxInstructionsPerPass = 50'000'000;
constexpr int64_t kMaxAnalysis = 20'000'000;

// Slots of both kinds in one numbering: tensors first, then values.
using SlotSet = std::set<uint32_t>;

struct Effect {
  SlotSet reads;    // read before surely written
  SlotSet writes;   // surely written
  SlotSet touches;  // read or written on any way
};

class FlowAnalysis {
 public:
  FlowAnalysis(const Graph& graph, std::string name)
      : graph_(graph),
        name_(std::move(name)),
        effects_(graph.chains.size()),
        costs_(graph.chains.size(), 0),
        nesting_(graph.chains.size(), 0),
        active_(graph.chains.size(), false) {}

  const Effect& OfChain(size_t chain, int depth = 0);
  Effect OfInstruction(size_t chain, size_t index, int depth = 0);

  [[noreturn]] void Fail(const std::string& where, const std::string& problem) const {
    throw Error(ErrorCode::kBadFile, name_ + ": " + where + ": " + problem);
  }
  std::string SlotName(uint32_t slot) const {
    return slot < graph_.n_tensors() ? "tensor slot " + std::to_string(slot)
                                     : "value slot " + std::to_string(slot - graph_.n_tensors());
  }

 private:
  void AddCall(const Instruction& instruction, const std::vector<int64_t>& called, const std::string& where,
               Effect* effect, int depth);
  void Spend(size_t work) {
    analysis_ += static_cast<int64_t>(work);
    if (analysis_ > kMaxAnalysis) Fail("graph", "chains call each other too often to be checked");
  }

  const Graph& graph_;
  std::string name_;
  std::vector<std::optional<Effect>> effects_;
  std::vector<int64_t> costs_;  // instructions that one pass may run, scans counted once
  std::vector<int> nesting_;    // chains below this one
  std::vector<bool> active_;
  int64_t analysis_ = 0;
};

const Effect& FlowAnalysis::OfChain(size_t chain, int depth) {
  if (effects_[chain]) return *effects_[chain];
  const std::string where = "chain " + std::to_string(chain);
  if (active_[chain]) Fail(where, "the chain calls itself");
  const auto check_nesting = [&](int chains) {
    if (chains > kMaxNesting) Fail(where, "chains nest more than " + std::to_string(kMaxNesting) + " deep");
  };
  check_nesting(depth);
  active_[chain] = true;
  Effect effect;
  int64_t cost = 0;
  for (size_t i = 0; i < graph_.chains[chain].size(); ++i) {
    const Effect step = OfInstruction(chain, i, depth);
    Spend(step.touches.size());
    for (uint32_t slot : step.reads) {
      if (!effect.writes.contains(slot)) effect.reads.insert(slot);
    }
    effect.writes.insert(step.writes.begin(), step.writes.end());
    effect.touches.insert(step.touches.begin(), step.touches.end());
    ++cost;
    for (int64_t called : ChainsOf(graph_.chains[chain][i])) {
      cost += costs_[static_cast<size_t>(called)];
      nesting_[chain] = std::max(nesting_[chain], nesting_[static_cast<size_t>(called)] + 1);
    }
    check_nesting(nesting_[chain]);
    if (cost > kMaxInstructionsPerPass) Fail(where, "one pass would run more than fifty million instructions");
  }
  active_[chain] = false;
  costs_[chain] = cost;
  effects_[chain] = std::move(effect);
  return *effects_[chain];
}

Effect FlowAnalysis::OfInstruction(size_t chain, size_t index, int depth) {
  const Instruction& instruction = graph_.chains[chain][index];
  const SlotUse use = UseOf(instruction);
  Effect effect;
  for (Tid tid : use.reads) effect.reads.insert(tid.index);
  for (Vid vid : use.value_reads) effect.reads.insert(graph_.n_tensors() + vid.index);
  const std::vector<int64_t> called = ChainsOf(instruction);
  if (!called.empty()) AddCall(instruction, called, Place(graph_, chain, index), &effect, depth);
  for (Tid tid : use.writes) effect.writes.insert(tid.index);
  for (Vid vid : use.value_writes) effect.writes.insert(graph_.n_tensors() + vid.index);
  effect.touches.insert(effect.reads.begin(), effect.reads.end());
  effect.touches.insert(effect.writes.begin(), effect.writes.end());
  return effect;
}

// A branch writes what both its chains write. A scan fills `sliced` and keeps `carry` before its body runs, and takes
// `outputs` from it.
void FlowAnalysis::AddCall(const Instruction& instruction, const std::vector<int64_t>& called, const std::string& where,
                           Effect* effect, int depth) {
  SlotSet given;
  for (const char* name : {"sliced", "carry"}) {
    const Field* field = FindField(instruction, name);
    const auto* tids = field != nullptr ? std::get_if<std::vector<Tid>>(&field->value) : nullptr;
    if (tids == nullptr) continue;
    for (Tid tid : *tids) given.insert(tid.index);
  }
  bool first = true;
  SlotSet writes;
  for (int64_t chain : called) {
    const Effect& body = OfChain(static_cast<size_t>(chain), depth + 1);
    Spend(body.touches.size());
    for (uint32_t slot : body.reads) {
      if (!given.contains(slot)) effect->reads.insert(slot);
    }
    effect->touches.insert(body.touches.begin(), body.touches.end());
    SlotSet both;
    for (uint32_t slot : body.writes) {
      if (first || writes.contains(slot)) both.insert(slot);
    }
    writes = std::move(both);
    first = false;
  }
  const Field* outputs = FindField(instruction, "outputs");
  if (outputs != nullptr && std::holds_alternative<std::vector<Tid>>(outputs->value)) {
    for (Tid tid : std::get<std::vector<Tid>>(outputs->value)) {
      if (!writes.contains(tid.index)) Fail(where, "the body does not write " + SlotName(tid.index) + ", an output");
    }
  }
  effect->writes.insert(writes.begin(), writes.end());
}

// Walks a chain that is entered from outside, with `defined` written.
void CheckEntry(const Graph& graph, FlowAnalysis* analysis, size_t chain, SlotSet* defined) {
  analysis->OfChain(chain);
  for (size_t i = 0; i < graph.chains[chain].size(); ++i) {
    const Effect effect = analysis->OfInstruction(chain, i);
    for (uint32_t slot : effect.reads) {
      if (!defined->contains(slot)) {
        analysis->Fail(Place(graph, chain, i), analysis->SlotName(slot) + " is read before it is written");
      }
    }
    defined->insert(effect.writes.begin(), effect.writes.end());
  }
}

SlotSet InitiallyDefined(const Graph& graph, bool with_inputs) {
  SlotSet defined;
  for (uint32_t i = 0; i < graph.n_constants; ++i) defined.insert(i);
  for (uint32_t i = graph.first_buffer(); i < graph.first_temp(); ++i) defined.insert(i);
  if (!with_inputs) return defined;
  for (const Slot& slot : graph.inputs) {
    defined.insert(slot.kind == SlotKind::kTensor ? slot.index : graph.n_tensors() + slot.index);
  }
  return defined;
}

}  // namespace

std::string Place(const Graph& graph, size_t chain, size_t instruction) {
  return "chain " + std::to_string(chain) + ", instruction " + std::to_string(instruction) + " (" +
         graph.chains[chain][instruction].op + ")";
}

void CheckFlow(const Graph& graph, const std::string& name) {
  FlowAnalysis analysis(graph, name);
  if (graph.init_chain) {
    SlotSet defined = InitiallyDefined(graph, false);
    CheckEntry(graph, &analysis, *graph.init_chain, &defined);
  }
  SlotSet defined = InitiallyDefined(graph, true);
  CheckEntry(graph, &analysis, graph.main_chain, &defined);
  for (size_t chain = 0; chain < graph.chains.size(); ++chain) {
    analysis.OfChain(chain);
    if (graph.init_chain && chain == *graph.init_chain) continue;
    for (size_t i = 0; i < graph.chains[chain].size(); ++i) {
      for (Tid tid : UseOf(graph.chains[chain][i]).writes) {
        if (graph.IsConstant(tid)) analysis.Fail(Place(graph, chain, i), "a constant is written");
      }
    }
  }
  for (const Slot& slot : graph.outputs) {
    const uint32_t index = slot.kind == SlotKind::kTensor ? slot.index : graph.n_tensors() + slot.index;
    if (!defined.contains(index)) analysis.Fail("outputs", analysis.SlotName(index) + " is never written");
  }
}

std::vector<std::vector<Tid>> LastUses(const Graph& graph, size_t chain) {
  FlowAnalysis analysis(graph, "");
  const size_t count = graph.chains[chain].size();
  std::vector<std::vector<Tid>> last(count);
  SlotSet live;
  for (const Slot& slot : graph.outputs) {
    if (slot.kind == SlotKind::kTensor) live.insert(slot.index);
  }
  for (size_t i = count; i-- > 0;) {
    const Effect effect = analysis.OfInstruction(chain, i);
    for (uint32_t slot : effect.touches) {
      if (slot < graph.n_tensors() && graph.IsTemp({slot}) && !live.contains(slot)) last[i].push_back({slot});
    }
    for (uint32_t slot : effect.writes) live.erase(slot);
    live.insert(effect.reads.begin(), effect.reads.end());
  }
  return last;
}

}  // namespace offgraph::program
