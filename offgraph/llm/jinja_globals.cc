#include "offgraph/llm/jinja_globals.h"

#include <array>
#include <cstdio>

#include "offgraph/llm/jinja_operators.h"
#include "offgraph/llm/jinja_text.h"

namespace offgraph::llm::jinja {
namespace {

[[noreturn]] void Refuse(const std::string& message) { throw Error(ErrorCode::kInvalidArgument, message); }

class Function final : public Object {
 public:
  using Body = Value (*)(Runtime& runtime, CallArguments&& arguments);
  explicit Function(Body body) : body_(body) {}

  std::string_view type_name() const override { return "function"; }
  bool callable() const override { return true; }
  Value Call(Runtime& runtime, CallArguments&& arguments) override { return body_(runtime, std::move(arguments)); }

 private:
  Body body_;
};

// cycler(a, b): goes round its values, one at each next().
class Cycler final : public Object {
 public:
  explicit Cycler(Value::Items items) : items_(std::move(items)) {}

  std::string_view type_name() const override { return "Cycler"; }
  std::optional<Value> Attribute(Runtime& runtime, std::string_view name) override;

  Value Next() {
    Value result = items_[position_];
    position_ = (position_ + 1) % items_.size();
    return result;
  }
  void Reset() { position_ = 0; }

 private:
  Value::Items items_;
  size_t position_ = 0;
};

class CyclerMethod final : public Object {
 public:
  CyclerMethod(Cycler* cycler, bool reset) : cycler_(cycler), reset_(reset) {}

  std::string_view type_name() const override { return "method"; }
  bool callable() const override { return true; }
  Value Call(Runtime& /*runtime*/, CallArguments&& arguments) override {
    RefuseArguments(reset_ ? "reset" : "next", std::move(arguments));
    if (!reset_) return cycler_->Next();
    cycler_->Reset();
    return {};
  }

 private:
  Cycler* cycler_;
  bool reset_;
};

std::optional<Value> Cycler::Attribute(Runtime& runtime, std::string_view name) {
  if (name == "current") return items_[position_];
  if (name == "items") return Value::Tuple(items_);
  if (name == "pos") return Value::Int(static_cast<int64_t>(position_));
  if (name == "next" || name == "reset") return Value::FromObject(runtime.Make<CyclerMethod>(this, name == "reset"));
  return std::nullopt;
}

// joiner(", "): empty at the first call, the separator at all others.
class Joiner final : public Object {
 public:
  explicit Joiner(Value separator) : separator_(std::move(separator)) {}

  std::string_view type_name() const override { return "Joiner"; }
  bool callable() const override { return true; }
  Value Call(Runtime& /*runtime*/, CallArguments&& arguments) override {
    RefuseArguments("joiner", std::move(arguments));
    return std::exchange(used_, true) ? separator_ : Value::TrustedString("");
  }
  std::optional<Value> Attribute(Runtime& /*runtime*/, std::string_view name) override {
    if (name == "sep") return separator_;
    if (name == "used") return Value::Bool(used_);
    return std::nullopt;
  }

 private:
  Value separator_;
  bool used_ = false;
};

Value Range(Runtime& runtime, CallArguments&& arguments) {
  const bool only_stop = arguments.positional.size() == 1;
  const Arguments bound("range", std::move(arguments), {"start", "stop", "step"}, 1);
  const int64_t step = bound.Int(2, 1);
  if (step == 0) Refuse("range() arg 3 must not be zero");
  if (only_stop) return MakeRange(0, bound.Int(0, 0), 1, runtime.budget());
  return MakeRange(bound.Int(0, 0), bound.Int(1, 0), step, runtime.budget());
}

// dict(mapping or pairs, name=value, ...)
Value::Entries DictEntries(Runtime& runtime, CallArguments&& arguments) {
  if (arguments.positional.size() > 1) Refuse("dict expected at most 1 argument");
  Value::Entries entries;
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    RequireDefined(source);
    if (source.is(Kind::kDict)) {
      entries = source.dict().entries;
    } else {
      for (const Value& pair : Collect(source, runtime.budget())) {
        const Value::Items parts = Collect(pair, runtime.budget());
        if (parts.size() != 2)
          Refuse("dict() expects pairs; an element has " + std::to_string(parts.size()) + " parts");
        entries.emplace_back(parts[0], parts[1]);
      }
    }
  }
  for (auto& [name, value] : arguments.named) entries.emplace_back(Value::TrustedString(name), std::move(value));
  runtime.budget().Bytes(entries.size() * sizeof(Value::Entries::value_type));
  return entries;
}

Value MakeDict(Runtime& runtime, CallArguments&& arguments) {
  return Value::Map(DictEntries(runtime, std::move(arguments)));
}

Value MakeNamespace(Runtime& runtime, CallArguments&& arguments) {
  auto* result = runtime.Make<Namespace>();
  for (const auto& [name, value] : DictEntries(runtime, std::move(arguments))) {
    if (!name.is(Kind::kString)) Refuse("the attributes of a namespace are texts, not " + TypeName(name));
    result->Set(runtime.budget(), name.text(), value);
  }
  return Value::FromObject(result);
}

Value MakeCycler(Runtime& runtime, CallArguments&& arguments) {
  if (arguments.positional.empty() || !arguments.named.empty()) Refuse("at least one item has to be provided");
  return Value::FromObject(runtime.Make<Cycler>(std::move(arguments.positional)));
}

Value MakeJoiner(Runtime& runtime, CallArguments&& arguments) {
  const Arguments bound("joiner", std::move(arguments), {"sep"});
  return Value::FromObject(runtime.Make<Joiner>(bound.Has(0) ? bound[0] : Value::TrustedString(", ")));
}

Value RaiseException(Runtime& runtime, CallArguments&& arguments) {
  const Arguments bound("raise_exception", std::move(arguments), {"message"}, 1);
  Refuse(ToText(bound[0], runtime.budget()));
}

Value StrftimeNow(Runtime& runtime, CallArguments&& arguments) {
  const Arguments bound("strftime_now", std::move(arguments), {"format"}, 1);
  runtime.budget().Steps(bound.Text(0).size());
  return runtime.Text(FormatTime(bound.Text(0), runtime.now()));
}

Value Lipsum(Runtime& /*runtime*/, CallArguments&& /*arguments*/) {
  throw Error(ErrorCode::kUnsupported, "the function lipsum makes random text and is not supported");
}

}  // namespace

std::optional<Value> MakeGlobal(Runtime& runtime, std::string_view name) {
  struct Entry {
    std::string_view name;
    Function::Body body;
  };
  static constexpr Entry kGlobals[] = {
      {"range", Range},
      {"dict", MakeDict},
      {"namespace", MakeNamespace},
      {"cycler", MakeCycler},
      {"joiner", MakeJoiner},
      {"raise_exception", RaiseException},
      {"strftime_now", StrftimeNow},
      {"lipsum", Lipsum},
  };
  for (const Entry& entry : kGlobals) {
    if (entry.name == name) return Value::FromObject(runtime.Make<Function>(entry.body));
  }
  return std::nullopt;
}

std::optional<Value> Namespace::Attribute(Runtime& /*runtime*/, std::string_view name) {
  for (const auto& [key, value] : attributes_) {
    if (key == name) return value;
  }
  return std::nullopt;
}

void Namespace::Set(Budget& budget, std::string_view name, Value value) {
  if (name.starts_with('_')) {
    Refuse("Chat templates cannot store underscore-prefixed attributes on a namespace, but got " + TextRepr(name));
  }
  budget.Steps(attributes_.size());
  for (auto& [key, stored] : attributes_) {
    if (key != name) continue;
    stored = std::move(value);
    return;
  }
  budget.Bytes(name.size() + sizeof(attributes_[0]));
  attributes_.emplace_back(name, std::move(value));
}

std::string Namespace::Repr(Budget& budget) const {
  if (printing_) return "<Namespace {...}>";
  printing_ = true;
  std::string text = "<Namespace {";
  for (const auto& [name, value] : attributes_) {
    if (text.back() != '{') text += ", ";
    text += TextRepr(name) + ": " + jinja::Repr(value, budget);
  }
  printing_ = false;
  return text + "}>";
}

std::string FormatTime(std::string_view format, const std::tm& time) {
  static constexpr std::array<std::string_view, 12> kMonths = {"January",   "February", "March",    "April",
                                                               "May",       "June",     "July",     "August",
                                                               "September", "October",  "November", "December"};
  static constexpr std::array<std::string_view, 7> kDays = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                                            "Thursday", "Friday", "Saturday"};
  const auto number = [](int value, int width) {
    std::array<char, 16> buffer;
    std::snprintf(buffer.data(), buffer.size(), "%0*d", width, value);
    return std::string(buffer.data());
  };
  const std::string_view month = kMonths[static_cast<size_t>(time.tm_mon) % kMonths.size()];
  const std::string_view day = kDays[static_cast<size_t>(time.tm_wday) % kDays.size()];
  const int hour12 = time.tm_hour % 12 == 0 ? 12 : time.tm_hour % 12;
  std::string result;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      result += format[i];
      continue;
    }
    // "%-d" is glibc's way to write a number without padding.
    const bool bare = i + 1 < format.size() && format[i + 1] == '-';
    if (bare) ++i;
    const int two = bare ? 1 : 2;
    const char conversion = ++i < format.size() ? format[i] : '\0';
    switch (conversion) {
      case 'Y':
        result += number(time.tm_year + 1900, 1);
        break;
      case 'y':
        result += number(time.tm_year % 100, two);
        break;
      case 'm':
        result += number(time.tm_mon + 1, two);
        break;
      case 'd':
        result += number(time.tm_mday, two);
        break;
      case 'j':
        result += number(time.tm_yday + 1, bare ? 1 : 3);
        break;
      case 'H':
        result += number(time.tm_hour, two);
        break;
      case 'I':
        result += number(hour12, two);
        break;
      case 'M':
        result += number(time.tm_min, two);
        break;
      case 'S':
        result += number(time.tm_sec, two);
        break;
      case 'p':
        result += time.tm_hour < 12 ? "AM" : "PM";
        break;
      case 'B':
        result += month;
        break;
      case 'b':
      case 'h':
        result += month.substr(0, 3);
        break;
      case 'A':
        result += day;
        break;
      case 'a':
        result += day.substr(0, 3);
        break;
      case 'F':
        result += FormatTime("%Y-%m-%d", time);
        break;
      case 'T':
        result += FormatTime("%H:%M:%S", time);
        break;
      case '%':
        result += '%';
        break;
      default:
        throw Error(ErrorCode::kUnsupported,
                    "strftime_now: the conversion '%" + std::string(1, conversion) + "' is not supported");
    }
  }
  return result;
}

}  // namespace offgraph::llm::jinja
