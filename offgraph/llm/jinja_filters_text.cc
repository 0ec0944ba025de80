// Filters on texts and numbers, and tojson. Definitions:
// https://jinja.palletsprojects.com/templates/#list-of-builtin-filters
#include <cmath>
#include <cstdio>
#include <string>

#include "offgraph/llm/jinja_filters.h"
#include "offgraph/llm/jinja_format.h"
#include "offgraph/llm/jinja_json.h"
#include "offgraph/llm/jinja_methods.h"
#include "offgraph/llm/jinja_operators.h"
#include "offgraph/llm/jinja_text.h"

namespace offgraph::llm::jinja {
namespace {

[[noreturn]] void Refuse(const std::string& message) { throw Error(ErrorCode::kInvalidArgument, message); }

// The input as text; markup stays markup (Jinja's soft_str).
Value SoftText(FilterCall& call) {
  if (call.input.is(Kind::kString)) return call.input;
  return Value::TrustedString(ToText(call.input, call.budget()));
}

const std::string& RequireText(const FilterCall& call) {
  RequireDefined(call.input);
  if (!call.input.is(Kind::kString)) {
    Refuse("the filter " + std::string(call.name) + " expects a text, not " + TypeName(call.input));
  }
  return call.input.text();
}

template <std::string (*convert)(std::string_view)>
Value Convert(FilterCall& call) {
  call.Bind({});
  const Value text = SoftText(call);
  call.budget().Steps(text.text().size() / 4);
  return call.runtime.Text(convert(text.text()), text.is_markup());
}

Value String(FilterCall& call) {
  call.Bind({});
  return SoftText(call);
}

Value Trim(FilterCall& call) {
  const Arguments arguments = call.Bind({"chars"});
  const Value text = SoftText(call);
  const std::optional<std::string_view> characters = arguments.OptionalText(0);
  call.budget().Steps((text.text().size() + (characters ? characters->size() : 0)) / 4);
  return call.runtime.Text(std::string(Strip(text.text(), Side::kBoth, characters)), text.is_markup());
}

Value Replace(FilterCall& call) {
  const Arguments arguments = call.Bind({"old", "new", "count"}, 2);
  const int64_t most = arguments[2].is(Kind::kNone) ? -1 : arguments.Int(2, -1);
  return ReplaceAll(call.runtime, ToText(call.input, call.budget()), ToText(arguments[0], call.budget()),
                    ToText(arguments[1], call.budget()), most < 0 ? kAllSplits : most);
}

Value Escape(FilterCall& call) {
  call.Bind({});
  if (call.input.is_markup()) return call.input;
  return call.runtime.Text(EscapeHtml(ToText(call.input, call.budget())), true);
}

Value Safe(FilterCall& call) {
  call.Bind({});
  return call.runtime.Text(ToText(call.input, call.budget()), true);
}

Value Indent(FilterCall& call) {
  const Arguments arguments = call.Bind({"width", "first", "blank"});
  const std::string& text = RequireText(call);
  if (call.input.is_markup()) {
    throw Error(ErrorCode::kUnsupported, "indent of text that went through |safe or |escape");
  }
  constexpr int64_t kDefaultWidth = 4;
  std::string indention;
  if (arguments[0].is(Kind::kString)) {
    indention = arguments[0].text();
  } else {
    const int64_t width = std::max<int64_t>(0, arguments.Int(0, kDefaultWidth));
    call.budget().Bytes(static_cast<uint64_t>(width));
    indention.assign(static_cast<size_t>(width), ' ');
  }
  const std::string terminated = text + "\n";
  std::string result = arguments.Bool(1, false) ? indention : "";
  bool first = true;
  for (const std::string_view line : SplitLines(terminated, false, call.budget())) {
    call.budget().Bytes(indention.size() + line.size() + 1);
    if (!first) {
      result += '\n';
      if (!line.empty() || arguments.Bool(2, false)) result += indention;
    }
    first = false;
    result += line;
  }
  return Value::TrustedString(std::move(result));
}

Value Truncate(FilterCall& call) {
  const Arguments arguments = call.Bind({"length", "killwords", "end", "leeway"});
  constexpr int64_t kDefaultLength = 255, kDefaultLeeway = 5;
  const std::string& text = RequireText(call);
  const int64_t length = arguments.Int(0, kDefaultLength), leeway = arguments.Int(3, kDefaultLeeway);
  const std::string end = arguments.Has(2) ? arguments.Text(2) : "...";
  const auto end_length = static_cast<int64_t>(Length(end));
  if (length < end_length || leeway < 0) Refuse("truncate: expected length >= " + std::to_string(end_length));
  if (static_cast<int64_t>(Length(text)) - leeway <= length) return call.input;
  std::string_view kept = std::string_view(text).substr(0, ByteOffset(text, static_cast<size_t>(length - end_length)));
  if (!arguments.Bool(1, false)) kept = kept.substr(0, std::min(kept.rfind(' '), kept.size()));
  return call.runtime.Text(std::string(kept) + end);
}

Value Center(FilterCall& call) {
  constexpr int64_t kDefaultWidth = 80;
  const Arguments arguments = call.Bind({"width"});
  CallArguments forwarded;
  forwarded.positional.push_back(Value::Int(arguments.Int(0, kDefaultWidth)));
  return CallMethod(call.runtime, SoftText(call), "center", std::move(forwarded));
}

Value WordCount(FilterCall& call) {
  call.Bind({});
  const Value text = SoftText(call);
  call.budget().Steps(text.text().size() / 4);
  return Value::Int(CountWords(text.text()));
}

Value Format(FilterCall& call) {
  CallArguments& arguments = call.arguments;
  if (!arguments.positional.empty() && !arguments.named.empty()) {
    Refuse("can't handle positional and keyword arguments at the same time");
  }
  const Value text = SoftText(call);
  const Value values =
      arguments.named.empty() ? Value::Tuple(std::move(arguments.positional)) : Value::Map(std::move(arguments.named));
  return Apply(BinaryOperator::kModulo, text, values, call.budget());
}

// ---- numbers

std::optional<int64_t> TruncateToInt(double value) {
  if (!std::isfinite(value)) return std::nullopt;
  if (!(std::abs(value) < 0x1p63)) throw Error(ErrorCode::kUnsupported, "an integer does not fit into 64 bits");
  return static_cast<int64_t>(value);
}

Value ToInt(FilterCall& call) {
  const Arguments arguments = call.Bind({"default", "base"});
  const Value& input = call.input;
  if (input.is(Kind::kUndefined)) RequireDefined(input);
  std::optional<int64_t> result;
  if (input.is_integral()) {
    result = input.as_int();
  } else if (input.is(Kind::kFloat)) {
    result = TruncateToInt(input.as_double());
  } else if (input.is(Kind::kString)) {
    const int64_t base = arguments.Int(1, 10);
    if (base != 0 && (base < 2 || base > 36)) Refuse("int() base must be >= 2 and <= 36, or 0");
    result = ParseInt(input.text(), static_cast<int>(base));
    if (!result) {
      const std::optional<double> number = ParseFloat(input.text());
      if (number) result = TruncateToInt(*number);
    }
  }
  if (result) return Value::Int(*result);
  return arguments.Has(0) ? arguments[0] : Value::Int(0);
}

Value ToFloat(FilterCall& call) {
  const Arguments arguments = call.Bind({"default"});
  RequireDefined(call.input);
  if (call.input.is_number()) return Value::Float(call.input.as_double());
  if (call.input.is(Kind::kString)) {
    if (const std::optional<double> number = ParseFloat(call.input.text())) return Value::Float(*number);
  }
  return arguments.Has(0) ? arguments[0] : Value::Float(0.0);
}

Value Absolute(FilterCall& call) {
  call.Bind({});
  RequireDefined(call.input);
  if (call.input.is_integral()) return ApplySign(call.input.as_int() < 0, Value::Int(call.input.as_int()));
  if (call.input.is(Kind::kFloat)) return Value::Float(std::abs(call.input.as_double()));
  Refuse("bad operand type for abs(): '" + TypeName(call.input) + "'");
}

// Python's round(value, digits): to the nearest decimal, of two the even one, from the exact binary value.
double RoundDecimal(double value, int64_t digits) {
  constexpr int64_t kMostDigits = 330;
  if (!std::isfinite(value) || digits > kMostDigits) return value;
  if (digits >= 0) {
    std::string text(static_cast<size_t>(std::snprintf(nullptr, 0, "%.*f", static_cast<int>(digits), value)) + 1, '\0');
    std::snprintf(text.data(), text.size(), "%.*f", static_cast<int>(digits), value);
    return std::strtod(text.c_str(), nullptr);
  }
  const double scale = std::pow(10.0, static_cast<double>(-std::max(digits, -kMostDigits)));
  return std::isinf(scale) ? std::copysign(0.0, value) : std::nearbyint(value / scale) * scale;
}

Value Round(FilterCall& call) {
  const Arguments arguments = call.Bind({"precision", "method"});
  const std::string method = arguments.Has(1) ? arguments.Text(1) : "common";
  if (method != "common" && method != "ceil" && method != "floor") Refuse("method must be common, ceil or floor");
  RequireDefined(call.input);
  if (!call.input.is_number()) Refuse("type " + TypeName(call.input) + " doesn't define __round__ method");
  const int64_t digits = arguments.Int(0, 0);
  if (method == "common") {
    if (call.input.is(Kind::kFloat)) return Value::Float(RoundDecimal(call.input.as_double(), digits));
    if (digits < 0) throw Error(ErrorCode::kUnsupported, "rounding an integer to tens");
    return Value::Int(call.input.as_int());
  }
  const double scale = std::pow(10.0, static_cast<double>(digits));
  const double scaled = call.input.as_double() * scale;
  return Value::Float((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

// ---- JSON

Value ToJsonFilter(FilterCall& call) {
  const Arguments arguments = call.Bind({"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = arguments.Bool(0, false);
  style.sort_keys = arguments.Bool(3, false);
  if (arguments[1].is(Kind::kString)) {
    style.indent = arguments[1].text();
  } else if (!arguments[1].is(Kind::kNone)) {
    const int64_t width = std::max<int64_t>(0, arguments.Int(1, 0));
    call.budget().Bytes(static_cast<uint64_t>(width));
    style.indent = std::string(static_cast<size_t>(width), ' ');
  }
  if (style.indent) style.item_separator = ",";
  if (!arguments[2].is(Kind::kNone)) {
    const Value::Items separators = Collect(arguments[2], call.budget());
    if (separators.size() != 2 || !separators[0].is(Kind::kString) || !separators[1].is(Kind::kString)) {
      Refuse("tojson: separators must be two texts");
    }
    style.item_separator = separators[0].text();
    style.key_separator = separators[1].text();
  }
  return Value::TrustedString(ToJson(call.input, style, call.budget()));
}

constexpr FilterEntry kTextFilters[] = {
    {"abs", Absolute},
    {"capitalize", Convert<Capitalize>},
    {"center", Center},
    {"e", Escape},
    {"escape", Escape},
    {"filesizeformat", nullptr},
    {"float", ToFloat},
    {"forceescape", nullptr},
    {"format", Format},
    {"indent", Indent},
    {"int", ToInt},
    {"lower", Convert<Lower>},
    {"pprint", nullptr},
    {"replace", Replace},
    {"round", Round},
    {"safe", Safe},
    {"string", String},
    {"striptags", nullptr},
    {"title", Convert<TitleWords>},
    {"tojson", ToJsonFilter},
    {"trim", Trim},
    {"truncate", Truncate},
    {"upper", Convert<Upper>},
    {"urlencode", nullptr},
    {"urlize", nullptr},
    {"wordcount", WordCount},
    {"wordwrap", nullptr},
    {"xmlattr", nullptr},
};

}  // namespace

std::span<const FilterEntry> TextFilters() { return kTextFilters; }

}  // namespace offgraph::llm::jinja
