#include "offgraph/program/row_selection.h"

#include <mlx/ops.h>

#include <array>
#include <string_view>

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

class Walk {
 public:
  explicit Walk(const Graph& graph) : graph_(graph), chain_(graph.chains[graph.main_chain]) {}

  // The last instruction before `before` that writes `tid` by itself; absent where a called chain may have written it.
  std::optional<size_t> Writer(Tid tid, size_t before) const {
    for (size_t i = before; i-- > 0;) {
      if (!ChainsOf(chain_[i]).empty()) return std::nullopt;
      for (Tid written : UseOf(chain_[i]).writes) {
        if (written == tid) return i;
      }
    }
    return std::nullopt;
  }

  // The operand whose rows the instruction's result follows, if all its others are the same for every row.
  std::optional<Tid> RowOperand(size_t index) const {
    const Instruction& instruction = chain_[index];
    const RowOp* op = FindRowOp(instruction.op);
    if (op == nullptr) return std::nullopt;
    std::optional<Tid> rows;
    for (const Field& field : instruction.fields) {
      const Tid* tid = std::get_if<Tid>(&field.value);
      if (tid == nullptr || field.name == "out") continue;
      const bool same = field.name != op->row &&
                        (IsWeight(field.name) ? FromConstants(*tid, index, kMaxDepth) : IsVector(*tid, index));
      if (same) continue;
      if (rows) return std::nullopt;
      rows = *tid;
    }
    return rows;
  }

  // Whether the value that `writer` gives `tid` is read by `reader` alone.
  bool OnlyReader(Tid tid, size_t writer, size_t reader) const {
    for (size_t i = writer + 1; i < chain_.size(); ++i) {
      if (!ChainsOf(chain_[i]).empty()) return false;  // what a called chain reads is not looked at
      const SlotUse use = UseOf(chain_[i]);
      for (Tid read : use.reads) {
        if (read == tid && i != reader) return false;
      }
      for (Tid written : use.writes) {
        if (written == tid) return true;
      }
    }
    return !IsOutput(tid);
  }

  bool IsOutput(Tid tid) const {
    for (const Slot& slot : graph_.outputs) {
      if (slot.kind == SlotKind::kTensor && slot.index == tid.index) return true;
    }
    return false;
  }

  size_t size() const { return chain_.size(); }

 private:
  static constexpr int kMaxDepth = 8;

  static bool IsWeight(std::string_view field) {
    return field == "mat2" || field == "w" || field == "scales" || field == "biases" || field == "weight";
  }

  // Whether the value of `tid` before instruction `before` follows from constants alone.
  bool FromConstants(Tid tid, size_t before, int depth) const {
    if (graph_.IsConstant(tid)) return true;
    const std::optional<size_t> writer = Writer(tid, before);
    if (!writer || depth == 0) return false;
    const SlotUse use = UseOf(chain_[*writer]);
    if (use.reads.empty() || !use.value_reads.empty()) return false;
    for (Tid read : use.reads) {
      if (!FromConstants(read, *writer, depth - 1)) return false;
    }
    return true;
  }

  // Whether it is a constant whose axes but the last are 1, perhaps in another element type.
  bool IsVector(Tid tid, size_t before) const {
    if (!graph_.IsConstant(tid)) {
      const std::optional<size_t> writer = Writer(tid, before);
      return writer && chain_[*writer].op == "AsTypeNode" && IsVector(UseOf(chain_[*writer]).reads.front(), *writer);
    }
    const TensorMeta* meta = graph_.Meta(tid);
    if (meta == nullptr) return false;
    for (size_t d = 0; d + 1 < meta->shape.size(); ++d) {
      if (meta->shape[d].max != 1) return false;
    }
    return true;
  }

  const Graph& graph_;
  const Chain& chain_;
};

}  // namespace

std::optional<RowCut> FindRowCut(const Graph& graph) {
  if (graph.outputs.empty() || graph.outputs[0].kind != SlotKind::kTensor) return std::nullopt;
  const Walk walk(graph);
  const Tid output{graph.outputs[0].index};
  const std::optional<size_t> last = walk.Writer(output, walk.size());
  if (!last) return std::nullopt;
  RowCut cut{*last, output};
  while (true) {
    const std::optional<Tid> rows = walk.RowOperand(cut.instruction);
    if (!rows || !graph.IsTemp(*rows)) return cut;
    const std::optional<size_t> writer = walk.Writer(*rows, cut.instruction);
    if (!writer || !walk.OnlyReader(*rows, *writer, cut.instruction)) return cut;
    cut = {*writer, *rows};
  }
}

mx::array LastRow(const mx::array& x) {
  if (x.ndim() < 2) return x;
  mx::Shape start(x.ndim(), 0);
  const mx::Shape stop = x.shape();
  const size_t axis = x.ndim() - 2;
  start[axis] = stop[axis] > 0 ? stop[axis] - 1 : 0;
  return mx::slice(x, start, stop);
}

}  // namespace offgraph::program
