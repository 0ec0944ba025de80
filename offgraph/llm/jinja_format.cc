#include "offgraph/llm/jinja_format.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <vector>

#include "offgraph/llm/jinja_operators.h"
#include "offgraph/llm/jinja_text.h"
#include "offgraph/llm/unicode.h"

namespace offgraph::llm::jinja {
namespace {

[[noreturn]] void Refuse(const std::string& message) { throw Error(ErrorCode::kInvalidArgument, message); }

// How one value is laid out: [[fill]align][sign][#][0][width][,][.precision][type]
struct Spec {
  std::string fill = " ";
  char align = 0;  // '<', '>', '^', '='; 0: that of the type
  char sign = '-';
  bool alternate = false;
  char grouping = 0;
  int64_t width = 0;
  int64_t precision = -1;
  char type = 0;
};

// Widths and precisions are bounded: printing a million digits takes long.
constexpr int64_t kMostCharacters = 100'000;

int64_t CheckCount(int64_t count) {
  if (count > kMostCharacters || count < -kMostCharacters) {
    throw Error(ErrorCode::kOutOfRange,
                "a format asks for more than " + std::to_string(kMostCharacters) + " characters");
  }
  return count;
}

// Reads digits at format[*pos].
int64_t ReadNumber(std::string_view format, size_t* pos, int64_t absent) {
  if (*pos >= format.size() || format[*pos] < '0' || format[*pos] > '9') return absent;
  int64_t value = 0;
  while (*pos < format.size() && format[*pos] >= '0' && format[*pos] <= '9') {
    value = value * 10 + (format[(*pos)++] - '0');
    CheckCount(value);
  }
  return value;
}

// Pads `body`, whose first `prefix` bytes (sign, 0x) stay in front of zeros.
std::string Pad(const std::string& body, size_t prefix, const Spec& spec, char default_align, Budget& budget) {
  const int64_t missing = spec.width - static_cast<int64_t>(Length(body));
  if (missing <= 0) return body;
  budget.Bytes(static_cast<uint64_t>(missing) * spec.fill.size());
  const auto fill = [&](int64_t count) {
    std::string result;
    for (int64_t i = 0; i < count; ++i) result += spec.fill;
    return result;
  };
  switch (spec.align != 0 ? spec.align : default_align) {
    case '<':
      return body + fill(missing);
    case '^':
      return fill(missing / 2) + body + fill(missing - missing / 2);
    case '=':
      return body.substr(0, prefix) + fill(missing) + body.substr(prefix);
    default:
      return fill(missing) + body;
  }
}

std::string GroupThousands(const std::string& digits, char separator) {
  const size_t whole = std::min(digits.find_first_not_of("0123456789"), digits.size());
  std::string result;
  for (size_t i = 0; i < whole; ++i) {
    if (i > 0 && (whole - i) % 3 == 0) result += separator;
    result += digits[i];
  }
  return result + digits.substr(whole);
}

std::string SignOf(bool negative, const Spec& spec) {
  if (negative) return "-";
  return spec.sign == '-' ? std::string() : std::string(1, spec.sign);
}

std::string FormatInt(int64_t value, const Spec& spec, Budget& budget) {
  const uint64_t magnitude = value < 0 ? uint64_t{0} - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  int base = 10;
  std::string mark;
  switch (spec.type) {
    case 'x':
    case 'X':
      base = 16;
      mark = spec.type == 'x' ? "0x" : "0X";
      break;
    case 'o':
      base = 8;
      mark = "0o";
      break;
    case 'b':
      base = 2;
      mark = "0b";
      break;
    default:
      break;
  }
  std::array<char, 72> buffer;
  const auto written = std::to_chars(buffer.data(), buffer.data() + buffer.size(), magnitude, base);
  std::string digits(buffer.data(), written.ptr);
  if (spec.type == 'X') digits = Upper(digits);
  if (spec.grouping != 0 && base == 10) digits = GroupThousands(digits, spec.grouping);
  const std::string prefix = SignOf(value < 0, spec) + (spec.alternate ? mark : "");
  return Pad(prefix + digits, prefix.size(), spec, '>', budget);
}

std::string FormatFloat(double value, const Spec& spec, Budget& budget) {
  const bool negative = std::signbit(value) && !std::isnan(value);
  const double magnitude = std::abs(value);
  std::string digits;
  if (!std::isfinite(value)) {
    digits = std::isnan(value) ? "nan" : "inf";
  } else if (spec.type == 0 && spec.precision < 0) {
    digits = FloatRepr(magnitude);
  } else {
    constexpr int64_t kDefaultPrecision = 6;
    const bool percent = spec.type == '%';
    const char type = percent ? 'f' : spec.type == 0 ? 'g' : spec.type;
    const auto precision = static_cast<int>(spec.precision < 0 ? kDefaultPrecision : spec.precision);
    const std::string pattern = std::string("%") + (spec.alternate ? "#" : "") + ".*" + type;
    const double shown = percent ? magnitude * 100.0 : magnitude;
    const int length = std::snprintf(nullptr, 0, pattern.c_str(), precision, shown);
    budget.Bytes(static_cast<uint64_t>(length));
    digits.resize(static_cast<size_t>(length) + 1);
    std::snprintf(digits.data(), digits.size(), pattern.c_str(), precision, shown);
    digits.pop_back();
    // Without a type Python's result always looks like a float.
    if (spec.type == 0 && digits.find_first_of(".e") == std::string::npos) digits += ".0";
    if (percent) digits += '%';
  }
  if (spec.type == 'F' || spec.type == 'E' || spec.type == 'G') digits = Upper(digits);
  if (spec.grouping != 0) digits = GroupThousands(digits, spec.grouping);
  const std::string prefix = SignOf(negative, spec);
  return Pad(prefix + digits, prefix.size(), spec, '>', budget);
}

std::string FormatText(std::string text, const Spec& spec, Budget& budget) {
  if (spec.precision >= 0) text.resize(ByteOffset(text, static_cast<size_t>(spec.precision)));
  return Pad(text, 0, spec, '<', budget);
}

bool IsOneOf(char c, std::string_view set) { return c != 0 && set.find(c) != std::string_view::npos; }

}  // namespace

// ---- "..." % values

namespace {

class PercentFormatter {
 public:
  PercentFormatter(std::string_view format, const Value& values, Budget& budget)
      : format_(format), values_(values), budget_(budget) {}

  std::string Run() {
    std::string result;
    while (pos_ < format_.size()) {
      const size_t mark = std::min(format_.find('%', pos_), format_.size());
      result += format_.substr(pos_, mark - pos_);
      pos_ = mark + 1;
      if (mark < format_.size()) result += Field();
      budget_.Bytes(result.size() - paid_);
      paid_ = result.size();
    }
    const bool is_tuple = values_.is_sequence(SequenceType::kTuple);
    const bool all_used = is_tuple ? next_ == values_.items().size() : next_ > 0;
    if (!all_used && !values_.is(Kind::kDict) && !(is_tuple && values_.items().empty())) {
      Refuse("not all arguments converted during string formatting");
    }
    return result;
  }

 private:
  Value Next() {
    if (values_.is_sequence(SequenceType::kTuple)) {
      if (next_ >= values_.items().size()) Refuse("not enough arguments for format string");
      return values_.items()[next_++];
    }
    if (next_++ > 0) Refuse("not enough arguments for format string");
    return values_;
  }

  int64_t Star() {
    ++pos_;
    const Value value = Next();
    if (!value.is_integral()) Refuse("* wants int");
    return CheckCount(value.as_int());
  }

  std::string Field() {
    std::optional<Value> named;
    if (pos_ < format_.size() && format_[pos_] == '(') {
      const size_t close = format_.find(')', pos_);
      if (close == std::string_view::npos) Refuse("incomplete format key");
      if (!values_.is(Kind::kDict)) Refuse("format requires a mapping");
      const std::string_view key = format_.substr(pos_ + 1, close - pos_ - 1);
      const Value* value = values_.Find(key);
      if (value == nullptr) Refuse("the format asks for '" + std::string(key) + "', which is not given");
      named = *value;
      pos_ = close + 1;
    }
    Spec spec;
    bool zeros = false;
    for (; pos_ < format_.size() && IsOneOf(format_[pos_], "-+ #0"); ++pos_) {
      const char flag = format_[pos_];
      if (flag == '-') spec.align = '<';
      if (flag == '+' || (flag == ' ' && spec.sign == '-')) spec.sign = flag;
      if (flag == '#') spec.alternate = true;
      if (flag == '0') zeros = true;
    }
    const auto number = [&](int64_t absent) {
      return pos_ < format_.size() && format_[pos_] == '*' ? Star() : ReadNumber(format_, &pos_, absent);
    };
    spec.width = number(0);
    if (spec.width < 0) {
      spec.align = '<';
      spec.width = -spec.width;
    }
    if (pos_ < format_.size() && format_[pos_] == '.') {
      ++pos_;
      spec.precision = std::max<int64_t>(number(0), 0);
    }
    if (pos_ >= format_.size()) Refuse("incomplete format");
    spec.type = format_[pos_++];
    if (spec.type == '%') return "%";
    return Convert(named ? *named : Next(), zeros, spec);
  }

  std::string Convert(const Value& value, bool zeros, Spec spec) {
    const auto pad_zeros = [&] {
      if (!zeros || spec.align == '<') return;
      spec.fill = "0";
      spec.align = '=';
    };
    if (IsOneOf(spec.type, "sra")) {
      if (spec.type == 'a') throw Error(ErrorCode::kUnsupported, "the conversion %a");
      if (spec.align == 0) spec.align = '>';
      return FormatText(spec.type == 's' ? ToText(value, budget_) : Repr(value, budget_), spec, budget_);
    }
    if (spec.type == 'c') {
      if (spec.align == 0) spec.align = '>';
      return FormatText(Character(value), spec, budget_);
    }
    if (IsOneOf(spec.type, "diuxXo")) {
      RequireDefined(value);
      const bool decimal = IsOneOf(spec.type, "diu");
      if (!value.is_integral() && !(decimal && value.is(Kind::kFloat))) {
        Refuse(std::string("%") + spec.type + " format: a number is required, not " + TypeName(value));
      }
      pad_zeros();
      if (spec.precision >= 0) throw Error(ErrorCode::kUnsupported, "a precision for whole numbers");
      if (value.is(Kind::kFloat) && !(std::abs(value.as_double()) < 0x1p63)) Refuse("cannot convert to an integer");
      return FormatInt(value.is(Kind::kFloat) ? static_cast<int64_t>(value.as_double()) : value.as_int(), spec,
                       budget_);
    }
    if (IsOneOf(spec.type, "fFeEgG")) {
      RequireDefined(value);
      if (!value.is_number()) Refuse("must be real number, not " + TypeName(value));
      pad_zeros();
      return FormatFloat(value.as_double(), spec, budget_);
    }
    Refuse("unsupported format character '" + std::string(1, spec.type) + "'");
  }

  static std::string Character(const Value& value) {
    if (value.is(Kind::kString) && Length(value.text()) == 1) return value.text();
    const bool valid = value.is_integral() && value.as_int() >= 0 && value.as_int() < 0x110000 &&
                       !(value.as_int() >= 0xD800 && value.as_int() < 0xE000);
    if (!valid) Refuse("%c requires int or char");
    std::string text;
    AppendUtf8(static_cast<char32_t>(value.as_int()), &text);
    return text;
  }

  std::string_view format_;
  const Value& values_;
  Budget& budget_;
  size_t pos_ = 0;
  size_t next_ = 0;
  size_t paid_ = 0;
};

}  // namespace

std::string PercentFormat(std::string_view format, const Value& values, Budget& budget) {
  return PercentFormatter(format, values, budget).Run();
}

// ---- "...".format(values)

namespace {

Spec ParseSpec(std::string_view text) {
  Spec spec;
  size_t pos = 0;
  if (!text.empty()) {
    const size_t fill_length = Utf8Length(static_cast<unsigned char>(text[0]));
    if (fill_length < text.size() && IsOneOf(text[fill_length], "<>^=")) {
      spec.fill = text.substr(0, fill_length);
      spec.align = text[fill_length];
      pos = fill_length + 1;
    } else if (IsOneOf(text[0], "<>^=")) {
      spec.align = text[pos++];
    }
  }
  const auto take = [&](std::string_view set) {
    return pos < text.size() && IsOneOf(text[pos], set) ? text[pos++] : '\0';
  };
  if (const char sign = take("+- ")) spec.sign = sign;
  spec.alternate = take("#") != 0;
  if (take("0") != 0 && spec.align == 0) {
    spec.fill = "0";
    spec.align = '=';
  }
  spec.width = ReadNumber(text, &pos, 0);
  spec.grouping = take(",_");
  if (take(".") != 0) {
    spec.precision = ReadNumber(text, &pos, -1);
    if (spec.precision < 0) Refuse("Format specifier missing precision");
  }
  if (pos < text.size()) spec.type = text[pos++];
  if (pos != text.size()) Refuse("Invalid format specifier '" + std::string(text) + "'");
  return spec;
}

std::string FormatWithSpec(const Value& value, std::string_view text, Budget& budget) {
  if (text.empty()) return ToText(value, budget);
  Spec spec = ParseSpec(text);
  const auto unknown = [&] {
    Refuse("Unknown format code '" + std::string(1, spec.type) + "' for object of type '" + TypeName(value) + "'");
  };
  if (value.is(Kind::kString)) {
    if (spec.type != 0 && spec.type != 's') unknown();
    if (spec.align == '=' && spec.fill == "0") spec.align = '<';
    if (spec.align == '=') Refuse("'=' alignment not allowed in string format specifier");
    return FormatText(value.text(), spec, budget);
  }
  if (value.is(Kind::kBool) && spec.type == 0) {
    throw Error(ErrorCode::kUnsupported, "a format specifier for a boolean");
  }
  if (value.is_integral() && (spec.type == 0 || IsOneOf(spec.type, "dxXobn"))) {
    if (spec.precision >= 0) Refuse("Precision not allowed in integer format specifier");
    return FormatInt(value.as_int(), spec, budget);
  }
  if (value.is_number()) {
    if (spec.type != 0 && !IsOneOf(spec.type, "eEfFgG%")) unknown();
    return FormatFloat(value.as_double(), spec, budget);
  }
  RequireDefined(value);
  Refuse("unsupported format string passed to " + TypeName(value) + ".__format__");
}

class BraceFormatter {
 public:
  BraceFormatter(Runtime& runtime, const CallArguments& arguments) : runtime_(runtime), arguments_(arguments) {}

  std::string Run(std::string_view format, int depth) {
    if (depth > 1) Refuse("Max string recursion exceeded");
    std::string result;
    for (size_t pos = 0; pos < format.size();) {
      const size_t brace = std::min(format.find_first_of("{}", pos), format.size());
      result += format.substr(pos, brace - pos);
      pos = brace + 1;
      if (brace == format.size()) break;
      if (pos < format.size() && format[pos] == format[brace]) {
        result += format[pos++];
        continue;
      }
      if (format[brace] == '}') Refuse("Single '}' encountered in format string");
      result += Field(format, &pos, depth);
      runtime_.budget().Bytes(result.size() - std::min(result.size(), brace));
    }
    return result;
  }

 private:
  // The replacement field that begins behind format[*pos - 1] == '{'.
  std::string Field(std::string_view format, size_t* pos, int depth) {
    const size_t begin = *pos;
    int open = 1;
    while (*pos < format.size() && open > 0) {
      if (format[*pos] == '{') ++open;
      if (format[*pos] == '}') --open;
      ++*pos;
    }
    if (open > 0) Refuse("expected '}' before end of string");
    const std::string_view field = format.substr(begin, *pos - 1 - begin);
    const size_t name_end = std::min(field.find_first_of("!:"), field.size());
    std::string_view rest = field.substr(name_end);
    Value value = Lookup(field.substr(0, name_end));
    if (rest.starts_with('!')) {
      const char conversion = rest.size() > 1 ? rest[1] : '\0';
      if (conversion == 'r') {
        value = runtime_.Text(Repr(value, runtime_.budget()));
      } else if (conversion == 's') {
        value = runtime_.Text(ToText(value, runtime_.budget()));
      } else {
        Refuse("Unknown conversion specifier '" + std::string(1, conversion) + "'");
      }
      rest.remove_prefix(2);
      if (!rest.empty() && rest[0] != ':') Refuse("expected ':' after conversion specifier");
    }
    const std::string spec = rest.empty() ? std::string() : Run(rest.substr(1), depth + 1);
    return FormatWithSpec(value, spec, runtime_.budget());
  }

  Value Lookup(std::string_view name) {
    const size_t first_end = std::min(name.find_first_of(".["), name.size());
    Value value = First(name.substr(0, first_end));
    for (size_t pos = first_end; pos < name.size();) {
      if (name[pos] == '.') {
        const size_t end = std::min(name.find_first_of(".[", pos + 1), name.size());
        value = GetAttribute(runtime_, value, name.substr(pos + 1, end - pos - 1));
        pos = end;
      } else {
        const size_t close = name.find(']', pos);
        if (name[pos] != '[' || close == std::string_view::npos) Refuse("Missing ']' in format string");
        const std::string_view key = name.substr(pos + 1, close - pos - 1);
        const bool number = !key.empty() && key.find_first_not_of("0123456789") == std::string_view::npos;
        value = GetItem(runtime_, value,
                        number ? Value::Int(ParseInt(key).value_or(0)) : Value::TrustedString(std::string(key)));
        pos = close + 1;
      }
    }
    return value;
  }

  Value First(std::string_view name) {
    const bool number = name.find_first_not_of("0123456789") == std::string_view::npos;
    if (!number) {
      for (const auto& [key, value] : arguments_.named) {
        if (key == name) return value;
      }
      Refuse("format() is missing its argument '" + std::string(name) + "'");
    }
    if (automatic_ && *automatic_ != name.empty()) {
      Refuse("cannot switch between automatic and manual field numbering");
    }
    automatic_ = name.empty();
    const size_t index = name.empty() ? next_++ : static_cast<size_t>(ParseInt(name).value_or(0));
    if (index >= arguments_.positional.size()) {
      Refuse("Replacement index " + std::to_string(index) + " out of range for positional args tuple");
    }
    return arguments_.positional[index];
  }

  Runtime& runtime_;
  const CallArguments& arguments_;
  std::optional<bool> automatic_;
  size_t next_ = 0;
};

}  // namespace

std::string BraceFormat(Runtime& runtime, std::string_view format, const CallArguments& arguments) {
  return BraceFormatter(runtime, arguments).Run(format, 0);
}

}  // namespace offgraph::llm::jinja
