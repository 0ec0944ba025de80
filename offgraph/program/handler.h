// Handlers: what an op does. One table, op name -> function that reads the op's fields once, at load, and returns
// the action that every step runs.
//
// To add an op, write its row in the table of its family (ops_*.cc). Nothing else knows the op by name.
//
// An action reads slots and writes slots; it adds to MLX's lazy graph and computes nothing, but where a value is
// needed to go on (ItemIntNode). What it throws is completed with the instruction's place by the interpreter.
#pragma once

#include <mlx/array.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "offgraph/program/frame.h"
#include "offgraph/program/graph.h"

namespace offgraph::program {

using Action = std::function<void(Frame&)>;

// Typed access to an instruction's fields. Everything throws Error(kBadFile), with the instruction's place, where the
// field is absent, of another kind or out of range.
class Operands {
 public:
  // REQUIRES: all three outlive this object (it is used while binding only).
  Operands(const Graph& graph, const Instruction& instruction, const std::string& where)
      : graph_(graph), instruction_(instruction), where_(where) {}

  Tid Tensor(std::string_view name) const;
  std::optional<Tid> OptionalTensor(std::string_view name) const;
  std::vector<Tid> Tensors(std::string_view name) const;
  Vid ValueSlot(std::string_view name) const;
  std::optional<Vid> OptionalValueSlot(std::string_view name) const;

  IntOperand IntOrSlot(std::string_view name) const;
  std::optional<IntOperand> OptionalIntOrSlot(std::string_view name) const;
  std::vector<IntOperand> IntsOrSlots(std::string_view name) const;
  FloatOperand FloatOrSlot(std::string_view name) const;
  SlotOperand AnySlot(std::string_view name) const;
  IndexOperand Index(std::string_view name) const;

  int Int(std::string_view name) const;
  std::optional<int> OptionalInt(std::string_view name) const;
  int64_t Long(std::string_view name) const;
  std::vector<int> Ints(std::string_view name) const;  // empty where absent
  float Float(std::string_view name) const;
  std::optional<float> OptionalFloat(std::string_view name) const;
  bool Flag(std::string_view name) const;
  const std::string& Text(std::string_view name) const;
  mlx::core::Dtype Type(std::string_view name) const;
  std::optional<mlx::core::Dtype> OptionalType(std::string_view name) const;

  const Graph& graph() const { return graph_; }
  // Fails where the instruction has a field that nobody asked for and that is not at its default: a newer exporter's
  // word that changes what the op means.
  void RequireAllRead() const;
  // Throws Error(kBadFile): place, then `problem`.
  [[noreturn]] void Fail(const std::string& problem) const;

 private:
  const FieldValue* Find(std::string_view name) const;
  template <typename T>
  const T& Require(std::string_view name) const;
  template <typename T>
  const T* GetIf(std::string_view name) const;

  const Graph& graph_;
  const Instruction& instruction_;
  const std::string& where_;
  mutable std::set<std::string, std::less<>> read_;  // names of fields
};

struct Handler {
  std::string_view op;
  std::string_view summary;  // what it computes, in a few words: the text of docs/OPS.md
  Action (*bind)(const Operands& operands);
};

// The families, each in ops_<family>.cc.
std::span<const Handler> UnaryOps();
std::span<const Handler> BinaryOps();
std::span<const Handler> ReductionOps();
std::span<const Handler> ShapeOps();
std::span<const Handler> IndexOps();
std::span<const Handler> UpdateOps();
std::span<const Handler> CreationOps();
std::span<const Handler> LinearOps();
std::span<const Handler> NormOps();
std::span<const Handler> AttentionOps();
std::span<const Handler> ConvolutionOps();
std::span<const Handler> SortOps();
std::span<const Handler> ValueOps();
std::span<const Handler> ControlOps();
std::span<const Handler> FusedOps();

struct HandlerFamily {
  std::string_view file;  // "ops_unary.cc"
  std::span<const Handler> handlers;
};
std::vector<HandlerFamily> HandlerFamilies();

// Null where there is none.
const Handler* FindHandler(std::string_view op);
// Why an op of the schema has no handler on purpose, and what to do instead; empty where no such reason is known.
std::string_view WhyUnsupported(std::string_view op);

// `axis` counted from the front. Throws Error(kInvalidArgument) where the tensor has no such axis.
int NormalizeAxis(int axis, const mlx::core::array& x);

// The same for an axis that is to be made: counted in the result, which has one axis more.
int NormalizeNewAxis(int axis, const mlx::core::array& x);

// The same for a list, in which no axis may be twice. Some of MLX's ops check negative axes and then use them as they
// came.
std::vector<int> NormalizeAxes(const std::vector<int>& axes, const mlx::core::array& x);

// A slice's bound on an axis of `size`: negative counts from the end, and what lies beyond the ends means the ends.
int ClampToAxis(int64_t bound, int size);

// A number as an array of no axes. An integer type takes what 64 bits hold, without its fraction; the rest throws
// Error(kInvalidArgument).
mlx::core::array NumberAs(const Value& number, mlx::core::Dtype type);

// Refuses a quantized weight that is no matrix, or whose parts do not fit each other. MLX checks their last axis, and
// trusts the others.
void RequireFit(const mlx::core::array& w, const mlx::core::array& scales, const mlx::core::array* biases);

// Indices into an axis of `size`, negative ones from the end, that MLX may follow without leaving the tensor: it does
// not check them itself. Where their values are known (a program's input, a constant) one that is out of range throws
// Error(kInvalidArgument); where they are computed in the step it counts as the nearest that is in range.
mlx::core::array CheckedIndices(const mlx::core::array& indices, int size);

// The integers of an array that is evaluated and row-contiguous.
std::vector<int64_t> HostIntegers(const mlx::core::array& array);

}  // namespace offgraph::program
