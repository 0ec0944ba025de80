#include "offgraph/program/handler.h"

#include <mlx/ops.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "offgraph/cache/error.h"
#include "offgraph/program/mlx_types.h"
#include "offgraph/program/op_schema.h"

namespace offgraph::program {
namespace {

namespace mx = mlx::core;

std::unordered_map<std::string_view, const Handler*> CollectHandlers() {
  std::unordered_map<std::string_view, const Handler*> table;
  for (const HandlerFamily& family : HandlerFamilies()) {
    for (const Handler& handler : family.handlers) table.emplace(handler.op, &handler);
  }
  return table;
}

}  // namespace

void Operands::Fail(const std::string& problem) const { throw Error(ErrorCode::kBadFile, where_ + ": " + problem); }

void Operands::RequireAllRead() const {
  const auto& ops = OpSchemas();
  const auto schema = std::find_if(ops.begin(), ops.end(), [&](const auto& op) { return op.name == instruction_.op; });
  if (schema == ops.end()) return;  // an op of the optimizer's own
  for (const FieldSchema& field : schema->fields) {
    const Field* given = read_.contains(field.name) ? nullptr : FindField(instruction_, field.name);
    if (given == nullptr || given->value == field.default_value) continue;
    throw Error(ErrorCode::kUnsupported,
                where_ + ": this build does not know the field " + field.name + ", which is " + ToString(given->value));
  }
}

const FieldValue* Operands::Find(std::string_view name) const {
  read_.emplace(name);
  const Field* field = FindField(instruction_, name);
  if (field == nullptr || std::holds_alternative<std::monostate>(field->value)) return nullptr;
  return &field->value;
}

template <typename T>
const T* Operands::GetIf(std::string_view name) const {
  const FieldValue* value = Find(name);
  if (value == nullptr) return nullptr;
  const T* typed = std::get_if<T>(value);
  if (typed == nullptr) Fail("field " + std::string(name) + " is of another kind: " + ToString(*value));
  return typed;
}

template <typename T>
const T& Operands::Require(std::string_view name) const {
  const T* value = GetIf<T>(name);
  if (value == nullptr) Fail("field " + std::string(name) + " is absent and has no default");
  return *value;
}

namespace {
template <typename T>
std::optional<T> ToOptional(const T* value) {
  return value != nullptr ? std::optional<T>(*value) : std::nullopt;
}
}  // namespace

Tid Operands::Tensor(std::string_view name) const { return Require<Tid>(name); }
std::optional<Tid> Operands::OptionalTensor(std::string_view name) const { return ToOptional(GetIf<Tid>(name)); }
std::vector<Tid> Operands::Tensors(std::string_view name) const { return Require<std::vector<Tid>>(name); }
Vid Operands::ValueSlot(std::string_view name) const { return Require<Vid>(name); }
std::optional<Vid> Operands::OptionalValueSlot(std::string_view name) const { return ToOptional(GetIf<Vid>(name)); }

IntOperand Operands::IntOrSlot(std::string_view name) const { return Require<IntOperand>(name); }
std::optional<IntOperand> Operands::OptionalIntOrSlot(std::string_view name) const {
  return ToOptional(GetIf<IntOperand>(name));
}
std::vector<IntOperand> Operands::IntsOrSlots(std::string_view name) const {
  return Require<std::vector<IntOperand>>(name);
}
FloatOperand Operands::FloatOrSlot(std::string_view name) const { return Require<FloatOperand>(name); }
SlotOperand Operands::AnySlot(std::string_view name) const { return Require<SlotOperand>(name); }
IndexOperand Operands::Index(std::string_view name) const { return Require<IndexOperand>(name); }

int64_t Operands::Long(std::string_view name) const { return Require<int64_t>(name); }

int Operands::Int(std::string_view name) const {
  const int64_t value = Long(name);
  if (value < std::numeric_limits<int32_t>::min() || value > std::numeric_limits<int32_t>::max()) {
    Fail("field " + std::string(name) + " is " + std::to_string(value) + ", beyond 32 bits");
  }
  return static_cast<int>(value);
}

std::optional<int> Operands::OptionalInt(std::string_view name) const {
  return Find(name) != nullptr ? std::optional<int>(Int(name)) : std::nullopt;
}

std::vector<int> Operands::Ints(std::string_view name) const {
  std::vector<int> values;
  const auto* source = GetIf<std::vector<int64_t>>(name);
  if (source == nullptr) return values;
  for (int64_t value : *source) values.push_back(static_cast<int>(value));  // the schema has int32 and narrower lists
  return values;
}

float Operands::Float(std::string_view name) const { return static_cast<float>(Require<double>(name)); }
std::optional<float> Operands::OptionalFloat(std::string_view name) const {
  return Find(name) != nullptr ? std::optional<float>(Float(name)) : std::nullopt;
}
bool Operands::Flag(std::string_view name) const { return Require<bool>(name); }
const std::string& Operands::Text(std::string_view name) const { return Require<std::string>(name); }

mlx::core::Dtype Operands::Type(std::string_view name) const {
  const int64_t number = Long(name);
  const auto type = static_cast<ScalarType>(number);
  if (number < 0 || number > std::numeric_limits<int8_t>::max() || SizeOf(type) == 0) {
    Fail("field " + std::string(name) + ": element type " + std::to_string(number) + " is not known");
  }
  return ToMlx(type);
}

std::optional<mlx::core::Dtype> Operands::OptionalType(std::string_view name) const {
  return Find(name) != nullptr ? std::optional(Type(name)) : std::nullopt;
}

std::vector<HandlerFamily> HandlerFamilies() {
  return {
      {"ops_attention.cc", AttentionOps()}, {"ops_binary.cc", BinaryOps()},
      {"ops_control.cc", ControlOps()},     {"ops_convolution.cc", ConvolutionOps()},
      {"ops_creation.cc", CreationOps()},   {"ops_fused.cc", FusedOps()},
      {"ops_index.cc", IndexOps()},         {"ops_linear.cc", LinearOps()},
      {"ops_norm.cc", NormOps()},           {"ops_reduction.cc", ReductionOps()},
      {"ops_shape.cc", ShapeOps()},         {"ops_sort.cc", SortOps()},
      {"ops_unary.cc", UnaryOps()},         {"ops_update.cc", UpdateOps()},
      {"ops_value.cc", ValueOps()},
  };
}

const Handler* FindHandler(std::string_view op) {
  static const std::unordered_map<std::string_view, const Handler*> table = CollectHandlers();
  const auto found = table.find(op);
  return found != table.end() ? found->second : nullptr;
}

std::string_view WhyUnsupported(std::string_view op) {
  if (op == "MetalKernelNode") {
    return "it holds source code for Apple GPUs; export the model without custom Metal kernels";
  }
  return {};
}

namespace {
int AxisWithin(int axis, int rank, const std::string& of) {
  if (axis < -rank || axis >= rank)
    throw Error(ErrorCode::kInvalidArgument, "axis " + std::to_string(axis) + " of " + of);
  return axis < 0 ? axis + rank : axis;
}
}  // namespace

int NormalizeAxis(int axis, const mlx::core::array& x) {
  return AxisWithin(axis, static_cast<int>(x.ndim()), "a tensor of shape " + ShapeText(x.shape()));
}

int NormalizeNewAxis(int axis, const mlx::core::array& x) {
  return AxisWithin(axis, static_cast<int>(x.ndim()) + 1, "a result with one axis more than " + ShapeText(x.shape()));
}

std::vector<int> NormalizeAxes(const std::vector<int>& axes, const mlx::core::array& x) {
  std::vector<int> normalized;
  normalized.reserve(axes.size());
  for (int axis : axes) {
    const int from_front = NormalizeAxis(axis, x);
    if (std::find(normalized.begin(), normalized.end(), from_front) != normalized.end()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "axis " + std::to_string(axis) + " is named twice, of a tensor of shape " + ShapeText(x.shape()));
    }
    normalized.push_back(from_front);
  }
  return normalized;
}

int ClampToAxis(int64_t bound, int size) {
  if (bound < 0) bound += size;
  return static_cast<int>(std::clamp<int64_t>(bound, 0, size));
}

mx::array NumberAs(const Value& number, mx::Dtype type) {
  if (!mx::issubdtype(type, mx::integer)) {
    return std::visit([&](auto value) { return mx::array(static_cast<double>(value), type); }, number);
  }
  const auto* floating = std::get_if<double>(&number);
  if (floating == nullptr) {
    const auto* integer = std::get_if<int64_t>(&number);
    return mx::array(integer != nullptr ? *integer : int64_t{std::get<bool>(number)}, type);
  }
  if (!(std::abs(*floating) < 0x1p63)) {
    throw Error(ErrorCode::kInvalidArgument, std::to_string(*floating) + " as a number of " + Name(FromMlx(type)));
  }
  return mx::array(static_cast<int64_t>(*floating), type);
}

namespace {

template <typename T>
std::vector<int64_t> Widen(const mx::array& array) {
  const T* data = array.data<T>();
  return {data, data + array.size()};
}

}  // namespace

std::vector<int64_t> HostIntegers(const mx::array& array) {
  switch (array.dtype().val()) {
    case mx::Dtype::Val::bool_:
    case mx::Dtype::Val::uint8:
      return Widen<uint8_t>(array);
    case mx::Dtype::Val::uint16:
      return Widen<uint16_t>(array);
    case mx::Dtype::Val::uint32:
      return Widen<uint32_t>(array);
    case mx::Dtype::Val::uint64:
      return Widen<uint64_t>(array);
    case mx::Dtype::Val::int8:
      return Widen<int8_t>(array);
    case mx::Dtype::Val::int16:
      return Widen<int16_t>(array);
    case mx::Dtype::Val::int32:
      return Widen<int32_t>(array);
    case mx::Dtype::Val::int64:
      return Widen<int64_t>(array);
    default:
      throw Error(ErrorCode::kInvalidArgument, "integers are needed, and these are " + Name(FromMlx(array.dtype())));
  }
}

void RequireFit(const mx::array& w, const mx::array& scales, const mx::array* biases) {
  bool fits = w.ndim() >= 2 && w.ndim() == scales.ndim() && (biases == nullptr || biases->shape() == scales.shape());
  for (size_t d = 0; fits && d + 1 < w.ndim(); ++d) fits = w.shape()[d] == scales.shape()[d];
  if (fits) return;
  throw Error(ErrorCode::kInvalidArgument,
              "a quantized weight of shape " + ShapeText(w.shape()) + " with scales of shape " +
                  ShapeText(scales.shape()) +
                  (biases != nullptr ? " and biases of shape " + ShapeText(biases->shape()) : std::string()));
}

mx::array CheckedIndices(const mx::array& indices, int size) {
  if (!mx::issubdtype(indices.dtype(), mx::integer)) {
    throw Error(ErrorCode::kInvalidArgument, "indices must be integers, and are " + Name(FromMlx(indices.dtype())));
  }
  if (indices.size() > 0 && size == 0) throw Error(ErrorCode::kInvalidArgument, "an index into an empty axis");
  if (indices.is_available() && indices.flags().row_contiguous) {
    for (int64_t index : HostIntegers(indices)) {
      if (index < -size || index >= size) {
        throw Error(ErrorCode::kInvalidArgument,
                    "index " + std::to_string(index) + " into an axis of " + std::to_string(size));
      }
    }
    return indices;
  }
  // In a type that holds every bound: the index's own may be too narrow for `size`.
  const mx::array wide = mx::astype(indices, mx::int64);
  return mx::minimum(mx::maximum(wide, mx::array(int64_t{-size})), mx::array(int64_t{size - 1}));
}

}  // namespace offgraph::program
