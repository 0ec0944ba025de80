// Tools of the optimizer's passes: who writes and who reads a slot, and making and changing instructions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "offgraph/program/graph.h"

namespace offgraph::program {

// Who writes and reads each tensor slot in one chain, by index of the instruction. Indices stay valid until the chain
// changes.
class DefUse {
 public:
  // The reader or writer of a slot that another chain, or the caller, uses.
  static constexpr size_t kElsewhere = SIZE_MAX;

  // `chain` is one of the graph's.
  DefUse(const Graph& graph, const Chain& chain);

  // The one instruction of the chain that writes the slot; absent where there is none, or more than one.
  std::optional<size_t> Producer(Tid tid) const;
  const std::vector<size_t>& Readers(Tid tid) const { return readers_[tid.index]; }
  // The producer, where its result is a temporary that nobody but `reader` reads: it may vanish into the reader.
  std::optional<size_t> SoleProducer(Tid tid, size_t reader) const;

 private:
  const Graph& graph_;
  std::vector<std::vector<size_t>> writers_;
  std::vector<std::vector<size_t>> readers_;
};

// Calls `edit` for every tensor slot that an instruction names; `write` says whether the instruction writes it.
void ForEachTid(Instruction& instruction, const std::function<void(Tid& tid, bool write)>& edit);

// An instruction of the optimizer's own.
Instruction MakeInstruction(std::string op, std::initializer_list<Field> fields);

// Typed reads of a field; absent where the field is, or is of another kind. A literal IntOperand counts as an integer.
std::optional<Tid> TidOf(const Instruction& instruction, std::string_view name);
std::optional<int64_t> IntOf(const Instruction& instruction, std::string_view name);
std::optional<double> FloatOf(const Instruction& instruction, std::string_view name);
std::string_view TextOf(const Instruction& instruction, std::string_view name);
bool FlagOf(const Instruction& instruction, std::string_view name);
std::vector<Tid> TidsOf(const Instruction& instruction, std::string_view name);
std::vector<int64_t> IntsOf(const Instruction& instruction, std::string_view name);

// Removes the instructions whose place in `dead` is true.
void Erase(Chain& chain, const std::vector<bool>& dead);

// A fresh temporary slot.
Tid NewTemp(Graph& graph);

// True where an instruction of the graph calls another chain, or the graph keeps state of its own (mutable buffers):
// then the order of instructions carries more than the data that flows between them.
bool HasControlFlowOrState(const Graph& graph);

}  // namespace offgraph::program
