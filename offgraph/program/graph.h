// Graph: the intermediate form of a delegate payload. Plain structs, no FlatBuffers, no MLX.
//
// The payload decodes into it (payload.h), passes rewrite it, and handlers bind it to code (handler.h). An instruction
// is a name and named fields, whatever the op, so that one piece of code checks, prints or rewrites all ops alike.
//
// Tensor slots are numbered across kinds: constants first, then inputs, outputs, mutable buffers and temporaries. A
// temporary's number is reused by the exporter once its value is dead.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "offgraph/program/host_tensor.h"

namespace offgraph::program {

// A tensor slot and a value slot (int64, double or bool).
struct Tid {
  uint32_t index = 0;
  bool operator==(const Tid&) const = default;
};
struct Vid {
  uint32_t index = 0;
  bool operator==(const Vid&) const = default;
};

// Operands that are known at load, or come out of a slot at run time.
struct IntOperand {
  std::variant<int64_t, Vid> value;
  bool operator==(const IntOperand&) const = default;
};
struct FloatOperand {
  std::variant<double, Vid> value;
  bool operator==(const FloatOperand&) const = default;
};
struct SlotOperand {
  std::variant<Vid, Tid> value;
  bool operator==(const SlotOperand&) const = default;
};
struct IndexOperand {
  std::variant<int64_t, Vid, Tid> value;
  bool operator==(const IndexOperand&) const = default;
};

// std::monostate: the field is absent, and its type has no default.
using FieldValue = std::variant<std::monostate, bool, int64_t, double, std::string, Tid, Vid, IntOperand, FloatOperand,
                                SlotOperand, IndexOperand, std::vector<int64_t>, std::vector<double>,
                                std::vector<std::string>, std::vector<Tid>, std::vector<IntOperand>>;

struct Field {
  std::string name;
  FieldValue value;
  bool operator==(const Field&) const = default;
};

struct Instruction {
  std::string op;  // the schema's name: "AddNode"
  std::vector<Field> fields;
  bool operator==(const Instruction&) const = default;
};

using Chain = std::vector<Instruction>;

struct TensorMeta {
  ScalarType type = ScalarType::kFloat;
  struct Dim {
    int64_t min = 0;
    int64_t max = 0;  // -1: no upper bound
    bool operator==(const Dim&) const = default;
  };
  std::vector<Dim> shape;
};

enum class SlotKind : uint8_t { kTensor, kInt, kFloat, kBool };

struct Slot {
  SlotKind kind = SlotKind::kTensor;
  uint32_t index = 0;
};

struct NamedSlot {
  std::string name;
  Slot slot;
};

struct Graph {
  std::string version;
  uint32_t n_constants = 0;
  uint32_t n_inputs = 0;
  uint32_t n_outputs = 0;
  uint32_t n_buffers = 0;
  uint32_t n_temps = 0;
  uint32_t n_values = 0;
  std::vector<Chain> chains;
  uint32_t main_chain = 0;
  std::optional<uint32_t> init_chain;
  std::optional<uint32_t> fold_chain;  // of a pass: computes constants, once, at load
  std::vector<Slot> inputs;
  std::vector<Slot> outputs;
  std::vector<Slot> buffers;
  std::vector<NamedSlot> names;
  // By tensor slot, temporaries excluded; absent where the exporter wrote none.
  std::vector<std::optional<TensorMeta>> metas;

  uint32_t first_input() const { return n_constants; }
  uint32_t first_output() const { return first_input() + n_inputs; }
  uint32_t first_buffer() const { return first_output() + n_outputs; }
  uint32_t first_temp() const { return first_buffer() + n_buffers; }
  uint32_t n_tensors() const { return first_temp() + n_temps; }

  bool IsConstant(Tid tid) const { return tid.index < n_constants; }
  bool IsBuffer(Tid tid) const { return tid.index >= first_buffer() && tid.index < first_temp(); }
  bool IsTemp(Tid tid) const { return tid.index >= first_temp(); }
  const TensorMeta* Meta(Tid tid) const {
    return tid.index < metas.size() && metas[tid.index] ? &*metas[tid.index] : nullptr;
  }
};

// The field of that name, or null.
const Field* FindField(const Instruction& instruction, std::string_view name);

// Slots that an instruction touches itself (chains that it calls are not followed), in field order.
struct SlotUse {
  std::vector<Tid> reads;
  std::vector<Tid> writes;
  std::vector<Vid> value_reads;
  std::vector<Vid> value_writes;
};
SlotUse UseOf(const Instruction& instruction);

// Whether an op writes the slots that its field of that name holds.
bool WritesSlots(std::string_view field);

// Chains that an instruction calls: fields named *_chain_idx.
std::vector<int64_t> ChainsOf(const Instruction& instruction);

// "AddNode(a=t3, b=t4, out=t5)", for people.
std::string ToString(const Instruction& instruction);
std::string ToString(const FieldValue& value);

}  // namespace offgraph::program
