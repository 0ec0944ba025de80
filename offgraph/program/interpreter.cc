#include "offgraph/program/interpreter.h"

#include <new>
#include <set>

#include "offgraph/cache/error.h"
#include "offgraph/program/flow.h"
#include "offgraph/program/mlx_types.h"

namespace offgraph::program {
namespace {

namespace mx = mlx::core;

void CheckHandlers(const Graph& graph, const std::string& name) {
  std::set<std::string> missing;
  for (const Chain& chain : graph.chains) {
    for (const Instruction& instruction : chain) {
      if (FindHandler(instruction.op) == nullptr) missing.insert(instruction.op);
    }
  }
  if (missing.empty()) return;
  std::string list;
  for (const std::string& op : missing) {
    const std::string_view why = WhyUnsupported(op);
    list += (list.empty() ? "" : ", ") + op + (why.empty() ? "" : " (" + std::string(why) + ")");
  }
  throw Error(ErrorCode::kUnsupported, name + ": ops that this build cannot run: " + list);
}

}  // namespace

Interpreter::Interpreter(const Graph& graph, const std::string& name) : graph_(graph) {
  CheckHandlers(graph, name);
  chains_.resize(graph.chains.size());
  for (size_t c = 0; c < graph.chains.size(); ++c) {
    for (size_t i = 0; i < graph.chains[c].size(); ++i) {
      const Instruction& instruction = graph.chains[c][i];
      const std::string where = name + ": " + Place(graph, c, i);
      const Operands operands(graph, instruction, where);
      Action action = FindHandler(instruction.op)->bind(operands);
      operands.RequireAllRead();
      chains_[c].push_back({std::move(action), UseOf(instruction).writes, {}});
    }
  }
  std::vector<std::vector<Tid>> last_uses = LastUses(graph, graph.main_chain);
  for (size_t i = 0; i < last_uses.size(); ++i) chains_[graph.main_chain][i].last_uses = std::move(last_uses[i]);
  row_cut_ = FindRowCut(graph);
}

void Interpreter::Run(size_t chain, Frame& frame) const {
  for (size_t i = 0; i < chains_[chain].size(); ++i) {
    try {
      RunOne(chain, i, frame);
    } catch (const Error& error) {
      throw Error(error.code(), Place(graph_, chain, i) + ": " + error.what());
    } catch (const std::bad_alloc&) {
      throw Error(ErrorCode::kOutOfMemory, Place(graph_, chain, i) + ": out of memory");
    } catch (const std::exception& error) {
      throw Error(ErrorCode::kInvalidArgument, Place(graph_, chain, i) + ": " + error.what());
    }
  }
}

void Interpreter::RunOne(size_t chain, size_t index, Frame& frame) const {
  if (frame.cancelled && frame.cancelled()) throw Error(ErrorCode::kCancelled, "the step was cancelled");
  if (frame.probe) frame.probe();
  const Bound& bound = chains_[chain][index];
  bound.action(frame);
  for (Tid tid : bound.writes) {
    if (frame.Has(tid)) frame.TakeMemory(frame.Get(tid));
  }
  if (frame.last_row_only && row_cut_ && chain == graph_.main_chain && index == row_cut_->instruction) {
    frame.Set(row_cut_->tensor, LastRow(frame.Get(row_cut_->tensor)));
  }
  for (Tid tid : bound.last_uses) frame.Drop(tid);
}

}  // namespace offgraph::program
