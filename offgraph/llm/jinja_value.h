// Values of the template language: Python's, as far as templates see them, and JSON's.
//
// A Value is small, cheap to copy and immutable (strings and containers are shared); the exceptions are iterators,
// which are used up, and objects, which belong to one rendering. Values of the kinds that JSON has may be shared
// between threads and outlive everything; the others never leave a rendering.
//
// Invariants:
//  1. Strings are valid UTF-8. Lengths and indices count code points, as Python's do.
//  2. Containers nest at most kMaxNesting deep, so that recursion over a value is safe.
//  3. Dicts keep the order of insertion. Keys that are equal in Python (1, 1.0, True) are one key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace offgraph::llm::jinja {

class Value;
class Object;  // what has behaviour: functions, namespaces, loops (jinja_runtime.h)

inline constexpr int kMaxNesting = 200;

enum class Kind { kNone, kUndefined, kBool, kInt, kFloat, kString, kSequence, kDict, kIterator, kObject };

// Text, and whether it counts as HTML that is escaped already (Python's Markup, the result of |safe and |escape).
struct Text {
  std::string text;
  bool markup = false;
};

// What Python shows as list, tuple, range, dict.keys(), dict.values() and dict.items().
enum class SequenceType { kList, kTuple, kRange, kKeys, kValues, kItems };

struct Sequence;
struct Dict;

// A generator: its elements can be taken once.
struct Iterator {
  std::vector<Value> items;
  size_t position = 0;
  int depth = 1;
};

class Value {
 public:
  using Items = std::vector<Value>;
  using Entries = std::vector<std::pair<Value, Value>>;

  Value() = default;  // None, JSON's null

  static Value Bool(bool value) { return Value(Rep(value)); }
  static Value Int(int64_t value) { return Value(Rep(value)); }
  static Value Float(double value) { return Value(Rep(value)); }
  // Throws kInvalidArgument for bytes that are not UTF-8.
  static Value String(std::string_view text);
  // Containers throw kOutOfRange where they would nest deeper than kMaxNesting.
  static Value List(Items items);
  // Of equal keys the last value counts, in the place of the first. Throws kInvalidArgument for a key that cannot be
  // one (a list or dict).
  static Value Map(Entries&& entries);
  static Value Map(std::vector<std::pair<std::string, Value>>&& entries);

  // The rest is for the interpreter.
  static Value Undefined(std::string message);                        // using it is an error with this message
  static Value TrustedString(std::string text, bool markup = false);  // REQUIRES: valid UTF-8
  static Value Tuple(Items items);
  static Value MakeSequence(SequenceType type, Items items, std::string repr = {});
  static Value MakeIterator(Items items);
  // A tuple (grouper, list) whose parts also have these names.
  static Value MakeGroup(Value grouper, Value list);
  static Value FromObject(Object* object) { return Value(Rep(object)); }  // does not own it

  Kind kind() const { return static_cast<Kind>(rep_.index()); }
  bool is(Kind kind) const { return this->kind() == kind; }
  bool is_sequence(SequenceType type) const;
  bool is_number() const { return is(Kind::kBool) || is(Kind::kInt) || is(Kind::kFloat); }
  // Bool or Int: what Python takes as an index.
  bool is_integral() const { return is(Kind::kBool) || is(Kind::kInt); }

  // REQUIRES: the kind.
  bool as_bool() const { return std::get<bool>(rep_); }
  int64_t as_int() const { return is(Kind::kBool) ? static_cast<int64_t>(as_bool()) : std::get<int64_t>(rep_); }
  double as_double() const { return is(Kind::kFloat) ? std::get<double>(rep_) : static_cast<double>(as_int()); }
  const std::string& text() const { return std::get<std::shared_ptr<const Text>>(rep_)->text; }
  bool is_markup() const { return is(Kind::kString) && std::get<std::shared_ptr<const Text>>(rep_)->markup; }
  const Sequence& sequence() const { return *std::get<std::shared_ptr<const Sequence>>(rep_); }
  const Items& items() const;  // of a sequence
  const Dict& dict() const { return *std::get<std::shared_ptr<const Dict>>(rep_); }
  Iterator& iterator() const { return *std::get<std::shared_ptr<Iterator>>(rep_); }
  Object* object() const { return std::get<Object*>(rep_); }
  const std::string& undefined_message() const;

  // The value at a string key of a dict; nullptr where there is none, or this is no dict.
  const Value* Find(std::string_view key) const;
  // Python's bool(). An iterator is true, as a generator is.
  bool Truthy() const;
  // Whether both are one object, Python's `is`: None, True and False are, equal numbers and strings count as such.
  bool Same(const Value& other) const;
  // Nesting: 0 for what is no container.
  int depth() const;

 private:
  struct UndefinedText {
    std::shared_ptr<const std::string> message;
  };
  // In the order of Kind.
  using Rep =
      std::variant<std::monostate, UndefinedText, bool, int64_t, double, std::shared_ptr<const Text>,
                   std::shared_ptr<const Sequence>, std::shared_ptr<const Dict>, std::shared_ptr<Iterator>, Object*>;
  explicit Value(Rep rep) : rep_(std::move(rep)) {}

  Rep rep_;
};

struct Sequence {
  SequenceType type = SequenceType::kList;
  Value::Items items;
  std::string repr;  // of a range, whose elements do not tell how it was written
  int depth = 1;
  bool is_group = false;  // made by MakeGroup
};

struct Dict {
  Value::Entries entries;                         // in order of insertion
  std::unordered_map<std::string, size_t> index;  // DictKey -> place in entries
  int depth = 1;

  // nullptr where there is none. Throws kInvalidArgument for a key that cannot be one.
  const Value* Find(const Value& key) const;
};

// What ParseJson does with an integer beyond 64 bits. Rounding it would change what a user wrote; configuration files
// hold such numbers (a model_max_length of 10^30) where nobody looks at them.
enum class WideIntegers { kRefuse, kRound };

// Parses JSON text: objects keep their order, integers are 64 bits wide. Throws kBadFile with the place of the fault
// for text that is not JSON, is nested too deep or holds an integer that is too large.
Value ParseJson(std::string_view text, WideIntegers wide = WideIntegers::kRefuse);

}  // namespace offgraph::llm::jinja
