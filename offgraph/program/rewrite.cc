#include "offgraph/program/rewrite.h"

#include <algorithm>
#include <utility>

namespace offgraph::program {
namespace {

// Applies `edit` to the slots inside one field's value.
struct TidEditor {
  const std::function<void(Tid&, bool)>& edit;
  bool write;

  void operator()(Tid& tid) const { edit(tid, write); }
  void operator()(std::vector<Tid>& tids) const {
    for (Tid& tid : tids) edit(tid, write);
  }
  void operator()(SlotOperand& operand) const {
    if (Tid* tid = std::get_if<Tid>(&operand.value)) edit(*tid, write);
  }
  void operator()(IndexOperand& operand) const {
    if (Tid* tid = std::get_if<Tid>(&operand.value)) edit(*tid, write);
  }
  template <typename Other>
  void operator()(Other& /*no slot inside*/) const {}
};

template <typename T>
const T* GetField(const Instruction& instruction, std::string_view name) {
  const Field* field = FindField(instruction, name);
  return field == nullptr ? nullptr : std::get_if<T>(&field->value);
}

}  // namespace

DefUse::DefUse(const Graph& graph, const Chain& chain)
    : graph_(graph), writers_(graph.n_tensors()), readers_(graph.n_tensors()) {
  // What others read or write counts as well: such a slot has more than one reader or writer.
  for (const Chain& other : graph.chains) {
    if (&other == &chain) continue;
    for (const Instruction& instruction : other) {
      const SlotUse use = UseOf(instruction);
      for (Tid tid : use.reads) readers_[tid.index].push_back(kElsewhere);
      for (Tid tid : use.writes) writers_[tid.index].push_back(kElsewhere);
    }
  }
  for (const Slot& slot : graph.outputs) {
    if (slot.kind == SlotKind::kTensor) readers_[slot.index].push_back(kElsewhere);
  }
  for (size_t i = 0; i < chain.size(); ++i) {
    const SlotUse use = UseOf(chain[i]);
    for (Tid tid : use.writes) writers_[tid.index].push_back(i);
    for (Tid tid : use.reads) {
      std::vector<size_t>& readers = readers_[tid.index];
      if (readers.empty() || readers.back() != i) readers.push_back(i);
    }
  }
}

std::optional<size_t> DefUse::Producer(Tid tid) const {
  const std::vector<size_t>& writers = writers_[tid.index];
  return writers.size() == 1 && writers[0] != kElsewhere ? std::optional(writers[0]) : std::nullopt;
}

std::optional<size_t> DefUse::SoleProducer(Tid tid, size_t reader) const {
  const std::vector<size_t>& readers = readers_[tid.index];
  if (!graph_.IsTemp(tid) || readers.size() != 1 || readers[0] != reader) return std::nullopt;
  return Producer(tid);
}

void ForEachTid(Instruction& instruction, const std::function<void(Tid&, bool)>& edit) {
  for (Field& field : instruction.fields) {
    std::visit(TidEditor{edit, WritesSlots(field.name)}, field.value);
  }
}

Instruction MakeInstruction(std::string op, std::initializer_list<Field> fields) {
  // Copied by assignment: where memory runs out, the standard library's copy of a variant destroys what is not there.
  Instruction instruction{std::move(op), std::vector<Field>(fields.size())};
  std::copy(fields.begin(), fields.end(), instruction.fields.begin());
  return instruction;
}

std::optional<Tid> TidOf(const Instruction& instruction, std::string_view name) {
  if (const auto* tid = GetField<Tid>(instruction, name)) return *tid;
  if (const auto* index = GetField<IndexOperand>(instruction, name)) {
    if (const Tid* tid = std::get_if<Tid>(&index->value)) return *tid;
  }
  return std::nullopt;
}

std::optional<int64_t> IntOf(const Instruction& instruction, std::string_view name) {
  if (const auto* value = GetField<int64_t>(instruction, name)) return *value;
  if (const auto* operand = GetField<IntOperand>(instruction, name)) {
    if (const int64_t* value = std::get_if<int64_t>(&operand->value)) return *value;
  }
  return std::nullopt;
}

std::optional<double> FloatOf(const Instruction& instruction, std::string_view name) {
  const auto* value = GetField<double>(instruction, name);
  return value == nullptr ? std::nullopt : std::optional(*value);
}

std::string_view TextOf(const Instruction& instruction, std::string_view name) {
  const auto* text = GetField<std::string>(instruction, name);
  return text == nullptr ? std::string_view() : std::string_view(*text);
}

bool FlagOf(const Instruction& instruction, std::string_view name) {
  const auto* flag = GetField<bool>(instruction, name);
  return flag != nullptr && *flag;
}

std::vector<Tid> TidsOf(const Instruction& instruction, std::string_view name) {
  const auto* tids = GetField<std::vector<Tid>>(instruction, name);
  return tids == nullptr ? std::vector<Tid>() : *tids;
}

std::vector<int64_t> IntsOf(const Instruction& instruction, std::string_view name) {
  const auto* values = GetField<std::vector<int64_t>>(instruction, name);
  return values == nullptr ? std::vector<int64_t>() : *values;
}

void Erase(Chain& chain, const std::vector<bool>& dead) {
  size_t kept = 0;
  for (size_t i = 0; i < chain.size(); ++i) {
    if (dead[i]) continue;
    if (kept != i) chain[kept] = std::move(chain[i]);
    ++kept;
  }
  chain.resize(kept);
}

Tid NewTemp(Graph& graph) { return Tid{graph.first_temp() + graph.n_temps++}; }

bool HasControlFlowOrState(const Graph& graph) {
  if (graph.n_buffers != 0) return true;
  return std::any_of(graph.chains.begin(), graph.chains.end(), [](const Chain& chain) {
    return std::any_of(chain.begin(), chain.end(),
                       [](const Instruction& instruction) { return !ChainsOf(instruction).empty(); });
  });
}

}  // namespace offgraph::program
