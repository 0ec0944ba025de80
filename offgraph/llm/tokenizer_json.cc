#include "offgraph/llm/tokenizer_json.h"

#include <algorithm>
#include <limits>

#include "offgraph/llm/unicode.h"

namespace offgraph::llm {
namespace {

using nlohmann::json;

constexpr size_t kDeepest = 64;

// Receives the parser's events. Those below model.vocab and model.merges fill the tables, the others build the tree.
class Reader : public nlohmann::json_sax<json> {
 public:
  Reader(const std::string& name, TokenizerJson* out) : name_(name), out_(out) {}

  bool null() override { return Value(json(nullptr)); }
  bool boolean(bool value) override { return Value(json(value)); }
  bool number_integer(number_integer_t value) override {
    return part_ == Part::kVocabulary ? Fail("model.vocab", "the id of \"" + key_ + "\" is " + std::to_string(value))
                                      : Value(json(value));
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (part_ != Part::kVocabulary || depth_ != 1) return Value(json(value));
    if (value > static_cast<number_unsigned_t>(std::numeric_limits<int32_t>::max())) {
      return Fail("model.vocab", "the id of \"" + key_ + "\" is " + std::to_string(value) + ", above 2^31 - 1");
    }
    out_->vocabulary->Add(key_, static_cast<int32_t>(value));
    return true;
  }
  bool number_float(number_float_t value, const string_t& /*text*/) override { return Value(json(value)); }
  bool binary(binary_t& /*value*/) override { return false; }  // JSON text has none
  bool string(string_t& value) override {
    if (part_ != Part::kMerges) return Value(json(std::move(value)));
    if (depth_ == 2) {
      halves_.push_back(std::move(value));
      return halves_.size() <= 2 || FailMerge("has more than two parts");
    }
    // The first line of an old merges.txt.
    if (value.rfind("#version", 0) == 0) return true;
    const size_t space = value.find(' ');
    if (space == std::string::npos || value.find(' ', space + 1) != std::string::npos) {
      return FailMerge("is \"" + value + "\", not two parts with a space between them");
    }
    out_->merges.emplace_back(value.substr(0, space), value.substr(space + 1));
    return true;
  }
  bool key(string_t& value) override {
    key_ = std::move(value);
    return true;
  }

  bool start_object(size_t /*size*/) override { return Start(json::value_t::object); }
  bool start_array(size_t /*size*/) override { return Start(json::value_t::array); }
  bool end_object() override { return End(); }
  bool end_array() override {
    if (part_ == Part::kMerges && depth_ == 2) {
      if (halves_.size() != 2) return FailMerge("has " + std::to_string(halves_.size()) + " parts instead of two");
      out_->merges.emplace_back(std::move(halves_[0]), std::move(halves_[1]));
    }
    return End();
  }

  bool parse_error(size_t position, const std::string& last_token, const nlohmann::detail::exception& error) override {
    std::string message = error.what();
    // nlohmann's message begins with its own number and position.
    const size_t colon = message.find(": ");
    if (colon != std::string::npos) message.erase(0, colon + 2);
    throw Error(ErrorCode::kBadFile, name_ + ": not JSON at byte " + std::to_string(position) + " (" + message +
                                         (last_token.size() > 40 ? std::string() : "; read: " + last_token) + ")");
  }

 private:
  enum class Part { kTree, kVocabulary, kMerges };

  [[noreturn]] bool Fail(const std::string& place, const std::string& message) const {
    throw Error(ErrorCode::kBadFile, name_ + ": " + place + ": " + message);
  }
  [[noreturn]] bool FailMerge(const std::string& message) const {
    Fail("model.merges[" + std::to_string(out_->merges.size()) + "]", message);
  }

  bool Value(json value) {
    if (part_ == Part::kVocabulary) Fail("model.vocab", "the id of \"" + key_ + "\" is no integer");
    if (part_ == Part::kMerges) FailMerge("is neither a string nor a pair of strings");
    Place(std::move(value));
    return true;
  }

  // Puts a value where the parser is, and returns it there.
  json* Place(json value) {
    if (stack_.empty()) {
      out_->tree = std::make_unique<json>(std::move(value));
      return out_->tree.get();
    }
    json& parent = *stack_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    return &(parent[key_] = std::move(value));
  }

  // Whether the innermost open object is the file's "model".
  bool InModel() const {
    if (stack_.size() != 2 || !stack_[0]->is_object()) return false;
    const auto model = stack_[0]->find("model");
    return model != stack_[0]->end() && &*model == stack_[1];
  }

  bool Start(json::value_t type) {
    const bool is_array = type == json::value_t::array;
    if (part_ == Part::kVocabulary) Fail("model.vocab", "the id of \"" + key_ + "\" is no integer");
    if (part_ == Part::kMerges) {
      if (!is_array || depth_ != 1) FailMerge("is neither a string nor a pair of strings");
      halves_.clear();
      ++depth_;
      return true;
    }
    if (key_ == "vocab" && !is_array && InModel()) {
      part_ = Part::kVocabulary;
      out_->vocabulary = std::make_shared<Vocabulary>();
      depth_ = 1;
      return true;
    }
    if (key_ == "merges" && is_array && InModel()) {
      part_ = Part::kMerges;
      out_->merges.clear();
      depth_ = 1;
      return true;
    }
    if (stack_.size() >= kDeepest) {
      throw Error(ErrorCode::kBadFile, name_ + ": JSON nested deeper than " + std::to_string(kDeepest));
    }
    stack_.push_back(Place(json(type)));
    return true;
  }

  bool End() {
    if (part_ == Part::kTree) {
      stack_.pop_back();
    } else if (--depth_ == 0) {
      part_ = Part::kTree;
    }
    return true;
  }

  const std::string& name_;
  TokenizerJson* out_;
  std::vector<json*> stack_;  // the open objects and arrays of the tree
  std::string key_;
  Part part_ = Part::kTree;
  int depth_ = 0;                    // open objects and arrays within the vocabulary or the merges
  std::vector<std::string> halves_;  // of the merge that is being read
};

std::string TypeName(const json& value) { return std::string("a value of type ") + value.type_name(); }

}  // namespace

void JsonNode::Fail(ErrorCode code, const std::string& message) const { throw Error(code, place_ + ": " + message); }

void JsonNode::Unknown(const std::string& what, const std::string& name) const {
  Fail(ErrorCode::kUnsupported, what + " \"" + name + "\" is not supported");
}

std::string JsonNode::String() const {
  if (!value_->is_string()) Fail(ErrorCode::kBadFile, "expected a string, found " + TypeName(*value_));
  return value_->get<std::string>();
}

std::string JsonNode::Character() const {
  std::string text = String();
  if (text.empty() || text.size() != Utf8Length(static_cast<unsigned char>(text[0]))) {
    Fail(ErrorCode::kBadFile, "expected one character, found \"" + text + "\"");
  }
  return text;
}

bool JsonNode::Bool() const {
  if (!value_->is_boolean()) Fail(ErrorCode::kBadFile, "expected true or false, found " + TypeName(*value_));
  return value_->get<bool>();
}

int64_t JsonNode::Integer(int64_t most) const {
  if (!value_->is_number_unsigned() || value_->get<uint64_t>() > static_cast<uint64_t>(most)) {
    Fail(ErrorCode::kBadFile, "expected an integer from 0 to " + std::to_string(most) + ", found " +
                                  (value_->is_number() ? value_->dump() : TypeName(*value_)));
  }
  return value_->get<int64_t>();
}

std::vector<JsonNode> JsonNode::Items() const {
  if (!value_->is_array()) Fail(ErrorCode::kBadFile, "expected an array, found " + TypeName(*value_));
  std::vector<JsonNode> items;
  items.reserve(value_->size());
  for (size_t i = 0; i < value_->size(); ++i) {
    items.push_back(JsonNode((*value_)[i], place_ + "[" + std::to_string(i) + "]", "."));
  }
  return items;
}

const json& JsonNode::Object() const {
  if (!value_->is_object()) Fail(ErrorCode::kBadFile, "expected an object, found " + TypeName(*value_));
  return *value_;
}

bool JsonNode::IsZero() const { return value_->is_number() && value_->get<double>() == 0; }

std::optional<JsonNode> JsonNode::Find(std::string_view key) const {
  const auto found = Object().find(std::string(key));
  if (found == Object().end() || found->is_null()) return std::nullopt;
  return JsonNode(*found, std::string(place_).append(separator_).append(key), ".");
}

JsonNode JsonNode::At(std::string_view key) const {
  std::optional<JsonNode> node = Find(key);
  if (!node) Fail(ErrorCode::kBadFile, "the field \"" + std::string(key) + "\" is missing");
  return *std::move(node);
}

bool JsonNode::BoolOr(std::string_view key, bool otherwise) const {
  const std::optional<JsonNode> node = Find(key);
  return node ? node->Bool() : otherwise;
}

void JsonNode::AllowOnly(std::initializer_list<std::string_view> keys) const {
  for (const auto& item : Object().items()) {
    if (std::find(keys.begin(), keys.end(), item.key()) == keys.end()) Unknown("the field", item.key());
  }
}

TokenizerJson ReadTokenizerJson(std::string_view bytes, const std::string& name) {
  TokenizerJson result;
  Reader reader(name, &result);
  json::sax_parse(bytes.begin(), bytes.end(), &reader);
  return result;
}

}  // namespace offgraph::llm
