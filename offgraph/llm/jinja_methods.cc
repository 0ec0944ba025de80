#include "offgraph/llm/jinja_methods.h"

#include <algorithm>
#include <array>
#include <span>

#include "offgraph/llm/jinja_format.h"
#include "offgraph/llm/jinja_operators.h"
#include "offgraph/llm/jinja_text.h"
#include "offgraph/llm/unicode.h"

namespace offgraph::llm::jinja {
namespace {

[[noreturn]] void Refuse(const std::string& message) { throw Error(ErrorCode::kInvalidArgument, message); }

// One call of a method.
struct MethodCall {
  Runtime& runtime;
  std::string_view name;
  const Value& self;
  CallArguments arguments;

  const std::string& text() const { return self.text(); }
  Arguments Bind(std::initializer_list<std::string_view> parameters, size_t required = 0) {
    return Arguments(name, std::move(arguments), parameters, required);
  }
  void BindNothing() { RefuseArguments(name, std::move(arguments)); }
  // A result that is markup where the text is.
  Value Like(std::string result) const { return runtime.Text(std::move(result), self.is_markup()); }
  Value Texts(const std::vector<std::string_view>& parts) const {
    Value::Items items;
    items.reserve(parts.size());
    for (const std::string_view part : parts) items.push_back(Like(std::string(part)));
    return runtime.List(std::move(items));
  }
  // Python's Markup escapes the arguments of this method.
  void RefuseMarkup() const {
    if (self.is_markup()) {
      throw Error(ErrorCode::kUnsupported, std::string(name) + "() of text that went through |safe or |escape");
    }
  }
};

using Method = Value (*)(MethodCall&);

template <Side side>
Value StripText(MethodCall& call) {
  const Arguments arguments = call.Bind({"chars"});
  const std::optional<std::string_view> characters = arguments.OptionalText(0);
  call.runtime.budget().Steps((call.text().size() + (characters ? characters->size() : 0)) / 4);
  return call.Like(std::string(Strip(call.text(), side, characters)));
}

template <bool from_right>
Value SplitText(MethodCall& call) {
  const Arguments arguments = call.Bind({"sep", "maxsplit"});
  const std::optional<std::string_view> separator = arguments.OptionalText(0);
  if (separator && separator->empty()) Refuse("empty separator");
  const int64_t most = arguments.Int(1, -1);
  return call.Texts(Split(call.text(), separator, most < 0 ? kAllSplits : most, from_right, call.runtime.budget()));
}

Value SplitTextLines(MethodCall& call) {
  const Arguments arguments = call.Bind({"keepends"});
  return call.Texts(SplitLines(call.text(), arguments.Bool(0, false), call.runtime.budget()));
}

// (before, separator, after)
template <bool from_right>
Value Partition(MethodCall& call) {
  const Arguments arguments = call.Bind({"sep"}, 1);
  const std::string& separator = arguments.Text(0);
  if (separator.empty()) Refuse("empty separator");
  const std::string& text = call.text();
  call.runtime.budget().Bytes(text.size());
  const size_t found = from_right ? FindLast(text, separator) : Find(text, separator);
  std::array<std::string, 3> parts;
  if (found != std::string::npos) {
    parts = {text.substr(0, found), separator, text.substr(found + separator.size())};
  } else {
    parts[from_right ? 2 : 0] = text;
  }
  return Value::Tuple({call.Like(parts[0]), call.Like(parts[1]), call.Like(parts[2])});
}

// The part of the text that the arguments `start` and `end` admit, and the byte it begins at.
std::string_view Window(const MethodCall& call, const Arguments& arguments, size_t* begin) {
  const std::string_view text = call.text();
  if (arguments[1].is(Kind::kNone) && arguments[2].is(Kind::kNone)) return text;
  call.runtime.budget().Bytes(text.size());
  const auto length = static_cast<int64_t>(Length(text));
  const auto bound = [&](size_t i, int64_t absent) {
    if (arguments[i].is(Kind::kNone)) return absent;
    const int64_t index = arguments.Int(i, absent);
    return std::clamp<int64_t>(index < 0 ? index + length : index, 0, length);
  };
  const int64_t start = bound(1, 0), end = std::max(start, bound(2, length));
  *begin = ByteOffset(text, static_cast<size_t>(start));
  return text.substr(*begin, ByteOffset(text, static_cast<size_t>(end)) - *begin);
}

template <bool at_end>
Value Affix(MethodCall& call) {
  const Arguments arguments = call.Bind({at_end ? "suffix" : "prefix", "start", "end"}, 1);
  size_t begin = 0;
  const std::string_view text = Window(call, arguments, &begin);
  const auto matches = [&](const Value& affix) {
    if (!affix.is(Kind::kString)) {
      Refuse(std::string(call.name) + "() expects a text or a tuple of texts, not " + TypeName(affix));
    }
    call.runtime.budget().Bytes(affix.text().size());
    return at_end ? text.ends_with(affix.text()) : text.starts_with(affix.text());
  };
  if (!arguments[0].is_sequence(SequenceType::kTuple)) return Value::Bool(matches(arguments[0]));
  call.runtime.budget().Steps(arguments[0].items().size());
  return Value::Bool(std::any_of(arguments[0].items().begin(), arguments[0].items().end(), matches));
}

template <bool at_end>
Value RemoveAffix(MethodCall& call) {
  const Arguments arguments = call.Bind({at_end ? "suffix" : "prefix"}, 1);
  const std::string& affix = arguments.Text(0);
  std::string_view text = call.text();
  if (at_end && text.ends_with(affix)) text.remove_suffix(affix.size());
  if (!at_end && text.starts_with(affix)) text.remove_prefix(affix.size());
  return call.Like(std::string(text));
}

enum class Missing { kMinusOne, kError };

template <bool from_right, Missing missing>
Value FindText(MethodCall& call) {
  const Arguments arguments = call.Bind({"sub", "start", "end"}, 1);
  size_t begin = 0;
  const std::string_view text = Window(call, arguments, &begin);
  call.runtime.budget().Bytes(text.size());
  const std::string& part = arguments.Text(0);
  const size_t found = from_right ? FindLast(text, part) : Find(text, part);
  if (found == std::string_view::npos) {
    if (missing == Missing::kError) Refuse("substring not found");
    return Value::Int(-1);
  }
  return Value::Int(static_cast<int64_t>(Length(std::string_view(call.text()).substr(0, begin + found))));
}

Value CountText(MethodCall& call) {
  const Arguments arguments = call.Bind({"sub", "start", "end"}, 1);
  size_t begin = 0;
  const std::string_view text = Window(call, arguments, &begin);
  call.runtime.budget().Bytes(text.size());
  Occurrences occurrences(text, arguments.Text(0));
  int64_t count = 0;
  for (; occurrences.Next(); ++count) call.runtime.budget().Steps();
  return Value::Int(count);
}

Value ReplaceText(MethodCall& call) {
  call.RefuseMarkup();
  const Arguments arguments = call.Bind({"old", "new", "count"}, 2);
  const int64_t most = arguments.Int(2, -1);
  return ReplaceAll(call.runtime, call.text(), arguments.Text(0), arguments.Text(1), most < 0 ? kAllSplits : most);
}

Value JoinText(MethodCall& call) {
  call.RefuseMarkup();
  const Arguments arguments = call.Bind({"iterable"}, 1);
  std::string result;
  bool first = true;
  for (const Value& item : Collect(arguments[0], call.runtime.budget())) {
    if (!item.is(Kind::kString)) Refuse("join() expects texts, not " + TypeName(item));
    call.runtime.budget().Bytes(item.text().size() + call.text().size());
    if (!first) result += call.text();
    first = false;
    result += item.text();
  }
  return call.runtime.Text(std::move(result));
}

Value FormatMethod(MethodCall& call) {
  call.RefuseMarkup();
  return call.runtime.Text(BraceFormat(call.runtime, call.text(), call.arguments));
}

template <std::string (*convert)(std::string_view)>
Value ConvertText(MethodCall& call) {
  call.BindNothing();
  call.runtime.budget().Steps(call.text().size() / 4);
  return call.Like(convert(call.text()));
}

// Whether the text has characters, and `has` says yes to all.
template <bool (*has)(char32_t)>
Value AllCharacters(MethodCall& call) {
  call.BindNothing();
  const std::string& text = call.text();
  call.runtime.budget().Steps(text.size() / 4);
  for (size_t pos = 0; pos < text.size();) {
    if (!has(NextCodePoint(text, &pos))) return Value::Bool(false);
  }
  return Value::Bool(!text.empty());
}

bool IsAlphanumeric(char32_t c) { return IsAlpha(c) || IsDigit(c) || IsNumeric(c); }

template <bool upper>
Value TestCase(MethodCall& call) {
  call.BindNothing();
  call.runtime.budget().Steps(call.text().size() / 4);
  return Value::Bool(IsCased(call.text(), upper));
}

Value IsAsciiText(MethodCall& call) {
  call.BindNothing();
  return Value::Bool(std::all_of(call.text().begin(), call.text().end(), [](char c) { return (c & 0x80) == 0; }));
}

// ljust, rjust and center.
template <Side text_side>
Value Justify(MethodCall& call) {
  call.RefuseMarkup();
  const Arguments arguments = call.Bind({"width", "fillchar"}, 1);
  const std::string fill = arguments.Has(1) ? arguments.Text(1) : " ";
  if (Length(fill) != 1) Refuse("The fill character must be exactly one character long");
  const int64_t missing = std::max<int64_t>(0, arguments.Int(0, 0) - Size(call.self));
  call.runtime.budget().Bytes(static_cast<uint64_t>(missing) * fill.size());
  int64_t left = 0;
  if (text_side == Side::kRight) left = missing;
  // CPython puts the odd one to the left where the width is odd.
  if (text_side == Side::kBoth) left = missing / 2 + (missing & arguments.Int(0, 0) & 1);
  std::string result;
  for (int64_t i = 0; i < left; ++i) result += fill;
  result += call.text();
  for (int64_t i = left; i < missing; ++i) result += fill;
  return call.runtime.Text(std::move(result));
}

Value FillZeros(MethodCall& call) {
  const Arguments arguments = call.Bind({"width"}, 1);
  const int64_t missing = std::max<int64_t>(0, arguments.Int(0, 0) - Size(call.self));
  call.runtime.budget().Bytes(static_cast<uint64_t>(missing));
  const std::string& text = call.text();
  const size_t sign = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
  return call.Like(text.substr(0, sign) + std::string(static_cast<size_t>(missing), '0') + text.substr(sign));
}

Value IndexOfItem(MethodCall& call) {
  const Arguments arguments = call.Bind({"value"}, 1);
  const Value::Items& items = call.self.items();
  for (size_t i = 0; i < items.size(); ++i) {
    if (Equals(items[i], arguments[0], call.runtime.budget())) return Value::Int(static_cast<int64_t>(i));
  }
  Refuse(Repr(arguments[0], call.runtime.budget()) + " is not in the " + TypeName(call.self));
}

Value CountItems(MethodCall& call) {
  const Arguments arguments = call.Bind({"value"}, 1);
  int64_t count = 0;
  for (const Value& item : call.self.items()) count += Equals(item, arguments[0], call.runtime.budget()) ? 1 : 0;
  return Value::Int(count);
}

// What cannot be changed need not be copied.
Value CopyContainer(MethodCall& call) {
  call.BindNothing();
  return call.self;
}

Value GetFromDict(MethodCall& call) {
  const Arguments arguments = call.Bind({"key", "default"}, 1);
  PayForKey(arguments[0], call.runtime.budget());
  const Value* found = call.self.dict().Find(arguments[0]);
  return found != nullptr ? *found : arguments[1];
}

template <SequenceType type>
Value DictView(MethodCall& call) {
  call.BindNothing();
  const Value::Entries& entries = call.self.dict().entries;
  call.runtime.budget().Bytes(entries.size() * sizeof(Value) * (type == SequenceType::kItems ? 4 : 1));
  Value::Items items;
  items.reserve(entries.size());
  for (const auto& [key, value] : entries) {
    items.push_back(type == SequenceType::kKeys     ? key
                    : type == SequenceType::kValues ? value
                                                    : Value::Tuple({key, value}));
  }
  return Value::MakeSequence(type, std::move(items));
}

struct MethodEntry {
  std::string_view name;
  Method method;  // nullptr: Python has it, this does not
  bool unsafe = false;
  bool keywords = false;  // whether its arguments may be named
};

constexpr MethodEntry kTextMethods[] = {
    {"capitalize", ConvertText<Capitalize>},
    {"casefold", nullptr},
    {"center", Justify<Side::kBoth>},
    {"count", CountText},
    {"encode", nullptr},
    {"endswith", Affix<true>},
    {"expandtabs", nullptr},
    {"find", FindText<false, Missing::kMinusOne>},
    {"format", FormatMethod, false, true},
    {"format_map", nullptr},
    {"index", FindText<false, Missing::kError>},
    {"isalnum", AllCharacters<IsAlphanumeric>},
    {"isalpha", AllCharacters<IsAlpha>},
    {"isascii", IsAsciiText},
    {"isdecimal", AllCharacters<IsDecimal>},
    {"isdigit", AllCharacters<IsDigit>},
    {"isidentifier", nullptr},
    {"islower", TestCase<false>},
    {"isnumeric", nullptr},
    {"isprintable", nullptr},
    {"isspace", AllCharacters<IsSpace>},
    {"istitle", nullptr},
    {"isupper", TestCase<true>},
    {"join", JoinText},
    {"ljust", Justify<Side::kLeft>},
    {"lower", ConvertText<Lower>},
    {"lstrip", StripText<Side::kLeft>},
    {"maketrans", nullptr},
    {"partition", Partition<false>},
    {"removeprefix", RemoveAffix<false>},
    {"removesuffix", RemoveAffix<true>},
    {"replace", ReplaceText},
    {"rfind", FindText<true, Missing::kMinusOne>},
    {"rindex", FindText<true, Missing::kError>},
    {"rjust", Justify<Side::kRight>},
    {"rpartition", Partition<true>},
    {"rsplit", SplitText<true>, false, true},
    {"rstrip", StripText<Side::kRight>},
    {"split", SplitText<false>, false, true},
    {"splitlines", SplitTextLines, false, true},
    {"startswith", Affix<false>},
    {"strip", StripText<Side::kBoth>},
    {"swapcase", nullptr},
    {"title", ConvertText<Title>},
    {"translate", nullptr},
    {"upper", ConvertText<Upper>},
    {"zfill", FillZeros},
};

constexpr MethodEntry kListMethods[] = {
    {"append", nullptr, true}, {"clear", nullptr, true},   {"copy", CopyContainer},   {"count", CountItems},
    {"extend", nullptr, true}, {"index", IndexOfItem},     {"insert", nullptr, true}, {"pop", nullptr, true},
    {"remove", nullptr, true}, {"reverse", nullptr, true}, {"sort", nullptr, true},
};

constexpr MethodEntry kTupleMethods[] = {{"count", CountItems}, {"index", IndexOfItem}};

constexpr MethodEntry kDictMethods[] = {
    {"clear", nullptr, true},
    {"copy", CopyContainer},
    {"fromkeys", nullptr},
    {"get", GetFromDict},
    {"items", DictView<SequenceType::kItems>},
    {"keys", DictView<SequenceType::kKeys>},
    {"pop", nullptr, true},
    {"popitem", nullptr, true},
    {"setdefault", nullptr, true},
    {"update", nullptr, true},
    {"values", DictView<SequenceType::kValues>},
};

constexpr MethodEntry kNumberMethods[] = {
    {"as_integer_ratio", nullptr}, {"conjugate", nullptr},  {"imag", nullptr}, {"numerator", nullptr},
    {"denominator", nullptr},      {"is_integer", nullptr}, {"real", nullptr}, {"bit_length", nullptr},
};

std::span<const MethodEntry> MethodsOf(const Value& self) {
  switch (self.kind()) {
    case Kind::kString:
      return kTextMethods;
    case Kind::kDict:
      return kDictMethods;
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat:
      return kNumberMethods;
    case Kind::kSequence:
      if (self.is_sequence(SequenceType::kList)) return kListMethods;
      if (self.is_sequence(SequenceType::kTuple) || self.is_sequence(SequenceType::kRange)) return kTupleMethods;
      return {};
    default:
      return {};
  }
}

const MethodEntry* FindEntry(const Value& self, std::string_view name) {
  for (const MethodEntry& entry : MethodsOf(self)) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

class BoundMethod final : public Object {
 public:
  BoundMethod(Value self, std::string_view name) : self_(std::move(self)), name_(name) {}

  std::string_view type_name() const override { return "builtin_function_or_method"; }
  bool callable() const override { return true; }
  Value Call(Runtime& runtime, CallArguments&& arguments) override {
    return CallMethod(runtime, self_, name_, std::move(arguments));
  }

 private:
  Value self_;
  std::string name_;
};

}  // namespace

MethodAccess FindMethod(const Value& self, std::string_view name) {
  const MethodEntry* entry = FindEntry(self, name);
  if (entry == nullptr) return MethodAccess::kAbsent;
  return entry->unsafe ? MethodAccess::kUnsafe : MethodAccess::kAllowed;
}

Value CallMethod(Runtime& runtime, const Value& self, std::string_view name, CallArguments arguments) {
  const MethodEntry* entry = FindEntry(self, name);
  if (entry == nullptr || entry->method == nullptr) {
    throw Error(ErrorCode::kUnsupported, "the method " + TypeName(self) + "." + std::string(name) + "()");
  }
  if (!entry->keywords && !arguments.named.empty()) {
    Refuse(TypeName(self) + "." + std::string(name) + "() takes no keyword arguments");
  }
  MethodCall call{runtime, entry->name, self, std::move(arguments)};
  return entry->method(call);
}

Value BindMethod(Runtime& runtime, const Value& self, std::string_view name) {
  return Value::FromObject(runtime.Make<BoundMethod>(self, name));
}

Value ReplaceAll(Runtime& runtime, std::string_view text, std::string_view old, std::string_view replacement,
                 int64_t most) {
  runtime.budget().Bytes(text.size());
  Occurrences occurrences(text, old);
  std::string result;
  size_t pos = 0;
  for (int64_t count = 0; count < most; ++count) {
    const std::optional<size_t> place = occurrences.Next();
    if (!place) break;
    runtime.budget().Steps();
    runtime.budget().Bytes(replacement.size());
    result += text.substr(pos, *place - pos);
    result += replacement;
    pos = *place + old.size();
  }
  result += text.substr(pos);
  return Value::TrustedString(std::move(result));
}

}  // namespace offgraph::llm::jinja
