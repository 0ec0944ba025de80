#include "offgraph/llm/jinja_operators.h"

#include <algorithm>
#include <cmath>
#include <compare>
#include <limits>

#include "offgraph/llm/jinja_format.h"
#include "offgraph/llm/jinja_text.h"
#include "offgraph/llm/unicode.h"

namespace offgraph::llm::jinja {
namespace {

[[noreturn]] void ThrowTypeError(const std::string& message) { throw Error(ErrorCode::kInvalidArgument, message); }

constexpr std::string_view kSymbols[] = {"+", "-", "*", "/", "//", "%", "** or pow()"};

[[noreturn]] void ThrowOperands(BinaryOperator op, const Value& left, const Value& right) {
  RequireDefined(left);
  RequireDefined(right);
  ThrowTypeError("unsupported operand types for " + std::string(kSymbols[static_cast<size_t>(op)]) + ": '" +
                 TypeName(left) + "' and '" + TypeName(right) + "'");
}

[[noreturn]] void ThrowOverflow() { throw Error(ErrorCode::kUnsupported, "an integer does not fit into 64 bits"); }

void RequireNonzero(bool nonzero) {
  if (!nonzero) ThrowTypeError("division by zero");
}

int64_t PowerOfInts(int64_t base, int64_t exponent) {
  int64_t result = 1;
  bool base_overflowed = false;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && (base_overflowed || __builtin_mul_overflow(result, base, &result))) ThrowOverflow();
    exponent >>= 1;
    if (exponent > 0) base_overflowed |= __builtin_mul_overflow(base, base, &base);
  }
  return result;
}

Value ApplyInts(BinaryOperator op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  switch (op) {
    case BinaryOperator::kAdd:
      overflow = __builtin_add_overflow(a, b, &result);
      break;
    case BinaryOperator::kSubtract:
      overflow = __builtin_sub_overflow(a, b, &result);
      break;
    case BinaryOperator::kMultiply:
      overflow = __builtin_mul_overflow(a, b, &result);
      break;
    case BinaryOperator::kDivide:
      RequireNonzero(b != 0);
      return Value::Float(static_cast<double>(a) / static_cast<double>(b));
    case BinaryOperator::kFloorDivide:
    case BinaryOperator::kModulo: {
      RequireNonzero(b != 0);
      if (b == -1) {  // apart, because INT64_MIN / -1 traps
        if (op == BinaryOperator::kModulo) return Value::Int(0);
        overflow = __builtin_sub_overflow(int64_t{0}, a, &result);
        break;
      }
      const int64_t remainder = a % b;
      const bool floors = remainder != 0 && (remainder < 0) != (b < 0);
      result = op == BinaryOperator::kModulo ? remainder + (floors ? b : 0) : a / b - (floors ? 1 : 0);
      break;
    }
    case BinaryOperator::kPower:
      if (b < 0) {
        RequireNonzero(a != 0);
        return Value::Float(std::pow(static_cast<double>(a), static_cast<double>(b)));
      }
      return Value::Int(PowerOfInts(a, b));
  }
  if (overflow) ThrowOverflow();
  return Value::Int(result);
}

Value ApplyFloats(BinaryOperator op, double a, double b) {
  switch (op) {
    case BinaryOperator::kAdd:
      return Value::Float(a + b);
    case BinaryOperator::kSubtract:
      return Value::Float(a - b);
    case BinaryOperator::kMultiply:
      return Value::Float(a * b);
    case BinaryOperator::kDivide:
      RequireNonzero(b != 0.0);
      return Value::Float(a / b);
    case BinaryOperator::kFloorDivide:
    case BinaryOperator::kModulo: {
      // As Python's divmod: the remainder has the sign of the divisor.
      RequireNonzero(b != 0.0);
      double remainder = std::fmod(a, b);
      double quotient = (a - remainder) / b;
      if (remainder == 0.0) {
        remainder = std::copysign(0.0, b);
      } else if ((b < 0.0) != (remainder < 0.0)) {
        remainder += b;
        quotient -= 1.0;
      }
      if (op == BinaryOperator::kModulo) return Value::Float(remainder);
      if (quotient == 0.0) return Value::Float(std::copysign(0.0, a / b));
      const double floored = std::floor(quotient);
      return Value::Float(quotient - floored > 0.5 ? floored + 1.0 : floored);
    }
    case BinaryOperator::kPower: {
      RequireNonzero(a != 0.0 || b >= 0.0);
      if (a < 0.0 && b != std::floor(b)) throw Error(ErrorCode::kUnsupported, "complex numbers are not supported");
      const double power = std::pow(a, b);
      if (std::isinf(power) && std::isfinite(a) && std::isfinite(b)) ThrowTypeError("the power is too large");
      return Value::Float(power);
    }
  }
  return Value();
}

Value Concatenate(const Value& left, const Value& right, Budget& budget) {
  budget.Bytes(left.text().size() + right.text().size());
  if (left.is_markup() == right.is_markup()) {
    return Value::TrustedString(left.text() + right.text(), left.is_markup());
  }
  // Markup escapes what it is joined with.
  const std::string a = left.is_markup() ? left.text() : EscapeHtml(left.text());
  const std::string b = right.is_markup() ? right.text() : EscapeHtml(right.text());
  return Value::TrustedString(a + b, true);
}

Value Repeat(const Value& value, int64_t times, Budget& budget) {
  times = std::max<int64_t>(times, 0);
  const bool is_text = value.is(Kind::kString);
  const size_t size = is_text ? value.text().size() : value.items().size() * sizeof(Value);
  int64_t total = 0;
  if (__builtin_mul_overflow(static_cast<int64_t>(size), times, &total)) total = std::numeric_limits<int64_t>::max();
  budget.Bytes(static_cast<uint64_t>(total));
  if (size == 0) times = 0;
  if (is_text) {
    std::string text;
    text.reserve(static_cast<size_t>(total));
    for (int64_t i = 0; i < times; ++i) text += value.text();
    return Value::TrustedString(std::move(text), value.is_markup());
  }
  Value::Items items;
  for (int64_t i = 0; i < times; ++i) items.insert(items.end(), value.items().begin(), value.items().end());
  return Value::MakeSequence(value.sequence().type, std::move(items));
}

bool IsListOrTuple(const Value& value) {
  return value.is_sequence(SequenceType::kList) || value.is_sequence(SequenceType::kTuple);
}

bool IsRepeatable(const Value& value) { return value.is(Kind::kString) || IsListOrTuple(value); }

std::partial_ordering OrderNumbers(const Value& left, const Value& right) {
  if (left.is_integral() && right.is_integral()) return left.as_int() <=> right.as_int();
  // long double holds both 64-bit integers and doubles exactly.
  const auto widen = [](const Value& value) {
    return value.is_integral() ? static_cast<long double>(value.as_int()) : static_cast<long double>(value.as_double());
  };
  return widen(left) <=> widen(right);
}

}  // namespace

void RequireDefined(const Value& value) {
  if (value.is(Kind::kUndefined)) ThrowTypeError(value.undefined_message());
}

void PayForKey(const Value& key, Budget& budget) {
  if (key.is(Kind::kString)) budget.Bytes(key.text().size());
}

std::string TypeName(const Value& value) {
  constexpr std::string_view kSequences[] = {"list", "tuple", "range", "dict_keys", "dict_values", "dict_items"};
  switch (value.kind()) {
    case Kind::kNone:
      return "NoneType";
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return value.is_markup() ? "Markup" : "str";
    case Kind::kSequence:
      return std::string(kSequences[static_cast<size_t>(value.sequence().type)]);
    case Kind::kDict:
      return "dict";
    case Kind::kIterator:
      return "generator";
    case Kind::kObject:
      return std::string(value.object()->type_name());
  }
  return {};
}

Value Apply(BinaryOperator op, const Value& left, const Value& right, Budget& budget) {
  if (left.is_integral() && right.is_integral()) return ApplyInts(op, left.as_int(), right.as_int());
  if (left.is_number() && right.is_number()) return ApplyFloats(op, left.as_double(), right.as_double());
  if (op == BinaryOperator::kAdd) {
    if (left.is(Kind::kString) && right.is(Kind::kString)) return Concatenate(left, right, budget);
    if (IsListOrTuple(left) && right.is_sequence(left.sequence().type)) {
      budget.Bytes((left.items().size() + right.items().size()) * sizeof(Value));
      Value::Items items = left.items();
      items.insert(items.end(), right.items().begin(), right.items().end());
      return Value::MakeSequence(left.sequence().type, std::move(items));
    }
  }
  if (op == BinaryOperator::kMultiply) {
    if (IsRepeatable(left) && right.is_integral()) return Repeat(left, right.as_int(), budget);
    if (IsRepeatable(right) && left.is_integral()) return Repeat(right, left.as_int(), budget);
  }
  if (op == BinaryOperator::kModulo && left.is(Kind::kString) && !right.is(Kind::kUndefined)) {
    if (left.is_markup()) throw Error(ErrorCode::kUnsupported, "% on text that went through |safe or |escape");
    return Value::TrustedString(PercentFormat(left.text(), right, budget));
  }
  ThrowOperands(op, left, right);
}

Value ApplySign(bool minus, const Value& value) {
  if (value.is_integral()) return minus ? ApplyInts(BinaryOperator::kSubtract, 0, value.as_int()) : value;
  if (value.is(Kind::kFloat)) return Value::Float(minus ? -value.as_double() : value.as_double());
  RequireDefined(value);
  ThrowTypeError("bad operand type for unary " + std::string(minus ? "-" : "+") + ": '" + TypeName(value) + "'");
}

bool Equals(const Value& left, const Value& right, Budget& budget) {
  budget.Steps();
  if (left.is_number() && right.is_number()) return std::is_eq(OrderNumbers(left, right));
  if (left.kind() != right.kind()) return false;
  switch (left.kind()) {
    case Kind::kUndefined:
      return true;
    case Kind::kString:
      budget.Bytes(std::min(left.text().size(), right.text().size()));
      return left.text() == right.text();
    case Kind::kSequence: {
      const Value::Items &a = left.items(), &b = right.items();
      if (left.sequence().type != right.sequence().type || a.size() != b.size()) return false;
      for (size_t i = 0; i < a.size(); ++i) {
        if (!Equals(a[i], b[i], budget)) return false;
      }
      return true;
    }
    case Kind::kDict: {
      if (left.dict().entries.size() != right.dict().entries.size()) return false;
      for (const auto& [key, value] : left.dict().entries) {
        const Value* other = right.dict().Find(key);
        if (other == nullptr || !Equals(value, *other, budget)) return false;
      }
      return true;
    }
    default:
      return left.Same(right);
  }
}

bool Less(const Value& left, const Value& right, Budget& budget) {
  budget.Steps();
  if (left.is_number() && right.is_number()) return std::is_lt(OrderNumbers(left, right));
  if (left.is(Kind::kString) && right.is(Kind::kString)) {
    budget.Bytes(std::min(left.text().size(), right.text().size()));
    return left.text() < right.text();  // the order of UTF-8 is that of code points
  }
  if (IsListOrTuple(left) && right.is_sequence(left.sequence().type)) {
    const Value::Items &a = left.items(), &b = right.items();
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      if (!Equals(a[i], b[i], budget)) return Less(a[i], b[i], budget);
    }
    return a.size() < b.size();
  }
  RequireDefined(left);
  RequireDefined(right);
  ThrowTypeError("values of the types '" + TypeName(left) + "' and '" + TypeName(right) + "' have no order");
}

namespace {

bool Contains(const Value& container, const Value& item, Budget& budget) {
  if (container.is(Kind::kString)) {
    if (!item.is(Kind::kString)) {
      ThrowTypeError("'in <string>' requires string as left operand, not " + TypeName(item));
    }
    budget.Bytes(container.text().size());
    return Find(container.text(), item.text()) != std::string::npos;
  }
  if (container.is(Kind::kDict)) {
    PayForKey(item, budget);
    return container.dict().Find(item) != nullptr;
  }
  if (!IsIterable(container)) ThrowTypeError("argument of type '" + TypeName(container) + "' is not iterable");
  Cursor cursor(container);
  Value element;
  while (cursor.Next(budget, &element)) {
    if (Equals(element, item, budget)) return true;
  }
  return false;
}

// a <= b, which for containers and NaN is not the opposite of b < a.
bool LessOrEqual(const Value& left, const Value& right, Budget& budget) {
  return Less(left, right, budget) || Equals(left, right, budget);
}

}  // namespace

bool Compare(Comparison comparison, const Value& left, const Value& right, Budget& budget) {
  switch (comparison) {
    case Comparison::kEqual:
      return Equals(left, right, budget);
    case Comparison::kNotEqual:
      return !Equals(left, right, budget);
    case Comparison::kLess:
      return Less(left, right, budget);
    case Comparison::kGreater:
      return Less(right, left, budget);
    case Comparison::kLessEqual:
      return LessOrEqual(left, right, budget);
    case Comparison::kGreaterEqual:
      return LessOrEqual(right, left, budget);
    case Comparison::kIn:
      return Contains(right, left, budget);
    case Comparison::kNotIn:
      return !Contains(right, left, budget);
  }
  return false;
}

int64_t Size(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      return static_cast<int64_t>(Length(value.text()));
    case Kind::kSequence:
      return static_cast<int64_t>(value.items().size());
    case Kind::kDict:
      return static_cast<int64_t>(value.dict().entries.size());
    default:
      ThrowTypeError("object of type '" + TypeName(value) + "' has no len()");
  }
}

bool IsIterable(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kString:
    case Kind::kSequence:
    case Kind::kDict:
    case Kind::kIterator:
      return true;
    default:
      return false;
  }
}

Cursor::Cursor(Value iterable) : iterable_(std::move(iterable)) {
  if (!IsIterable(iterable_)) ThrowTypeError("'" + TypeName(iterable_) + "' object is not iterable");
}

bool Cursor::Next(Budget& budget, Value* element) {
  budget.Steps();
  switch (iterable_.kind()) {
    case Kind::kString: {
      const std::string& text = iterable_.text();
      if (position_ >= text.size()) return false;
      const size_t length = Utf8Length(static_cast<unsigned char>(text[position_]));
      budget.Bytes(sizeof(Text));
      *element = Value::TrustedString(text.substr(position_, length));
      position_ += length;
      return true;
    }
    case Kind::kSequence:
      if (position_ >= iterable_.items().size()) return false;
      *element = iterable_.items()[position_++];
      return true;
    case Kind::kDict:
      if (position_ >= iterable_.dict().entries.size()) return false;
      *element = iterable_.dict().entries[position_++].first;
      return true;
    case Kind::kIterator: {
      Iterator& iterator = iterable_.iterator();
      if (iterator.position >= iterator.items.size()) return false;
      *element = iterator.items[iterator.position++];
      return true;
    }
    default:
      return false;
  }
}

Value::Items Collect(const Value& iterable, Budget& budget) {
  Value::Items items;
  Cursor cursor(iterable);
  Value element;
  while (cursor.Next(budget, &element)) {
    budget.Bytes(sizeof(Value));
    items.push_back(element);
  }
  return items;
}

}  // namespace offgraph::llm::jinja
