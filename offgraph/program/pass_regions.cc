// Regions: the instructions between the embedding and the logits that work on one token at a time, and attention, move
// into a chain of their own, so that they can run as one piece of code (region.h) with nothing of MLX in between.
#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "offgraph/program/passes.h"
#include "offgraph/program/rewrite.h"

namespace offgraph::program {
namespace {

// Ops that may be part of a region where one of their operands is in it.
constexpr std::array<std::string_view, 22> kMembers = {
    "AddNode",     "AsTypeNode",    "ConcatenateNode", "DivideNode",   "GatedActivation", "GeluNode",
    "IdCopyNode",  "LayerNormNode", "Linears",         "MultiplyNode", "NegNode",         "QuantizedLinears",
    "RMSNormNode", "ReshapeNode",   "Rotary",          "SigmoidNode",  "SiluNode",        "SliceNode",
    "SplitNode",   "SubtractNode",  "TanhNode",        "TransposeNode"};

template <size_t N>
bool Contains(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool IsMember(const Instruction& instruction) {
  return Contains(kMembers, instruction.op) || instruction.op == "UpdateAndAttendNode";
}

// What begins a region: rows of [T, width] out of something else.
bool IsSeed(const Graph& graph, const Instruction& instruction) {
  if (instruction.op == "QuantizedEmbedding") return true;
  const std::optional<Tid> table = TidOf(instruction, "x");
  return instruction.op == "TakeNode" && IntOf(instruction, "axis") == 0 && table && graph.IsConstant(*table) &&
         TidOf(instruction, "index").has_value();
}

// Where an instruction goes, relative to the region that is being formed.
enum class Place : uint8_t { kBefore, kInside, kAfter };

// Splits a chain into what a region does not depend on, the region, and what comes after it.
class Splitter {
 public:
  Splitter(const Graph& graph, const Chain& chain)
      : graph_(graph), tensor_(graph.n_tensors(), Place::kBefore), value_(graph.n_values, Place::kBefore) {
    for (const Instruction& instruction : chain) {
      const SlotUse use = UseOf(instruction);
      Place place = PlaceOf(instruction, use);
      places_.push_back(place);
      for (Tid tid : use.writes) tensor_[tid.index] = place;
      for (Vid vid : use.value_writes) value_[vid.index] = place;
    }
  }
  const std::vector<Place>& places() const { return places_; }

 private:
  Place PlaceOf(const Instruction& instruction, const SlotUse& use) {
    bool inside = false;
    for (Tid tid : use.reads) {
      if (tensor_[tid.index] == Place::kAfter) return Place::kAfter;
      inside = inside || tensor_[tid.index] == Place::kInside;
    }
    for (Vid vid : use.value_reads) {
      if (value_[vid.index] != Place::kBefore) return Place::kAfter;
    }
    if (inside) return IsMember(instruction) ? Place::kInside : Place::kAfter;
    return IsSeed(graph_, instruction) ? Place::kInside : Place::kBefore;
  }

  const Graph& graph_;
  std::vector<Place> tensor_;
  std::vector<Place> value_;
  std::vector<Place> places_;
};

// Slots in the order in which they were added, each once.
class SlotList {
 public:
  explicit SlotList(const Graph& graph) : seen_(graph.n_tensors(), false) {}

  void Add(Tid tid) {
    if (!seen_[tid.index]) slots_.push_back(tid);
    seen_[tid.index] = true;
  }
  std::vector<Tid> Take() { return std::move(slots_); }

 private:
  std::vector<Tid> slots_;
  std::vector<bool> seen_;
};

// What a body needs from outside (constants apart) and what others need from it.
Instruction RegionOf(const Graph& graph, const Chain& body, const Chain& rest, int64_t body_chain) {
  std::vector<bool> written(graph.n_tensors(), false);
  SlotList inputs(graph);
  SlotList outs(graph);
  for (const Instruction& instruction : body) {
    const SlotUse use = UseOf(instruction);
    for (Tid tid : use.reads) {
      if (!written[tid.index] && !graph.IsConstant(tid)) inputs.Add(tid);
    }
    for (Tid tid : use.writes) {
      written[tid.index] = true;
      if (!graph.IsTemp(tid)) outs.Add(tid);
    }
  }
  for (const Instruction& instruction : rest) {
    for (Tid tid : UseOf(instruction).reads) {
      if (written[tid.index]) outs.Add(tid);
    }
  }
  return MakeInstruction("Region", {{"body_chain_idx", body_chain}, {"inputs", inputs.Take()}, {"outs", outs.Take()}});
}

// A region that is worth its name does some work: at least one linear layer.
bool IsWorthwhile(const Chain& body) {
  return std::any_of(body.begin(), body.end(), [](const Instruction& instruction) {
    return instruction.op == "Linears" || instruction.op == "QuantizedLinears";
  });
}

}  // namespace

Graph FormRegions(Graph graph) {
  if (HasControlFlowOrState(graph)) return graph;
  Chain rest = std::move(graph.chains[graph.main_chain]);
  Chain before;
  Chain body;
  Chain after;
  const Splitter splitter(graph, rest);
  for (size_t i = 0; i < rest.size(); ++i) {
    Chain* place[] = {&before, &body, &after};
    place[static_cast<size_t>(splitter.places()[i])]->push_back(rest[i]);
  }
  if (!IsWorthwhile(body)) {
    graph.chains[graph.main_chain] = std::move(rest);
    return graph;
  }
  const auto body_chain = static_cast<int64_t>(graph.chains.size());
  before.push_back(RegionOf(graph, body, after, body_chain));
  before.insert(before.end(), std::make_move_iterator(after.begin()), std::make_move_iterator(after.end()));
  graph.chains[graph.main_chain] = std::move(before);
  graph.chains.push_back(std::move(body));
  return graph;
}

}  // namespace offgraph::program
