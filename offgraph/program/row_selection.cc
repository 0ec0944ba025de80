#include "offgraph/program/row_selection.h"

#include <mlx/ops.h>

#include <array>
#include <string_view>
#include <utility>
#include <vector>

namespace offgraph::program {
namespace {

namespace mx = mlx::core;

// Ops whose result row [.., t, :] depends on row t of one operand and on operands without a token axis alone, and has
// the operand's rank. `row` names that operand; empty: any of the op's tensors may be it (the others must then be
// vectors).
struct RowOp {
  std::string_view op;
  std::string_view row;
};
constexpr std::array<RowOp, 20> kRowOps = {{
    {"AddmmNode", "mat1"},   {"QuantizedMatmulNode", "x"},
    {"RMSNormNode", "x"},    {"LayerNormNode", "x"},
    {"AsTypeNode", "x"},     {"IdCopyNode", "x"},
    {"ContiguousNode", "x"}, {"TanhNode", "x"},
    {"SigmoidNode", "x"},    {"SiluNode", "x"},
    {"GeluNode", "x"},       {"NegNode", "x"},
    {"ExpNode", "x"},        {"LogNode", "x"},
    {"AddNode", ""},         {"SubtractNode", ""},
    {"MultiplyNode", ""},    {"DivideNode", ""},
    {"MaximumNode", ""},     {"MinimumNode", ""},
}};

const RowOp* FindRowOp(std::string_view op) {
  for (const RowOp& row : kRowOps) {
    if (row.op == op) return &row;
  }
  return nullptr;
}

// One writing of a slot, and what becomes of it.
struct Definition {
  size_t instruction = 0;
  size_t epoch = 0;             // calls of chains before it: a called chain may read and write any slot
  size_t readers = 0;           // instructions that read it
  bool escapes = false;         // a called chain, or the caller, may read it too
  bool from_constants = false;  // nothing but constants went into it
  bool vector = false;          // a constant whose axes but the last are 1, perhaps in another element type
};

// Who wrote what each instruction of the main chain reads. Made in one pass over the chain, whatever it looks like.
class Links {
 public:
  explicit Links(const Graph& graph)
      : graph_(graph), chain_(graph.chains[graph.main_chain]), current_(graph.n_tensors(), kNone) {
    for (size_t i = 0; i < chain_.size(); ++i) Add(i);
    for (size_t definition : current_) {
      if (definition != kNone) Overwrite(definition);
    }
    for (const Slot& slot : graph.outputs) {
      if (slot.kind == SlotKind::kTensor && current_[slot.index] != kNone)
        definitions_[current_[slot.index]].escapes = true;
    }
  }

  // The definition of a slot at the end of the chain; null where it has none, or a called chain may have written it.
  const Definition* Last(Tid tid) const { return Current(tid); }

  // The operand whose rows the instruction's result follows, if all its others are the same for every row.
  std::optional<Tid> RowOperand(size_t index) const {
    const Instruction& instruction = chain_[index];
    const RowOp* op = FindRowOp(instruction.op);
    if (op == nullptr) return std::nullopt;
    std::optional<Tid> rows;
    for (const Field& field : instruction.fields) {
      const Tid* tid = std::get_if<Tid>(&field.value);
      if (tid == nullptr || field.name == "out") continue;
      const Definition* definition = Read(index, *tid);
      const bool same = field.name != op->row &&
                        (IsWeight(field.name) ? FromConstants(*tid, definition) : IsVector(*tid, definition));
      if (same) continue;
      if (rows) return std::nullopt;
      rows = *tid;
    }
    return rows;
  }

  // The definition that the instruction reads; null as for Last. REQUIRES: the instruction reads the slot.
  const Definition* Read(size_t index, Tid tid) const {
    for (const auto& [slot, definition] : reads_[index]) {
      if (slot == tid) return definition == kNone ? nullptr : &definitions_[definition];
    }
    return nullptr;
  }

 private:
  static constexpr size_t kNone = SIZE_MAX;

  static bool IsWeight(std::string_view field) {
    return field == "mat2" || field == "w" || field == "scales" || field == "biases" || field == "weight";
  }

  void Add(size_t index) {
    const Instruction& instruction = chain_[index];
    const SlotUse use = UseOf(instruction);
    std::vector<std::pair<Tid, size_t>>& reads = reads_.emplace_back();
    bool from_constants = !use.reads.empty() && use.value_reads.empty();
    for (Tid tid : use.reads) {
      const Definition* definition = Current(tid);
      from_constants = from_constants && FromConstants(tid, definition);
      reads.emplace_back(tid, definition != nullptr ? current_[tid.index] : kNone);
      if (definition != nullptr) CountReader(current_[tid.index], index);
    }
    const bool vector =
        instruction.op == "AsTypeNode" && !use.reads.empty() && IsVector(use.reads[0], Current(use.reads[0]));
    const bool calls = !ChainsOf(instruction).empty();
    if (calls) ++epoch_;
    for (Tid tid : use.writes) {
      size_t& current = current_[tid.index];
      if (current != kNone) Overwrite(current);
      current = calls ? kNone : definitions_.size();
      if (!calls) {
        definitions_.push_back(
            {.instruction = index, .epoch = epoch_, .from_constants = from_constants, .vector = vector});
        last_reader_.push_back(kNone);
      }
    }
  }

  void CountReader(size_t definition, size_t index) {
    if (std::exchange(last_reader_[definition], index) != index) ++definitions_[definition].readers;
  }

  // The end of a definition's life.
  void Overwrite(size_t definition) {
    if (definitions_[definition].epoch != epoch_) definitions_[definition].escapes = true;
  }

  // The definition that an instruction at this point would read.
  const Definition* Current(Tid tid) const {
    const size_t definition = current_[tid.index];
    return definition == kNone || definitions_[definition].epoch != epoch_ ? nullptr : &definitions_[definition];
  }

  bool FromConstants(Tid tid, const Definition* definition) const {
    return graph_.IsConstant(tid) || (definition != nullptr && definition->from_constants);
  }

  bool IsVector(Tid tid, const Definition* definition) const {
    if (!graph_.IsConstant(tid)) return definition != nullptr && definition->vector;
    const TensorMeta* meta = graph_.Meta(tid);
    if (meta == nullptr) return false;
    for (size_t d = 0; d + 1 < meta->shape.size(); ++d) {
      if (meta->shape[d].max != 1) return false;
    }
    return true;
  }

  const Graph& graph_;
  const Chain& chain_;
  std::vector<Definition> definitions_;
  std::vector<size_t> last_reader_;                         // by definition
  std::vector<size_t> current_;                             // by slot: its definition
  std::vector<std::vector<std::pair<Tid, size_t>>> reads_;  // by instruction: slots and their definitions
  size_t epoch_ = 0;
};

}  // namespace

std::optional<RowCut> FindRowCut(const Graph& graph) {
  if (graph.outputs.empty() || graph.outputs[0].kind != SlotKind::kTensor) return std::nullopt;
  const Links links(graph);
  const Tid output{graph.outputs[0].index};
  const Definition* definition = links.Last(output);
  if (definition == nullptr) return std::nullopt;
  RowCut cut{definition->instruction, output};
  while (true) {
    const std::optional<Tid> rows = links.RowOperand(cut.instruction);
    if (!rows || !graph.IsTemp(*rows)) return cut;
    definition = links.Read(cut.instruction, *rows);
    if (definition == nullptr || definition->readers != 1 || definition->escapes) return cut;
    cut = {definition->instruction, *rows};
  }
}

mx::array LastRow(const mx::array& x) {
  if (x.ndim() < 2) return x;
  mx::Shape start(x.ndim(), 0);
  const mx::Shape& stop = x.shape();
  const size_t axis = x.ndim() - 2;
  start[axis] = stop[axis] > 0 ? stop[axis] - 1 : 0;
  return mx::slice(x, start, stop);
}

}  // namespace offgraph::program
