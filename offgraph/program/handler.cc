#include "offgraph/program/handler.h"

#include <mlx/ops.h>

#include <algorithm>
#include <array>
#include <limits>
#include <unordered_map>

#include "offgraph/cache/error.h"
#include "offgraph/program/mlx_types.h"

namespace offgraph::program {
namespace {

namespace mx = mlx::core;

std::unordered_map<std::string_view, const Handler*> CollectHandlers() {
  std::unordered_map<std::string_view, const Handler*> table;
  for (std::span<const Handler> family :
       {UnaryOps(), BinaryOps(), ReductionOps(), ShapeOps(), IndexOps(), UpdateOps(), CreationOps(), LinearOps(),
        NormOps(), AttentionOps(), ConvolutionOps(), SortOps(), ValueOps(), ControlOps(), FusedOps()}) {
    for (const Handler& handler : family) table.emplace(handler.op, &handler);
  }
  return table;
}

}  // namespace

void Operands::Fail(const std::string& problem) const { throw Error(ErrorCode::kBadFile, where_ + ": " + problem); }

const FieldValue* Operands::Find(std::string_view name) const {
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

int NormalizeAxis(int axis, const mlx::core::array& x) {
  const auto rank = static_cast<int>(x.ndim());
  if (axis < -rank || axis >= rank) {
    throw Error(ErrorCode::kInvalidArgument,
                "axis " + std::to_string(axis) + " of a tensor of shape " + ShapeText(x.shape()));
  }
  return axis < 0 ? axis + rank : axis;
}

std::vector<int> NormalizeAxes(const std::vector<int>& axes, const mlx::core::array& x) {
  std::vector<int> normalized;
  normalized.reserve(axes.size());
  for (int axis : axes) normalized.push_back(NormalizeAxis(axis, x));
  return normalized;
}

int ClampToAxis(int64_t bound, int size) {
  if (bound < 0) bound += size;
  return static_cast<int>(std::clamp<int64_t>(bound, 0, size));
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
