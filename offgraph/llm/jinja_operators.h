// Python's operators and protocols on values. Operations that have no meaning throw kInvalidArgument, in Python's
// words; an undefined value throws its own message wherever Jinja's does.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "offgraph/llm/jinja_runtime.h"
#include "offgraph/llm/jinja_value.h"

namespace offgraph::llm::jinja {

enum class BinaryOperator { kAdd, kSubtract, kMultiply, kDivide, kFloorDivide, kModulo, kPower };
enum class Comparison { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kIn, kNotIn };

// type(value).__name__
std::string TypeName(const Value& value);

// str() and repr().
std::string ToText(const Value& value, Budget& budget);
std::string Repr(const Value& value, Budget& budget);

Value Apply(BinaryOperator op, const Value& left, const Value& right, Budget& budget);
// +value, and -value.
Value ApplySign(bool minus, const Value& value);

bool Equals(const Value& left, const Value& right, Budget& budget);
bool Less(const Value& left, const Value& right, Budget& budget);
bool Compare(Comparison comparison, const Value& left, const Value& right, Budget& budget);

// len().
int64_t Size(const Value& value);

// Goes through the elements of what Python can iterate: sequences, the keys of a dict, the characters of a text, what
// is left of an iterator (and uses it up), nothing for undefined.
class Cursor {
 public:
  // Throws kInvalidArgument for what cannot be iterated.
  explicit Cursor(Value iterable);
  // False at the end.
  bool Next(Budget& budget, Value* element);

 private:
  Value iterable_;
  size_t position_ = 0;  // an element; in a text, a byte
};

bool IsIterable(const Value& value);
Value::Items Collect(const Value& iterable, Budget& budget);

// container.name and container[key] with Jinja's fallbacks: each tries the other where it finds nothing, and the result
// may be undefined.
Value GetAttribute(Runtime& runtime, const Value& container, std::string_view name);
Value GetItem(Runtime& runtime, const Value& container, const Value& key);
// container[start:stop:step]; None stands for a bound that was left out.
Value GetSlice(const Value& container, const Value& start, const Value& stop, const Value& step, Budget& budget);

// range(start, stop, step). REQUIRES: step != 0. Throws kOutOfRange beyond the sandbox's 100,000 elements.
Value MakeRange(int64_t start, int64_t stop, int64_t step, Budget& budget);

// Before a look-up in a dict, which goes through the whole key.
void PayForKey(const Value& key, Budget& budget);

// Throws where `value` is undefined.
void RequireDefined(const Value& value);

}  // namespace offgraph::llm::jinja
