#include "offgraph/pte/constants.h"

#include <cstring>
#include <span>
#include <vector>

#include "offgraph/pte/schema/program_generated.h"

namespace offgraph::pte {
namespace {

namespace fb = executorch_flatbuffer;

// Who reads what, for messages.
struct Reader {
  const fb::Program& program;
  const Segments& segments;
  const fb::ExecutionPlan& plan;
  const std::string& file;
  const std::string& part;
  Budget& budget;

  Error Bad(const std::string& what) const { return BadFile(file, part + ": " + what); }
};

float HalfToFloat(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000U} << 16;
  const uint32_t exponent = (half >> 10) & 0x1FU;
  const uint32_t fraction = half & 0x3FFU;
  if (exponent == 0) {
    const float value = static_cast<float>(fraction) * 0x1p-24F;
    return sign == 0 ? value : -value;
  }
  const uint32_t bits =
      exponent == 31 ? sign | 0x7F800000U | fraction << 13 : sign | (exponent + 112) << 23 | fraction << 13;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

float BFloat16ToFloat(uint16_t half) {
  const uint32_t bits = uint32_t{half} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Bytes of the constant tensor number `index`, from its start to the end of what holds it.
std::span<const std::byte> ConstantData(const Reader& reader, uint32_t index) {
  const auto* segment = reader.program.constant_segment();
  if (segment != nullptr && segment->offsets() != nullptr && segment->offsets()->size() > 0) {
    if (index >= segment->offsets()->size()) {
      throw reader.Bad("constant tensor " + std::to_string(index) + ", but the file has " +
                       std::to_string(segment->offsets()->size()));
    }
    const auto bytes = reader.segments.At(segment->segment_index(), "constant segment");
    const uint64_t offset = segment->offsets()->Get(index);
    if (offset > bytes.size()) {
      throw reader.Bad("constant tensor " + std::to_string(index) + " begins at byte " + std::to_string(offset) +
                       " of a segment of " + std::to_string(bytes.size()));
    }
    return bytes.subspan(offset);
  }
  const auto* buffers = reader.program.constant_buffer();
  const size_t count = buffers == nullptr ? 0 : buffers->size();
  if (index >= count) {
    throw reader.Bad("constant tensor " + std::to_string(index) + ", but the file has " + std::to_string(count));
  }
  const auto* storage = buffers->Get(index)->storage();
  if (storage == nullptr) return {};
  return std::as_bytes(std::span(storage->data(), storage->size()));
}

// Number of elements of a tensor; throws for a negative size or a product that overflows.
uint64_t ElementCount(const Reader& reader, const fb::Tensor& tensor) {
  if (tensor.sizes() == nullptr) return 1;
  reader.budget.Charge(tensor.sizes()->size());
  uint64_t count = 1;
  for (const int32_t size : *tensor.sizes()) {
    if (size < 0) throw reader.Bad("tensor with a size of " + std::to_string(size));
    if (__builtin_mul_overflow(count, static_cast<uint64_t>(size), &count)) {
      throw reader.Bad("tensor whose number of elements overflows");
    }
  }
  return count;
}

// Whether the elements lie in the order of their indices.
bool IsRowMajor(const Reader& reader, const fb::Tensor& tensor) {
  if (tensor.dim_order() == nullptr) return true;
  reader.budget.Charge(tensor.dim_order()->size());
  uint32_t expected = 0;
  for (const uint8_t dim : *tensor.dim_order()) {
    if (dim != expected++) return false;
  }
  return true;
}

// Reads `count` elements of type Stored, each made a Number by `convert`.
template <typename Stored, typename Number, typename Convert>
std::vector<Number> ReadNumbers(const Reader& reader, std::span<const std::byte> data, uint64_t count,
                                Convert convert) {
  if (count > data.size() / sizeof(Stored)) {
    throw reader.Bad("tensor of " + std::to_string(count) + " elements of " + std::to_string(sizeof(Stored)) +
                     " bytes, but " + std::to_string(data.size()) + " bytes are there");
  }
  reader.budget.Charge(count);
  std::vector<Number> numbers(count);
  for (uint64_t i = 0; i < count; ++i) {
    Stored element;
    std::memcpy(&element, data.data() + i * sizeof(Stored), sizeof(Stored));
    numbers[i] = convert(element);
  }
  return numbers;
}

std::optional<ConstantValue> ReadTensor(const Reader& reader, const fb::Tensor& tensor) {
  const auto* extra = tensor.extra_tensor_info();
  const bool elsewhere = extra != nullptr && extra->location() == fb::TensorDataLocation_EXTERNAL;
  if (tensor.data_buffer_idx() == 0 || tensor.allocation_info() != nullptr || elsewhere ||
      tensor.storage_offset() != 0 || !IsRowMajor(reader, tensor)) {
    return std::nullopt;
  }
  const auto data = ConstantData(reader, tensor.data_buffer_idx());
  const uint64_t count = ElementCount(reader, tensor);
  const auto integers = [&]<typename Stored>(Stored) -> ConstantValue {
    return ReadNumbers<Stored, int64_t>(reader, data, count, [](Stored x) { return static_cast<int64_t>(x); });
  };
  const auto reals = [&]<typename Stored>(Stored, auto convert) -> ConstantValue {
    return ReadNumbers<Stored, double>(reader, data, count, [&](Stored x) { return static_cast<double>(convert(x)); });
  };
  const auto same = [](auto x) { return x; };
  switch (tensor.scalar_type()) {
    case fb::ScalarType_BYTE:
    case fb::ScalarType_BOOL:
      return integers(uint8_t{});
    case fb::ScalarType_CHAR:
      return integers(int8_t{});
    case fb::ScalarType_SHORT:
      return integers(int16_t{});
    case fb::ScalarType_UINT16:
      return integers(uint16_t{});
    case fb::ScalarType_INT:
      return integers(int32_t{});
    case fb::ScalarType_UINT32:
      return integers(uint32_t{});
    case fb::ScalarType_LONG:
      return integers(int64_t{});
    case fb::ScalarType_FLOAT:
      return reals(float{}, same);
    case fb::ScalarType_DOUBLE:
      return reals(double{}, same);
    case fb::ScalarType_HALF:
      return reals(uint16_t{}, HalfToFloat);
    case fb::ScalarType_BFLOAT16:
      return reals(uint16_t{}, BFloat16ToFloat);
    default:
      return std::nullopt;
  }
}

// A list of integers is stored as indices of values, since each may be computed at run time.
std::optional<ConstantValue> ReadIntList(const Reader& reader, const fb::IntList& list) {
  std::vector<int64_t> numbers;
  if (list.items() == nullptr) return numbers;
  reader.budget.Charge(list.items()->size());
  numbers.reserve(list.items()->size());
  const auto& values = *reader.plan.values();
  for (const int64_t index : *list.items()) {
    if (index < 0 || index >= static_cast<int64_t>(values.size())) {
      throw reader.Bad("list element at value " + std::to_string(index) + ", but the method has " +
                       std::to_string(values.size()) + " values");
    }
    const auto* number = values.Get(static_cast<uint32_t>(index))->val_as_Int();
    if (number == nullptr) return std::nullopt;
    numbers.push_back(number->int_val());
  }
  return numbers;
}

template <typename Number, typename Items>
std::vector<Number> CopyItems(const Reader& reader, const Items* items) {
  if (items == nullptr) return {};
  reader.budget.Charge(items->size());
  return {items->begin(), items->end()};
}

}  // namespace

std::optional<ConstantValue> ReadConstant(const fb::Program& program, const Segments& segments,
                                          const fb::ExecutionPlan& plan, uint32_t index, const std::string& file,
                                          const std::string& part, Budget& budget) {
  const Reader reader{program, segments, plan, file, part, budget};
  const fb::EValue& value = *plan.values()->Get(index);
  if (const auto* number = value.val_as_Int()) return number->int_val();
  if (const auto* number = value.val_as_Double()) return number->double_val();
  if (const auto* truth = value.val_as_Bool()) return truth->bool_val();
  if (const auto* text = value.val_as_String()) {
    if (text->string_val() == nullptr) return std::string();
    budget.Charge(text->string_val()->size());
    return text->string_val()->str();
  }
  if (const auto* list = value.val_as_IntList()) return ReadIntList(reader, *list);
  if (const auto* list = value.val_as_DoubleList()) return CopyItems<double>(reader, list->items());
  if (const auto* list = value.val_as_BoolList()) return CopyItems<int64_t>(reader, list->items());
  if (const auto* tensor = value.val_as_Tensor()) return ReadTensor(reader, *tensor);
  return std::nullopt;
}

}  // namespace offgraph::pte
