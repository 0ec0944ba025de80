#include "offgraph/program/payload.h"

#include <flatbuffers/reflection.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "offgraph/cache/error.h"
#include "offgraph/program/op_schema.h"
#include "offgraph/program/schema/schema_generated.h"

namespace offgraph::program {
namespace {

constexpr size_t kHeaderSize = 24;
constexpr size_t kMagicOffset = 4;
constexpr char kMagic[] = {'M', 'L', 'X', '0'};
// Tables nest five deep in this schema (graph, chain, instruction, op, operand).
constexpr flatbuffers::uoffset_t kMaxDepth = 16;
constexpr uint32_t kMaxRank = 32;

// Decodes one payload. Every throw names the part that is wrong.
class Reader {
 public:
  Reader(std::span<const std::byte> payload, std::string name) : payload_(payload), name_(std::move(name)) {}

  Graph Read();

 private:
  [[noreturn]] void Fail(const std::string& part, const std::string& problem) const {
    throw Error(ErrorCode::kBadFile, name_ + ": " + part + ": " + problem);
  }

  std::span<const std::byte> CheckHeader() const;
  void ReadCounts(const mlx_delegate::MLXGraph& root);
  void ReadMetas(const mlx_delegate::MLXGraph& root);
  TensorMeta ReadMeta(const mlx_delegate::TensorMeta& meta, const std::string& part);
  Slot ReadSlot(const mlx_delegate::SlotVariant* slot, const std::string& part) const;
  std::vector<Slot> ReadSlots(const flatbuffers::Vector<flatbuffers::Offset<mlx_delegate::SlotVariant>>* slots,
                              const std::string& part) const;
  void ReadChains(const mlx_delegate::MLXGraph& root);
  Instruction ReadInstruction(const mlx_delegate::Instruction& instruction, const std::string& part);
  FieldValue ReadField(const flatbuffers::Table& table, const FieldSchema& field, const std::string& part);
  void CheckInstruction(const Instruction& instruction, const std::string& part) const;

  // A FlatBuffer may point to one vector from many places: what is decoded is bounded by what an honest payload of
  // this size could hold.
  void Spend(size_t elements, const std::string& part) {
    if (elements > budget_)
      Fail(part, "the payload decodes into far more than its size of " + std::to_string(payload_.size()) +
                     " bytes; it is damaged");
    budget_ -= elements;
  }

  std::span<const std::byte> payload_;
  std::string name_;
  size_t budget_ = 0;
  Graph graph_;
};

std::span<const std::byte> Reader::CheckHeader() const {
  if (payload_.size() < kHeaderSize) {
    Fail("header", "the payload has " + std::to_string(payload_.size()) + " bytes, its header alone has " +
                       std::to_string(kHeaderSize));
  }
  if (std::memcmp(payload_.data() + kMagicOffset, kMagic, sizeof(kMagic)) != 0) {
    Fail("header", "not a payload of ExecuTorch's MLX backend: \"MLX0\" is not at byte 4");
  }
  uint64_t data_offset = 0;
  uint64_t data_size = 0;
  std::memcpy(&data_offset, payload_.data() + 8, sizeof(data_offset));
  std::memcpy(&data_size, payload_.data() + 16, sizeof(data_size));
  if (data_offset < kHeaderSize || data_offset > payload_.size() || data_size > payload_.size() - data_offset) {
    Fail("header", "the data segment (offset " + std::to_string(data_offset) + ", " + std::to_string(data_size) +
                       " bytes) is outside of the payload of " + std::to_string(payload_.size()) + " bytes");
  }
  return payload_.subspan(kHeaderSize, static_cast<size_t>(data_offset) - kHeaderSize);
}

Graph Reader::Read() {
  const std::span<const std::byte> bytes = CheckHeader();
  if (bytes.size() >= FLATBUFFERS_MAX_BUFFER_SIZE)
    Fail("graph", "a FlatBuffer of " + std::to_string(bytes.size()) + " bytes, expected less than 2 GiB");
  budget_ = bytes.size();
  // Offsets are checked against the buffer's start, so its alignment is that of the payload: copy where it is not 8.
  std::vector<uint64_t> aligned;
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  if (reinterpret_cast<uintptr_t>(data) % alignof(uint64_t) != 0) {
    aligned.resize(bytes.size() / sizeof(uint64_t) + 1);
    std::memcpy(aligned.data(), data, bytes.size());
    data = reinterpret_cast<const uint8_t*>(aligned.data());
  }
  flatbuffers::Verifier verifier(data, bytes.size(), kMaxDepth, static_cast<flatbuffers::uoffset_t>(bytes.size()));
  if (!mlx_delegate::VerifyMLXGraphBuffer(verifier)) {
    Fail("graph", "the FlatBuffer is damaged (an offset, size or alignment is wrong)");
  }
  const mlx_delegate::MLXGraph& root = *mlx_delegate::GetMLXGraph(data);
  graph_.version = root.version() != nullptr ? root.version()->str() : "";
  if (graph_.version != "1") {
    throw Error(ErrorCode::kUnsupported,
                name_ + ": version \"" + graph_.version + "\" of the MLX payload; this build reads version \"1\"");
  }
  ReadCounts(root);
  ReadMetas(root);
  ReadChains(root);
  graph_.inputs = ReadSlots(root.input_map(), "input map");
  graph_.outputs = ReadSlots(root.output_map(), "output map");
  graph_.buffers = ReadSlots(root.mutable_buffer_map(), "mutable buffer map");
  if (root.named_slots() != nullptr) {
    for (const mlx_delegate::NamedSlot* named : *root.named_slots()) {
      Spend(named->name()->size() + 1, "named slots");
      const std::string name = named->name()->str();
      graph_.names.push_back({name, ReadSlot(named->slot(), "named slot \"" + name + "\"")});
    }
  }
  return std::move(graph_);
}

void Reader::ReadCounts(const mlx_delegate::MLXGraph& root) {
  graph_.n_constants = root.num_constant_tensors();
  graph_.n_inputs = root.num_input_tensors();
  graph_.n_outputs = root.num_output_tensors();
  graph_.n_buffers = root.num_mutable_buffer_tensors();
  graph_.n_temps = root.num_temp_tensors();
  graph_.n_values = root.num_values();
  const uint64_t slots = uint64_t{graph_.n_constants} + graph_.n_inputs + graph_.n_outputs + graph_.n_buffers +
                         graph_.n_temps + graph_.n_values;
  // A slot that is used is named somewhere, in four bytes at least.
  if (slots > payload_.size()) {
    Fail("graph", std::to_string(slots) + " slots are declared, more than a payload of " +
                      std::to_string(payload_.size()) + " bytes can use");
  }
}

TensorMeta Reader::ReadMeta(const mlx_delegate::TensorMeta& meta, const std::string& part) {
  TensorMeta result;
  result.type = static_cast<ScalarType>(meta.scalar_type());
  if (SizeOf(result.type) == 0) Fail(part, "element type " + std::to_string(meta.scalar_type()) + " is not known");
  if (meta.shape()->size() > kMaxRank)
    Fail(part, "rank " + std::to_string(meta.shape()->size()) + ", expected at most " + std::to_string(kMaxRank));
  int64_t bytes = SizeOf(result.type);
  for (const mlx_delegate::ShapeDim* dim : *meta.shape()) {
    TensorMeta::Dim range{dim->value(), dim->value()};
    if (dim->value() == -1) range = {dim->min_value(), dim->max_value()};
    if (range.min < 0 || range.max < -1 || (range.max != -1 && range.max < range.min)) {
      Fail(part, "dimension " + std::to_string(result.shape.size()) + " is " + std::to_string(range.min) + " to " +
                     std::to_string(range.max) + ", expected 0 or more, and the larger number last (-1: no limit)");
    }
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(range.min, 1), &bytes))
      Fail(part, "its size is beyond 64 bits");
    result.shape.push_back(range);
  }
  const auto* order = meta.dim_order();
  for (uint32_t i = 0; order != nullptr && i < order->size(); ++i) {
    if (order->Get(i) != i) {
      throw Error(ErrorCode::kUnsupported, name_ + ": " + part + ": dimensions are not stored in their order");
    }
  }
  return result;
}

void Reader::ReadMetas(const mlx_delegate::MLXGraph& root) {
  if (root.tensor_meta() == nullptr) return;
  if (root.tensor_meta()->size() > graph_.first_temp()) {
    Fail("tensor table", std::to_string(root.tensor_meta()->size()) + " entries for " +
                             std::to_string(graph_.first_temp()) + " tensors that are no temporaries");
  }
  for (const mlx_delegate::TensorMeta* meta : *root.tensor_meta()) {
    Spend(meta->shape()->size() + 1, "tensor table");
    graph_.metas.emplace_back(ReadMeta(*meta, "tensor " + std::to_string(graph_.metas.size())));
  }
}

Slot Reader::ReadSlot(const mlx_delegate::SlotVariant* slot, const std::string& part) const {
  Slot result;
  result.index = slot->idx();
  switch (slot->slot_type()) {
    case mlx_delegate::SlotType_TensorSlot:
      result.kind = SlotKind::kTensor;
      break;
    case mlx_delegate::SlotType_IntValueSlot:
      result.kind = SlotKind::kInt;
      break;
    case mlx_delegate::SlotType_FloatValueSlot:
      result.kind = SlotKind::kFloat;
      break;
    case mlx_delegate::SlotType_BoolValueSlot:
      result.kind = SlotKind::kBool;
      break;
    default:
      Fail(part, "slot type " + std::to_string(slot->slot_type()) + ", expected 0 to 3");
  }
  const uint32_t limit = result.kind == SlotKind::kTensor ? graph_.n_tensors() : graph_.n_values;
  if (result.index >= limit) {
    Fail(part, "slot " + std::to_string(result.index) + ", but there are " + std::to_string(limit));
  }
  return result;
}

std::vector<Slot> Reader::ReadSlots(const flatbuffers::Vector<flatbuffers::Offset<mlx_delegate::SlotVariant>>* slots,
                                    const std::string& part) const {
  std::vector<Slot> result;
  if (slots == nullptr) return result;
  for (const mlx_delegate::SlotVariant* slot : *slots) {
    result.push_back(ReadSlot(slot, part + " entry " + std::to_string(result.size())));
  }
  return result;
}

void Reader::ReadChains(const mlx_delegate::MLXGraph& root) {
  const size_t n_chains = root.instruction_chains()->size();
  graph_.main_chain = root.main_chain_idx();
  if (graph_.main_chain >= n_chains) {
    Fail("graph", "main chain " + std::to_string(graph_.main_chain) + ", but there are " + std::to_string(n_chains));
  }
  if (root.init_chain_idx() != -1) {
    const int32_t init = root.init_chain_idx();
    if (init < 0 || static_cast<size_t>(init) >= n_chains) {
      Fail("graph", "init chain " + std::to_string(init) + ", but there are " + std::to_string(n_chains));
    }
    graph_.init_chain = static_cast<uint32_t>(init);
  }
  for (const mlx_delegate::InstructionChain* chain : *root.instruction_chains()) {
    Spend(chain->instructions()->size() + 1, "chains");
    Chain& decoded = graph_.chains.emplace_back();
    for (const mlx_delegate::Instruction* instruction : *chain->instructions()) {
      const std::string part =
          "chain " + std::to_string(graph_.chains.size() - 1) + ", instruction " + std::to_string(decoded.size());
      decoded.push_back(ReadInstruction(*instruction, part));
    }
  }
  for (size_t c = 0; c < graph_.chains.size(); ++c) {
    for (size_t i = 0; i < graph_.chains[c].size(); ++i) {
      const Instruction& instruction = graph_.chains[c][i];
      CheckInstruction(instruction, "chain " + std::to_string(c) + ", instruction " + std::to_string(i) + " (" +
                                        instruction.op + ")");
    }
  }
}

Instruction Reader::ReadInstruction(const mlx_delegate::Instruction& instruction, const std::string& part) {
  const auto number = static_cast<size_t>(instruction.op_type());
  const std::vector<OpSchema>& ops = OpSchemas();
  if (number >= ops.size() || ops[number].name.empty()) {
    throw Error(ErrorCode::kUnsupported, name_ + ": " + part + ": op number " + std::to_string(number) +
                                             " is not in the schema that this build knows; build against the "
                                             "ExecuTorch release that exported the file");
  }
  const OpSchema& op = ops[number];
  Instruction result;
  result.op = op.name;
  result.fields.reserve(op.fields.size());
  const auto& table = *static_cast<const flatbuffers::Table*>(instruction.op());
  for (const FieldSchema& field : op.fields) {
    result.fields.push_back({field.name, ReadField(table, field, part + " (" + op.name + "), " + field.name)});
  }
  return result;
}

template <typename Table>
IntOperand ReadIntOperand(const Table& operand) {
  if (!operand.is_vid()) return {operand.literal()};
  return {operand.vid() != nullptr ? Vid{operand.vid()->idx()} : Vid{std::numeric_limits<uint32_t>::max()}};
}

// A slot that the operand says it has and does not: a number that no check accepts.
template <typename Id, typename Struct>
Id IdOf(const Struct* id) {
  return id != nullptr ? Id{id->idx()} : Id{std::numeric_limits<uint32_t>::max()};
}

IndexOperand ReadIndexOperand(const mlx_delegate::IntOrVidOrTid& operand) {
  if (operand.kind() == 0) return {operand.literal()};
  if (operand.kind() == 1) return {IdOf<Vid>(operand.vid())};
  return {IdOf<Tid>(operand.tid())};
}

FieldValue Reader::ReadField(const flatbuffers::Table& table, const FieldSchema& schema, const std::string& part) {
  const reflection::Field& field = *schema.field;
  const bool present = table.CheckField(field.offset());
  const auto operand = [&]<typename Operand>(const Operand* /*type*/) {
    return table.GetPointer<const Operand*>(field.offset());
  };
  const auto vector = [&] { return flatbuffers::GetFieldAnyV(table, field); };
  switch (schema.kind) {
    case FieldKind::kBool:
      if (!present && field.optional()) return std::monostate{};
      return flatbuffers::GetAnyFieldI(table, field) != 0;
    case FieldKind::kInt: {
      if (!present && field.optional()) return std::monostate{};
      const int64_t value = flatbuffers::GetAnyFieldI(table, field);
      if (field.type()->base_type() == reflection::ULong && value < 0) Fail(part, "a number beyond 2^63");
      return value;
    }
    case FieldKind::kFloat:
      if (!present && field.optional()) return std::monostate{};
      return flatbuffers::GetAnyFieldF(table, field);
    default:
      break;
  }
  if (!present) return std::monostate{};
  switch (schema.kind) {
    case FieldKind::kString: {
      const flatbuffers::String* text = flatbuffers::GetFieldS(table, field);
      Spend(text->size() / 16, part);  // strings are shared by design
      return text->str();
    }
    case FieldKind::kTid:
      return Tid{table.GetStruct<const mlx_delegate::Tid*>(field.offset())->idx()};
    case FieldKind::kVid:
      return Vid{table.GetStruct<const mlx_delegate::Vid*>(field.offset())->idx()};
    case FieldKind::kIntOperand:
      return ReadIntOperand(*operand(static_cast<const mlx_delegate::IntOrVid*>(nullptr)));
    case FieldKind::kFloatOperand: {
      const auto* value = operand(static_cast<const mlx_delegate::FloatOrVid*>(nullptr));
      return value->is_vid() ? FloatOperand{IdOf<Vid>(value->vid())} : FloatOperand{value->literal()};
    }
    case FieldKind::kSlotOperand: {
      const auto* value = operand(static_cast<const mlx_delegate::VidOrTid*>(nullptr));
      return value->is_vid() ? SlotOperand{IdOf<Vid>(value->vid())} : SlotOperand{IdOf<Tid>(value->tid())};
    }
    case FieldKind::kIndexOperand: {
      const auto* value = operand(static_cast<const mlx_delegate::IntOrVidOrTid*>(nullptr));
      if (value->kind() > 2) Fail(part, "operand kind " + std::to_string(value->kind()) + ", expected 0 to 2");
      return ReadIndexOperand(*value);
    }
    case FieldKind::kIntVector: {
      std::vector<int64_t> values;
      Spend(vector()->size(), part);
      for (uint32_t i = 0; i < vector()->size(); ++i) {
        values.push_back(flatbuffers::GetAnyVectorElemI(vector(), field.type()->element(), i));
      }
      return values;
    }
    case FieldKind::kFloatVector: {
      std::vector<double> values;
      Spend(vector()->size(), part);
      for (uint32_t i = 0; i < vector()->size(); ++i) {
        values.push_back(flatbuffers::GetAnyVectorElemF(vector(), field.type()->element(), i));
      }
      return values;
    }
    case FieldKind::kStringVector: {
      std::vector<std::string> values;
      const auto& strings =
          *table.GetPointer<const flatbuffers::Vector<flatbuffers::Offset<flatbuffers::String>>*>(field.offset());
      for (const flatbuffers::String* text : strings) {
        Spend(text->size() / 16 + 1, part);
        values.push_back(text->str());
      }
      return values;
    }
    case FieldKind::kTidVector: {
      std::vector<Tid> values;
      const auto& ids = *table.GetPointer<const flatbuffers::Vector<const mlx_delegate::Tid*>*>(field.offset());
      Spend(ids.size(), part);
      for (const mlx_delegate::Tid* id : ids) values.push_back({id->idx()});
      return values;
    }
    case FieldKind::kIntOperandVector: {
      std::vector<IntOperand> values;
      const auto& operands =
          *table.GetPointer<const flatbuffers::Vector<flatbuffers::Offset<mlx_delegate::IntOrVid>>*>(field.offset());
      Spend(operands.size(), part);
      for (const mlx_delegate::IntOrVid* value : operands) values.push_back(ReadIntOperand(*value));
      return values;
    }
    default:
      throw Error(ErrorCode::kUnsupported, name_ + ": " + part + ": a field of a kind that this build cannot read");
  }
}

void Reader::CheckInstruction(const Instruction& instruction, const std::string& part) const {
  const SlotUse use = UseOf(instruction);
  const auto check = [&](auto ids, uint32_t limit, const char* kind) {
    for (auto id : ids) {
      if (id.index >= limit) {
        Fail(part,
             std::string(kind) + " slot " + std::to_string(id.index) + ", but there are " + std::to_string(limit));
      }
    }
  };
  check(use.reads, graph_.n_tensors(), "tensor");
  check(use.writes, graph_.n_tensors(), "tensor");
  check(use.value_reads, graph_.n_values, "value");
  check(use.value_writes, graph_.n_values, "value");
  for (int64_t chain : ChainsOf(instruction)) {
    if (chain < 0 || static_cast<size_t>(chain) >= graph_.chains.size()) {
      Fail(part, "chain " + std::to_string(chain) + ", but there are " + std::to_string(graph_.chains.size()));
    }
  }
}

}  // namespace

Graph ReadPayload(std::span<const std::byte> payload, const std::string& name) { return Reader(payload, name).Read(); }

std::vector<std::string> SchemaOps() {
  std::vector<std::string> names;
  for (const OpSchema& op : OpSchemas()) {
    if (!op.name.empty()) names.push_back(op.name);
  }
  return names;
}

}  // namespace offgraph::program
