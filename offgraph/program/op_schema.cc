#include "offgraph/program/op_schema.h"

#include <flatbuffers/reflection.h>

#include <array>
#include <string_view>

#include "offgraph/program/schema/schema_bfbs_generated.h"

namespace offgraph::program {
namespace {

std::string_view ShortName(const flatbuffers::String* full) {
  const std::string_view name = full->string_view();
  const size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? name : name.substr(dot + 1);
}

FieldKind ObjectKind(std::string_view object, bool vector) {
  if (object == "Tid") return vector ? FieldKind::kTidVector : FieldKind::kTid;
  if (object == "Vid" && !vector) return FieldKind::kVid;
  if (object == "IntOrVid") return vector ? FieldKind::kIntOperandVector : FieldKind::kIntOperand;
  if (object == "FloatOrVid" && !vector) return FieldKind::kFloatOperand;
  if (object == "VidOrTid" && !vector) return FieldKind::kSlotOperand;
  if (object == "IntOrVidOrTid" && !vector) return FieldKind::kIndexOperand;
  return FieldKind::kUnknown;
}

FieldKind KindOf(const reflection::Type& type, const reflection::Schema& schema) {
  const auto object = [&] { return ShortName(schema.objects()->Get(static_cast<uint32_t>(type.index()))->name()); };
  if (type.base_type() == reflection::Bool) return FieldKind::kBool;
  if (flatbuffers::IsInteger(type.base_type())) return FieldKind::kInt;
  if (flatbuffers::IsFloat(type.base_type())) return FieldKind::kFloat;
  if (type.base_type() == reflection::String) return FieldKind::kString;
  if (type.base_type() == reflection::Obj) return ObjectKind(object(), false);
  if (type.base_type() != reflection::Vector) return FieldKind::kUnknown;
  if (type.element() == reflection::Obj) return ObjectKind(object(), true);
  if (type.element() == reflection::String) return FieldKind::kStringVector;
  if (flatbuffers::IsInteger(type.element())) return FieldKind::kIntVector;
  if (flatbuffers::IsFloat(type.element())) return FieldKind::kFloatVector;
  return FieldKind::kUnknown;
}

FieldSchema Describe(const reflection::Field& field, const reflection::Schema& schema) {
  FieldSchema result{field.name()->str(), KindOf(*field.type(), schema), field.required(), {}, &field};
  if (field.optional()) return result;  // "= null": absent is not the same as any number
  if (result.kind == FieldKind::kBool) result.default_value = field.default_integer() != 0;
  if (result.kind == FieldKind::kInt) result.default_value = field.default_integer();
  if (result.kind == FieldKind::kFloat) result.default_value = field.default_real();
  return result;
}

// The schema's ops by their number in the union; entry 0 (no op) has no name.
std::vector<OpSchema> MakeOpSchemas() {
  const reflection::Schema& schema = *reflection::GetSchema(mlx_delegate::MLXGraphBinarySchema::data());
  std::vector<OpSchema> ops;
  for (const reflection::Enum* candidate : *schema.enums()) {
    if (ShortName(candidate->name()) != "OpNode") continue;
    for (const reflection::EnumVal* value : *candidate->values()) {
      const auto number = static_cast<size_t>(value->value());
      if (ops.size() <= number) ops.resize(number + 1);
      if (value->union_type() == nullptr || value->union_type()->base_type() != reflection::Obj) continue;
      const reflection::Object& object = *schema.objects()->Get(static_cast<uint32_t>(value->union_type()->index()));
      ops[number].name = ShortName(object.name());
      ops[number].fields.resize(object.fields()->size());
      for (const reflection::Field* field : *object.fields()) {
        ops[number].fields[field->id()] = Describe(*field, schema);
      }
    }
  }
  return ops;
}

}  // namespace

std::string ToString(FieldKind kind) {
  constexpr std::array<std::string_view, 16> kTexts = {"flag",
                                                       "int",
                                                       "float",
                                                       "text",
                                                       "tensor",
                                                       "value",
                                                       "int or value",
                                                       "float or value",
                                                       "value or tensor",
                                                       "int, value or tensor",
                                                       "list of ints",
                                                       "list of floats",
                                                       "list of texts",
                                                       "list of tensors",
                                                       "list of ints or values",
                                                       "of a kind that this build cannot read"};
  return std::string(kTexts.at(static_cast<size_t>(kind)));
}

const std::vector<OpSchema>& OpSchemas() {
  static const std::vector<OpSchema> ops = MakeOpSchemas();
  return ops;
}

}  // namespace offgraph::program
