#include "offgraph/llm/jinja_json.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "offgraph/cache/error.h"
#include "offgraph/llm/jinja_operators.h"
#include "offgraph/llm/jinja_text.h"
#include "offgraph/llm/unicode.h"

namespace offgraph::llm::jinja {
namespace {

void AppendEscape(char32_t c, std::string* out) {
  const auto append_unit = [&](unsigned unit) {
    std::array<char, 16> buffer;
    std::snprintf(buffer.data(), buffer.size(), "\\u%04x", unit);
    *out += buffer.data();
  };
  if (c < 0x10000) {
    append_unit(static_cast<unsigned>(c));
  } else {
    const auto offset = static_cast<unsigned>(c - 0x10000);
    append_unit(0xD800 + (offset >> 10));
    append_unit(0xDC00 + (offset & 0x3FF));
  }
}

std::string QuoteJson(std::string_view text, bool ensure_ascii) {
  std::string result = "\"";
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    const char32_t c = NextCodePoint(text, &pos);
    switch (c) {
      case '"':
        result += "\\\"";
        break;
      case '\\':
        result += "\\\\";
        break;
      case '\n':
        result += "\\n";
        break;
      case '\r':
        result += "\\r";
        break;
      case '\t':
        result += "\\t";
        break;
      case '\f':
        result += "\\f";
        break;
      case '\b':
        result += "\\b";
        break;
      default:
        if (c < 0x20 || (ensure_ascii && c > 0x7E)) {
          AppendEscape(c, &result);
        } else {
          result += text.substr(begin, pos - begin);
        }
    }
  }
  return result + '"';
}

std::string FloatToJson(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  return FloatRepr(value);
}

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, Budget& budget) : style_(style), budget_(budget) {}

  std::string Run(const Value& value) {
    Write(value, 0);
    return std::move(out_);
  }

 private:
  void Append(std::string_view text) {
    budget_.Bytes(text.size());
    out_ += text;
  }

  void NewLine(int level) {
    if (!style_.indent) return;
    Append("\n");
    for (int i = 0; i < level; ++i) Append(*style_.indent);
  }

  void Write(const Value& value, int level) {
    budget_.Steps();
    switch (value.kind()) {
      case Kind::kString:
        Append(QuoteJson(value.text(), style_.ensure_ascii));
        return;
      case Kind::kNone:
      case Kind::kBool:
      case Kind::kInt:
      case Kind::kFloat:
        Append(Scalar(value));
        return;
      case Kind::kSequence:
        if (!value.is_sequence(SequenceType::kList) && !value.is_sequence(SequenceType::kTuple)) break;
        WriteList(value.items(), level);
        return;
      case Kind::kDict:
        WriteDict(value.dict().entries, level);
        return;
      default:
        break;
    }
    throw Error(ErrorCode::kInvalidArgument, "Object of type " + TypeName(value) + " is not JSON serializable");
  }

  static std::string Scalar(const Value& value) {
    if (value.is(Kind::kNone)) return "null";
    if (value.is(Kind::kBool)) return value.as_bool() ? "true" : "false";
    if (value.is(Kind::kInt)) return std::to_string(value.as_int());
    return FloatToJson(value.as_double());
  }

  void WriteList(const Value::Items& items, int level) {
    if (items.empty()) return Append("[]");
    Append("[");
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) Append(style_.item_separator);
      NewLine(level + 1);
      Write(items[i], level + 1);
    }
    NewLine(level);
    Append("]");
  }

  void WriteDict(Value::Entries entries, int level) {
    if (entries.empty()) return Append("{}");
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(),
                       [&](const auto& a, const auto& b) { return Less(a.first, b.first, budget_); });
    }
    Append("{");
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) Append(style_.item_separator);
      NewLine(level + 1);
      const Value& key = entries[i].first;
      if (key.is(Kind::kSequence)) {
        throw Error(ErrorCode::kInvalidArgument, "keys must be str, int, float, bool or None, not tuple");
      }
      Append(QuoteJson(key.is(Kind::kString) ? key.text() : Scalar(key), style_.ensure_ascii));
      Append(style_.key_separator);
      Write(entries[i].second, level + 1);
    }
    NewLine(level);
    Append("}");
  }

  const JsonStyle& style_;
  Budget& budget_;
  std::string out_;
};

// Builds values from nlohmann's events: its own tree would lose the order of keys and the size of integers.
class ValueBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit ValueBuilder(WideIntegers wide) : wide_(wide) {}

  bool null() override { return Add(Value()); }
  bool boolean(bool value) override { return Add(Value::Bool(value)); }
  bool number_integer(number_integer_t value) override { return Add(Value::Int(value)); }
  // Integers beyond 64 bits become floating: tokenizer_config.json has a model_max_length of 10^30 in many models.
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<number_unsigned_t>(INT64_MAX)) return AddWide(static_cast<double>(value));
    return Add(Value::Int(static_cast<int64_t>(value)));
  }
  bool number_float(number_float_t value, const string_t& text) override {
    return text.find_first_of(".eE") == string_t::npos ? AddWide(value) : Add(Value::Float(value));
  }
  bool string(string_t& text) override { return Add(Value::TrustedString(std::move(text))); }
  bool binary(binary_t& /*bytes*/) override { return false; }
  bool start_object(std::size_t /*size*/) override { return Open(); }
  bool start_array(std::size_t /*size*/) override { return Open(); }
  bool key(string_t& text) override {
    open_.back().keys.push_back(Value::TrustedString(std::move(text)));
    return true;
  }
  bool end_object() override {
    Level level = Close();
    Value::Entries entries;
    entries.reserve(level.keys.size());
    for (size_t i = 0; i < level.keys.size(); ++i) {
      entries.emplace_back(std::move(level.keys[i]), std::move(level.values[i]));
    }
    return Add(Value::Map(std::move(entries)));
  }
  bool end_array() override { return Add(Value::List(Close().values)); }
  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::json::exception& error) override {
    throw Error(ErrorCode::kBadFile, "not JSON, at byte " + std::to_string(position) + ": " + error.what());
  }

  Value Take() { return std::move(result_); }

 private:
  struct Level {
    Value::Items keys;  // of an object
    Value::Items values;
  };

  [[noreturn]] static void Refuse(const std::string& what) { throw Error(ErrorCode::kBadFile, "JSON: " + what); }

  bool Open() {
    if (open_.size() + 1 >= static_cast<size_t>(kMaxNesting)) {
      Refuse("it nests deeper than " + std::to_string(kMaxNesting) + " levels");
    }
    open_.emplace_back();
    return true;
  }

  Level Close() {
    Level level = std::move(open_.back());
    open_.pop_back();
    return level;
  }

  bool AddWide(double value) {
    if (wide_ == WideIntegers::kRefuse) Refuse("an integer near " + FloatRepr(value) + " does not fit into 64 bits");
    return Add(Value::Float(value));
  }

  bool Add(Value value) {
    if (open_.empty()) {
      result_ = std::move(value);
    } else {
      open_.back().values.push_back(std::move(value));
    }
    return true;
  }

  WideIntegers wide_;
  std::vector<Level> open_;
  Value result_;
};

}  // namespace

std::string ToJson(const Value& value, const JsonStyle& style, Budget& budget) {
  return JsonWriter(style, budget).Run(value);
}

Value ParseJson(std::string_view text, WideIntegers wide) {
  ValueBuilder builder(wide);
  nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  return builder.Take();
}

}  // namespace offgraph::llm::jinja
