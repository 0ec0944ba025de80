#include "offgraph/llm/jinja_value.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "offgraph/cache/error.h"
#include "offgraph/llm/unicode.h"

namespace offgraph::llm::jinja {
namespace {

int Deepen(int depth) {
  if (depth >= kMaxNesting) {
    throw Error(ErrorCode::kOutOfRange, "a value nests deeper than " + std::to_string(kMaxNesting) + " containers");
  }
  return depth + 1;
}

int DepthOf(const Value::Items& items) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  return Deepen(depth);
}

constexpr size_t kLongestTupleKey = 1 << 16;

void AppendTextKey(std::string_view key, std::string* out) {
  *out += 's' + std::to_string(key.size()) + ':';
  *out += key;
}

// A string that is equal for keys that Python holds for equal, and for no others.
void AppendDictKey(const Value& key, std::string* out) {
  switch (key.kind()) {
    case Kind::kNone:
      *out += 'n';
      return;
    case Kind::kBool:
    case Kind::kInt:
      *out += 'i' + std::to_string(key.as_int()) + ';';
      return;
    case Kind::kFloat: {
      const double value = key.as_double();
      if (value == std::floor(value) && std::abs(value) < 0x1p63) {
        *out += 'i' + std::to_string(static_cast<int64_t>(value)) + ';';
      } else {
        *out += 'f' + std::to_string(std::bit_cast<uint64_t>(value)) + ';';
      }
      return;
    }
    case Kind::kString:
      AppendTextKey(key.text(), out);
      return;
    case Kind::kSequence:
      if (!key.is_sequence(SequenceType::kTuple)) break;
      *out += '(';
      for (const Value& item : key.items()) {
        // A tuple whose parts are shared may be exponentially longer than it looks.
        if (out->size() > kLongestTupleKey) throw Error(ErrorCode::kOutOfRange, "a tuple is too large for a key");
        AppendDictKey(item, out);
      }
      *out += ')';
      return;
    default:
      break;
  }
  throw Error(ErrorCode::kInvalidArgument, "a value of this type cannot be the key of a dict");
}

std::string DictKey(const Value& key) {
  std::string result;
  AppendDictKey(key, &result);
  return result;
}

}  // namespace

Value Value::String(std::string_view text) {
  if (!IsValidUtf8(text)) throw Error(ErrorCode::kInvalidArgument, "a text is not valid UTF-8");
  return TrustedString(std::string(text));
}

Value Value::TrustedString(std::string text, bool markup) {
  return Value(Rep(std::make_shared<const Text>(Text{std::move(text), markup})));
}

Value Value::Undefined(std::string message) {
  return Value(Rep(UndefinedText{std::make_shared<const std::string>(std::move(message))}));
}

Value Value::MakeSequence(SequenceType type, Items items, std::string repr) {
  const int depth = DepthOf(items);
  return Value(Rep(std::make_shared<const Sequence>(Sequence{type, std::move(items), std::move(repr), depth, false})));
}

Value Value::List(Items items) { return MakeSequence(SequenceType::kList, std::move(items)); }

Value Value::Tuple(Items items) { return MakeSequence(SequenceType::kTuple, std::move(items)); }

Value Value::MakeIterator(Items items) {
  const int depth = DepthOf(items);
  return Value(Rep(std::make_shared<Iterator>(Iterator{std::move(items), 0, depth})));
}

Value Value::MakeGroup(Value grouper, Value list) {
  Items items = {std::move(grouper), std::move(list)};
  const int depth = DepthOf(items);
  return Value(
      Rep(std::make_shared<const Sequence>(Sequence{SequenceType::kTuple, std::move(items), {}, depth, true})));
}

Value Value::Map(Entries&& entries) {
  auto dict = std::make_shared<Dict>();
  int depth = 0;
  for (auto& [key, value] : entries) {
    depth = std::max({depth, key.depth(), value.depth()});
    const auto [place, added] = dict->index.emplace(DictKey(key), dict->entries.size());
    if (added) {
      dict->entries.emplace_back(std::move(key), std::move(value));
    } else {
      dict->entries[place->second].second = std::move(value);
    }
  }
  dict->depth = Deepen(depth);
  return Value(Rep(std::shared_ptr<const Dict>(std::move(dict))));
}

Value Value::Map(std::vector<std::pair<std::string, Value>>&& entries) {
  Entries converted;
  converted.reserve(entries.size());
  for (auto& [key, value] : entries) converted.emplace_back(String(key), std::move(value));
  return Map(std::move(converted));
}

bool Value::is_sequence(SequenceType type) const { return is(Kind::kSequence) && sequence().type == type; }

const Value::Items& Value::items() const { return sequence().items; }

const std::string& Value::undefined_message() const { return *std::get<UndefinedText>(rep_).message; }

const Value* Value::Find(std::string_view key) const {
  if (!is(Kind::kDict)) return nullptr;
  std::string text_key;
  AppendTextKey(key, &text_key);
  const auto found = dict().index.find(text_key);
  return found == dict().index.end() ? nullptr : &dict().entries[found->second].second;
}

bool Value::Truthy() const {
  switch (kind()) {
    case Kind::kNone:
    case Kind::kUndefined:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return as_int() != 0;
    case Kind::kFloat:
      return as_double() != 0.0;
    case Kind::kString:
      return !text().empty();
    case Kind::kSequence:
      return !items().empty();
    case Kind::kDict:
      return !dict().entries.empty();
    case Kind::kIterator:
    case Kind::kObject:
      return true;
  }
  return false;
}

bool Value::Same(const Value& other) const {
  if (kind() != other.kind()) return false;
  switch (kind()) {
    case Kind::kNone:
      return true;
    case Kind::kBool:
    case Kind::kInt:
      return as_int() == other.as_int();
    case Kind::kFloat:
      return as_double() == other.as_double();
    case Kind::kString:
      return text() == other.text();
    case Kind::kUndefined:
      return &undefined_message() == &other.undefined_message();
    case Kind::kSequence:
      return &sequence() == &other.sequence();
    case Kind::kDict:
      return &dict() == &other.dict();
    case Kind::kIterator:
      return &iterator() == &other.iterator();
    case Kind::kObject:
      return object() == other.object();
  }
  return false;
}

int Value::depth() const {
  switch (kind()) {
    case Kind::kSequence:
      return sequence().depth;
    case Kind::kDict:
      return dict().depth;
    case Kind::kIterator:
      return iterator().depth;
    default:
      return 0;
  }
}

const Value* Dict::Find(const Value& key) const {
  const auto found = index.find(DictKey(key));
  return found == index.end() ? nullptr : &entries[found->second].second;
}

}  // namespace offgraph::llm::jinja
