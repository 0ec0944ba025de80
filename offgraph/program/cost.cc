#include "offgraph/program/cost.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include "offgraph/program/graph.h"
#include "offgraph/program/program_impl.h"

namespace offgraph::program {
namespace {

constexpr std::array<std::string_view, 3> kLookups = {"TakeNode", "GatherNode", "QuantizedEmbedding"};

// How a constant takes part in a step.
struct Use {
  int64_t bits = 0;    // of an element, where it is a quantized matrix
  bool matrix = true;  // false: scales and offsets of one
};

std::vector<Tid> Tids(const Instruction& instruction, std::string_view name) {
  const Field* field = FindField(instruction, name);
  if (field == nullptr) return {};
  if (const auto* one = std::get_if<Tid>(&field->value)) return {*one};
  if (const auto* many = std::get_if<std::vector<Tid>>(&field->value)) return *many;
  return {};
}

// Constants that the instruction reads in full.
void AddUses(const Graph& graph, const Instruction& instruction, std::map<uint32_t, Use>& uses) {
  if (std::ranges::find(kLookups, instruction.op) != kLookups.end()) return;
  for (const Tid tid : UseOf(instruction).reads) {
    if (graph.IsConstant(tid)) uses.try_emplace(tid.index);
  }
  const Field* bits = FindField(instruction, "bits");
  if (bits == nullptr || !std::holds_alternative<int64_t>(bits->value)) return;
  for (const std::string_view name : {"scales", "biases"}) {
    for (const Tid tid : Tids(instruction, name)) uses[tid.index].matrix = false;
  }
  for (const std::string_view name : {"w", "weights"}) {
    for (const Tid tid : Tids(instruction, name)) uses[tid.index].bits = std::get<int64_t>(bits->value);
  }
}

}  // namespace

StepCost CostOfStep(const Program& program) {
  const Graph& graph = program.impl().graph;
  std::map<uint32_t, Use> uses;
  for (size_t c = 0; c < graph.chains.size(); ++c) {
    if ((graph.init_chain && c == *graph.init_chain) || (graph.fold_chain && c == *graph.fold_chain)) continue;
    for (const Instruction& instruction : graph.chains[c]) AddUses(graph, instruction, uses);
  }
  StepCost cost;
  int64_t quantized_ops = 0;
  for (const auto& [slot, use] : uses) {
    const TensorMeta* meta = graph.IsConstant({slot}) ? graph.Meta({slot}) : nullptr;
    if (meta == nullptr) continue;
    int64_t bytes = SizeOf(meta->type);
    int64_t axes = 0;  // longer than 1
    for (const TensorMeta::Dim& dim : meta->shape) {
      bytes *= dim.min;
      axes += dim.min > 1 ? 1 : 0;
    }
    cost.weight_bytes += bytes;
    if (!use.matrix || axes < 2) continue;
    const int64_t elements = use.bits > 0 ? bytes * 8 / use.bits : bytes / SizeOf(meta->type);
    cost.matrix_ops += 2 * elements;
    if (use.bits > 0) quantized_ops += 2 * elements;
  }
  cost.quantized = 2 * quantized_ops > cost.matrix_ops;
  return cost;
}

}  // namespace offgraph::program
