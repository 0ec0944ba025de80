// Attributes, items and slices; and the text of values.
#include <algorithm>
#include <array>

#include "offgraph/llm/jinja_methods.h"
#include "offgraph/llm/jinja_operators.h"
#include "offgraph/llm/jinja_text.h"
#include "offgraph/llm/unicode.h"

namespace offgraph::llm::jinja {
namespace {

std::string ReprOf(const Value& value) { return TextRepr(value.text()); }

Value UndefinedAttribute(const Value& container, std::string_view name) {
  const std::string owner = container.is(Kind::kNone) ? "None" : TypeName(container) + " object";
  return Value::Undefined("'" + owner + "' has no attribute " + TextRepr(name));
}

Value UndefinedItem(const Value& container, const Value& key, Budget& budget) {
  if (key.is(Kind::kString)) return UndefinedAttribute(container, key.text());
  const std::string owner = container.is(Kind::kNone) ? "None" : TypeName(container) + " object";
  return Value::Undefined(owner + " has no element " + Repr(key, budget));
}

bool IsInternal(std::string_view name) { return name.starts_with("__") && name.ends_with("__") && name.size() > 4; }

// What Python's getattr finds; a name that the sandbox does not give out is undefined.
std::optional<Value> FindAttribute(Runtime& runtime, const Value& container, std::string_view name) {
  if (container.is(Kind::kObject)) return container.object()->Attribute(runtime, name);
  if (container.is(Kind::kSequence) && container.sequence().is_group) {
    if (name == "grouper") return container.items()[0];
    if (name == "list") return container.items()[1];
  }
  const MethodAccess access = FindMethod(container, name);
  if (access == MethodAccess::kAllowed) return BindMethod(runtime, container, name);
  if (access == MethodAccess::kUnsafe || IsInternal(name)) {
    return Value::Undefined("access to attribute " + TextRepr(name) + " of '" + TypeName(container) +
                            "' object is unsafe.");
  }
  return std::nullopt;
}

// Python's index: negative ones count from the end. Nothing where it lies outside.
std::optional<size_t> PlaceOf(int64_t index, int64_t size) {
  if (index < 0) index += size;
  if (index < 0 || index >= size) return std::nullopt;
  return static_cast<size_t>(index);
}

// What container[key] finds; nothing where Python raises TypeError or LookupError.
std::optional<Value> FindItem(const Value& container, const Value& key, Budget& budget) {
  const bool has_places = container.is(Kind::kString) || container.is_sequence(SequenceType::kList) ||
                          container.is_sequence(SequenceType::kTuple) || container.is_sequence(SequenceType::kRange);
  if (has_places && key.is_integral()) {
    if (container.is(Kind::kString)) budget.Bytes(container.text().size());
    const std::optional<size_t> place = PlaceOf(key.as_int(), Size(container));
    if (!place) return std::nullopt;
    if (container.is(Kind::kSequence)) return container.items()[*place];
    const size_t begin = ByteOffset(container.text(), *place);
    const size_t length = Utf8Length(static_cast<unsigned char>(container.text()[begin]));
    return Value::TrustedString(container.text().substr(begin, length), container.is_markup());
  }
  const bool hashable =
      key.is(Kind::kNone) || key.is_number() || key.is(Kind::kString) || key.is_sequence(SequenceType::kTuple);
  if (container.is(Kind::kDict) && hashable) {
    PayForKey(key, budget);
    if (const Value* value = container.dict().Find(key)) return *value;
  }
  return std::nullopt;
}

struct SliceBounds {
  int64_t start, stop, step, count;
};

// slice(start, stop, step).indices(size)
SliceBounds ResolveSlice(const Value& start, const Value& stop, const Value& step, int64_t size) {
  const auto bound = [&](const Value& value, int64_t absent, int64_t low, int64_t high) {
    if (value.is(Kind::kNone)) return absent;
    if (!value.is_integral()) {
      throw Error(ErrorCode::kInvalidArgument, "slice indices must be integers or None, not " + TypeName(value));
    }
    const int64_t index = value.as_int();
    return std::clamp(index < 0 ? index + size : index, low, high);
  };
  constexpr int64_t kLargest = int64_t{1} << 62;
  SliceBounds slice{};
  slice.step = bound(step, 1, -kLargest, kLargest);
  if (!step.is(Kind::kNone) && step.as_int() < 0) slice.step = std::max(step.as_int(), -kLargest);
  if (slice.step == 0) throw Error(ErrorCode::kInvalidArgument, "slice step cannot be zero");
  const bool forward = slice.step > 0;
  const int64_t low = forward ? 0 : -1, high = forward ? size : size - 1;
  slice.start = bound(start, forward ? low : high, low, high);
  slice.stop = bound(stop, forward ? high : low, low, high);
  const int64_t span = forward ? slice.stop - slice.start : slice.start - slice.stop;
  const int64_t stride = forward ? slice.step : -slice.step;
  slice.count = span > 0 ? (span - 1) / stride + 1 : 0;
  return slice;
}

Value SliceText(const Value& text, const SliceBounds& slice, Budget& budget) {
  budget.Bytes(text.text().size());
  if (slice.step == 1) {
    const size_t begin = ByteOffset(text.text(), static_cast<size_t>(slice.start));
    const std::string_view rest = std::string_view(text.text()).substr(begin);
    const size_t length = ByteOffset(rest, static_cast<size_t>(slice.count));
    return Value::TrustedString(std::string(rest.substr(0, length)), text.is_markup());
  }
  budget.Steps(text.text().size());
  const std::vector<std::string_view> characters = Characters(text.text());
  std::string result;
  for (int64_t i = 0; i < slice.count; ++i) result += characters[static_cast<size_t>(slice.start + i * slice.step)];
  return Value::TrustedString(std::move(result), text.is_markup());
}

}  // namespace

Value GetAttribute(Runtime& runtime, const Value& container, std::string_view name) {
  RequireDefined(container);
  if (std::optional<Value> value = FindAttribute(runtime, container, name)) return *std::move(value);
  if (const Value* value = container.Find(name)) return *value;
  return UndefinedAttribute(container, name);
}

Value GetItem(Runtime& runtime, const Value& container, const Value& key) {
  RequireDefined(container);
  if (std::optional<Value> value = FindItem(container, key, runtime.budget())) return *std::move(value);
  if (key.is(Kind::kString)) {
    if (std::optional<Value> value = FindAttribute(runtime, container, key.text())) return *std::move(value);
  }
  return UndefinedItem(container, key, runtime.budget());
}

Value GetSlice(const Value& container, const Value& start, const Value& stop, const Value& step, Budget& budget) {
  RequireDefined(container);
  const bool sliceable = container.is(Kind::kString) || container.is_sequence(SequenceType::kList) ||
                         container.is_sequence(SequenceType::kTuple) || container.is_sequence(SequenceType::kRange);
  if (!sliceable) throw Error(ErrorCode::kInvalidArgument, "'" + TypeName(container) + "' object cannot be sliced");
  const SliceBounds slice = ResolveSlice(start, stop, step, Size(container));
  if (container.is(Kind::kString)) return SliceText(container, slice, budget);
  budget.Bytes(static_cast<uint64_t>(slice.count) * sizeof(Value));
  Value::Items items;
  items.reserve(static_cast<size_t>(slice.count));
  for (int64_t i = 0; i < slice.count; ++i) {
    items.push_back(container.items()[static_cast<size_t>(slice.start + i * slice.step)]);
  }
  return Value::MakeSequence(container.sequence().type, std::move(items));
}

Value MakeRange(int64_t start, int64_t stop, int64_t step, Budget& budget) {
  constexpr uint64_t kLongest = 100'000;
  const bool forward = step > 0;
  // Unsigned, so that the widest range does not overflow.
  const uint64_t span = forward == (start < stop) && start != stop
                            ? (forward ? static_cast<uint64_t>(stop) - static_cast<uint64_t>(start)
                                       : static_cast<uint64_t>(start) - static_cast<uint64_t>(stop))
                            : 0;
  const uint64_t stride = forward ? static_cast<uint64_t>(step) : uint64_t{0} - static_cast<uint64_t>(step);
  const uint64_t count = span == 0 ? 0 : (span - 1) / stride + 1;
  if (count > kLongest) {
    throw Error(ErrorCode::kOutOfRange,
                "a range of " + std::to_string(count) + " elements; the sandbox admits " + std::to_string(kLongest));
  }
  budget.Bytes(count * sizeof(Value));
  Value::Items items;
  items.reserve(count);
  for (uint64_t i = 0; i < count; ++i) items.push_back(Value::Int(start + static_cast<int64_t>(i) * step));
  const std::string repr = "range(" + std::to_string(start) + ", " + std::to_string(stop) +
                           (step == 1 ? "" : ", " + std::to_string(step)) + ")";
  return Value::MakeSequence(SequenceType::kRange, std::move(items), repr);
}

namespace {

void AppendRepr(const Value& value, Budget& budget, std::string* out);

void AppendJoined(const Value::Items& items, Budget& budget, std::string* out) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) *out += ", ";
    AppendRepr(items[i], budget, out);
  }
}

void AppendSequence(const Sequence& sequence, Budget& budget, std::string* out) {
  switch (sequence.type) {
    case SequenceType::kList:
      *out += '[';
      AppendJoined(sequence.items, budget, out);
      *out += ']';
      return;
    case SequenceType::kTuple:
      *out += '(';
      AppendJoined(sequence.items, budget, out);
      *out += sequence.items.size() == 1 ? ",)" : ")";
      return;
    case SequenceType::kRange:
      if (sequence.repr.empty()) throw Error(ErrorCode::kUnsupported, "a slice of a range has no text here");
      *out += sequence.repr;
      return;
    case SequenceType::kKeys:
    case SequenceType::kValues:
    case SequenceType::kItems:
      *out += sequence.type == SequenceType::kKeys     ? "dict_keys(["
              : sequence.type == SequenceType::kValues ? "dict_values(["
                                                       : "dict_items([";
      AppendJoined(sequence.items, budget, out);
      *out += "])";
      return;
  }
}

// Pays for what it writes as it goes: a value whose parts are shared may print as exponentially more text.
void AppendRepr(const Value& value, Budget& budget, std::string* out) {
  budget.Steps();
  switch (value.kind()) {
    case Kind::kString: {
      const std::string text = value.is_markup() ? "Markup(" + ReprOf(value) + ")" : ReprOf(value);
      budget.Bytes(text.size());
      *out += text;
      return;
    }
    case Kind::kSequence:
      AppendSequence(value.sequence(), budget, out);
      return;
    case Kind::kDict: {
      *out += '{';
      bool first = true;
      for (const auto& [key, element] : value.dict().entries) {
        if (!first) *out += ", ";
        first = false;
        AppendRepr(key, budget, out);
        *out += ": ";
        AppendRepr(element, budget, out);
      }
      *out += '}';
      return;
    }
    case Kind::kNone:
      *out += "None";
      return;
    case Kind::kUndefined:
      *out += "Undefined";
      return;
    case Kind::kBool:
      *out += value.as_bool() ? "True" : "False";
      return;
    case Kind::kInt:
      *out += std::to_string(value.as_int());
      return;
    case Kind::kFloat:
      *out += FloatRepr(value.as_double());
      return;
    case Kind::kIterator:
      throw Error(ErrorCode::kUnsupported, "a generator has no text that could be printed; put it through |list first");
    case Kind::kObject:
      *out += value.object()->Repr(budget);
      return;
  }
}

}  // namespace

std::string Repr(const Value& value, Budget& budget) {
  std::string text;
  AppendRepr(value, budget, &text);
  return text;
}

std::string ToText(const Value& value, Budget& budget) {
  if (value.is(Kind::kUndefined)) return {};
  if (!value.is(Kind::kString)) return Repr(value, budget);
  budget.Bytes(value.text().size());
  return value.text();
}

}  // namespace offgraph::llm::jinja
