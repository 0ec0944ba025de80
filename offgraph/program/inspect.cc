#include "offgraph/program/inspect.h"

#include <algorithm>
#include <map>

#include "offgraph/program/handler.h"
#include "offgraph/program/payload.h"
#include "offgraph/program/program_impl.h"

namespace offgraph::program {
namespace {

WeightInfo Describe(const Graph& graph, uint32_t slot) {
  WeightInfo info;
  // What the optimizer has the init chain compute is not in the file, and has no declaration.
  const TensorMeta* meta = graph.Meta({slot});
  if (meta == nullptr) return info;
  info.type = meta->type;
  info.bytes = SizeOf(meta->type);
  for (const TensorMeta::Dim& dim : meta->shape) {
    info.shape.push_back(dim.min);
    info.bytes *= dim.min;
  }
  return info;
}

std::vector<WeightInfo> DescribeRange(const Graph& graph, uint32_t begin, uint32_t end) {
  std::vector<WeightInfo> infos;
  for (uint32_t slot = begin; slot < end; ++slot) infos.push_back(Describe(graph, slot));
  for (const NamedSlot& named : graph.names) {
    if (named.slot.kind == SlotKind::kTensor && named.slot.index >= begin && named.slot.index < end) {
      infos[named.slot.index - begin].name = named.name;
    }
  }
  return infos;
}

}  // namespace

std::vector<OpCount> CountOps(const Program& program) {
  std::map<std::string, int64_t> counts;
  for (const Chain& chain : program.impl().graph.chains) {
    for (const Instruction& instruction : chain) ++counts[instruction.op];
  }
  std::vector<OpCount> result;
  result.reserve(counts.size());
  for (const auto& [op, count] : counts) result.push_back({op, count});
  std::stable_sort(result.begin(), result.end(), [](const OpCount& a, const OpCount& b) { return a.count > b.count; });
  return result;
}

std::vector<WeightInfo> ListWeights(const Program& program) {
  const Graph& graph = program.impl().graph;
  return DescribeRange(graph, 0, graph.n_constants);
}

std::vector<WeightInfo> ListBuffers(const Program& program) {
  const Graph& graph = program.impl().graph;
  return DescribeRange(graph, graph.first_buffer(), graph.first_temp());
}

std::string DumpInstructions(const Program& program) {
  const Graph& graph = program.impl().graph;
  std::string text;
  for (size_t c = 0; c < graph.chains.size(); ++c) {
    text += "chain " + std::to_string(c);
    if (c == graph.main_chain) text += " (main)";
    if (graph.init_chain && c == *graph.init_chain) text += " (init)";
    if (graph.fold_chain && c == *graph.fold_chain) text += " (constants)";
    text += "\n";
    for (size_t i = 0; i < graph.chains[c].size(); ++i) {
      text += "  " + std::to_string(i) + ": " + ToString(graph.chains[c][i]) + "\n";
    }
  }
  return text;
}

std::vector<std::string> UnhandledOps() {
  std::vector<std::string> unhandled;
  for (const std::string& op : SchemaOps()) {
    if (FindHandler(op) == nullptr) unhandled.push_back(op);
  }
  return unhandled;
}

}  // namespace offgraph::program
