#include <utility>

#include "offgraph/llm/jinja_filters.h"
#include "offgraph/llm/jinja_interpreter.h"
#include "offgraph/llm/jinja_methods.h"
#include "offgraph/llm/jinja_operators.h"

namespace offgraph::llm::jinja {

const Value& Interpreter::Lookup(int symbol, const Scope& scope) const {
  const Value* found = scope.Find(symbol);
  return found != nullptr ? *found : outermost_[static_cast<size_t>(symbol)];
}

// The line is left where it is when an error passes through: that is where it happened.
Value Interpreter::Evaluate(const Expression& expression, const ScopePtr& scope) {
  const Depth depth(this);
  budget().Steps();
  const int line = std::exchange(line_, expression.line);
  Value result = EvaluateKind(expression, scope);
  line_ = line;
  return result;
}

Value Interpreter::EvaluateKind(const Expression& expression, const ScopePtr& scope) {
  const auto child = [&](size_t i) { return Evaluate(*expression.children[i], scope); };
  switch (expression.kind) {
    case ExpressionKind::kLiteral:
      return expression.value;
    case ExpressionKind::kName:
      return Lookup(expression.symbol, *scope);
    case ExpressionKind::kTuple:
    case ExpressionKind::kList:
    case ExpressionKind::kDict:
      return EvaluateContainer(expression, scope);
    case ExpressionKind::kNot:
      return Value::Bool(!child(0).Truthy());
    case ExpressionKind::kPlus:
    case ExpressionKind::kMinus:
      return ApplySign(expression.kind == ExpressionKind::kMinus, child(0));
    case ExpressionKind::kBinary: {
      const Value left = child(0);
      const Value right = child(1);
      return Apply(expression.op, left, right, budget());
    }
    case ExpressionKind::kAnd:
    case ExpressionKind::kOr: {
      Value left = child(0);
      return left.Truthy() == (expression.kind == ExpressionKind::kOr) ? left : child(1);
    }
    case ExpressionKind::kConcatenate: {
      std::string text;
      for (const ExpressionPtr& part : expression.children) text += ToText(Evaluate(*part, scope), budget());
      return runtime_.Text(std::move(text));
    }
    case ExpressionKind::kCompare:
      return EvaluateCompare(expression, scope);
    case ExpressionKind::kConditional:
      return EvaluateConditional(expression, scope);
    case ExpressionKind::kAttribute:
      return GetAttribute(runtime_, child(0), expression.text);
    case ExpressionKind::kItem: {
      const Value container = child(0);
      return GetItem(runtime_, container, child(1));
    }
    case ExpressionKind::kSlice:
      return EvaluateSlice(expression, scope);
    case ExpressionKind::kCall:
      return EvaluateCall(expression, scope);
    case ExpressionKind::kFilter: {
      const Value input = child(0);
      return CallFilter(runtime_, expression.text, input, EvaluateArguments(expression.arguments, scope));
    }
    case ExpressionKind::kTest: {
      const Value input = child(0);
      return Value::Bool(CallTest(runtime_, expression.text, input, EvaluateArguments(expression.arguments, scope)));
    }
    case ExpressionKind::kBlockText:
      return block_text_;
  }
  return {};
}

Value Interpreter::EvaluateContainer(const Expression& expression, const ScopePtr& scope) {
  std::vector<Value> items = EvaluateAll(expression.children, scope);
  budget().Bytes(items.size() * sizeof(Value) + sizeof(Dict));
  if (expression.kind == ExpressionKind::kTuple) return Value::Tuple(std::move(items));
  if (expression.kind == ExpressionKind::kList) return Value::List(std::move(items));
  Value::Entries entries;
  for (size_t i = 0; i + 1 < items.size(); i += 2) {
    PayForKey(items[i], budget());
    entries.emplace_back(std::move(items[i]), std::move(items[i + 1]));
  }
  return Value::Map(std::move(entries));
}

// a < b < c is a < b and b < c, with b evaluated once.
Value Interpreter::EvaluateCompare(const Expression& expression, const ScopePtr& scope) {
  Value left = Evaluate(*expression.children[0], scope);
  for (size_t i = 0; i < expression.comparisons.size(); ++i) {
    Value right = Evaluate(*expression.children[i + 1], scope);
    if (!Compare(expression.comparisons[i], left, right, budget())) return Value::Bool(false);
    left = std::move(right);
  }
  return Value::Bool(true);
}

Value Interpreter::EvaluateConditional(const Expression& expression, const ScopePtr& scope) {
  if (Evaluate(*expression.children[1], scope).Truthy()) return Evaluate(*expression.children[0], scope);
  if (expression.children[2]) return Evaluate(*expression.children[2], scope);
  return Value::Undefined("the inline if-expression on line " + std::to_string(expression.line) +
                          " evaluated to false and no else section was defined.");
}

Value Interpreter::EvaluateSlice(const Expression& expression, const ScopePtr& scope) {
  Value parts[4];
  for (size_t i = 0; i < 4; ++i) {
    if (expression.children[i]) parts[i] = Evaluate(*expression.children[i], scope);
  }
  return GetSlice(parts[0], parts[1], parts[2], parts[3], budget());
}

Value Interpreter::EvaluateCall(const Expression& expression, const ScopePtr& scope, std::optional<Value> caller) {
  const auto arguments = [&] {
    CallArguments result = EvaluateArguments(expression.arguments, scope);
    if (caller) result.named.emplace_back("caller", *std::move(caller));
    return result;
  };
  const Expression& callee = *expression.children[0];
  Value function;
  if (callee.kind == ExpressionKind::kAttribute) {
    // A method is called without making a value of it first.
    const Value self = Evaluate(*callee.children[0], scope);
    if (FindMethod(self, callee.text) == MethodAccess::kAllowed) {
      return CallMethod(runtime_, self, callee.text, arguments());
    }
    function = GetAttribute(runtime_, self, callee.text);
  } else {
    function = Evaluate(callee, scope);
  }
  RequireDefined(function);
  if (!function.is(Kind::kObject)) {
    throw Error(ErrorCode::kInvalidArgument, "'" + TypeName(function) + "' object is not callable");
  }
  return function.object()->Call(runtime_, arguments());
}

std::vector<Value> Interpreter::EvaluateAll(const std::vector<ExpressionPtr>& expressions, const ScopePtr& scope) {
  std::vector<Value> values;
  values.reserve(expressions.size());
  for (const ExpressionPtr& expression : expressions) values.push_back(Evaluate(*expression, scope));
  return values;
}

CallArguments Interpreter::EvaluateArguments(const ArgumentList& list, const ScopePtr& scope) {
  CallArguments arguments;
  arguments.positional = EvaluateAll(list.positional, scope);
  if (list.spread) {
    for (Value& value : Collect(Evaluate(*list.spread, scope), budget())) {
      arguments.positional.push_back(std::move(value));
    }
  }
  for (const auto& [name, expression] : list.named) arguments.named.emplace_back(name, Evaluate(*expression, scope));
  if (list.named_spread) {
    const Value mapping = Evaluate(*list.named_spread, scope);
    if (!mapping.is(Kind::kDict)) {
      throw Error(ErrorCode::kInvalidArgument, "the argument after ** must be a mapping, not " + TypeName(mapping));
    }
    for (const auto& [name, value] : mapping.dict().entries) {
      if (!name.is(Kind::kString)) throw Error(ErrorCode::kInvalidArgument, "keywords must be strings");
      budget().Bytes(name.text().size() + sizeof(Value));
      arguments.named.emplace_back(name.text(), value);
    }
  }
  return arguments;
}

}  // namespace offgraph::llm::jinja
