#include "offgraph/llm/jinja_interpreter.h"

#include <algorithm>
#include <unordered_map>

#include "offgraph/llm/jinja_globals.h"
#include "offgraph/llm/jinja_lexer.h"
#include "offgraph/llm/jinja_operators.h"

namespace offgraph::llm::jinja {
namespace {

// Levels of expressions and statements within one another, macros and recursive loops included. A level takes up to
// 1 KiB of stack, several times that under the address sanitizer.
constexpr int kMostDepth = 500;

class Macro final : public Object {
 public:
  Macro(Interpreter* interpreter, const Statement& statement, ScopePtr closure)
      : interpreter_(interpreter), statement_(statement), closure_(std::move(closure)) {}

  std::string_view type_name() const override { return "Macro"; }
  bool callable() const override { return true; }
  Value Call(Runtime& runtime, CallArguments&& arguments) override {
    return runtime.Text(interpreter_->CallMacro(statement_, closure_, std::move(arguments)));
  }
  std::optional<Value> Attribute(Runtime& /*runtime*/, std::string_view name) override {
    if (name == "name") return Value::TrustedString(statement_.macro.name);
    return std::nullopt;
  }

 private:
  Interpreter* interpreter_;
  const Statement& statement_;
  ScopePtr closure_;
};

// The variable "loop". Looks one element ahead only when it is asked for what follows, as Jinja does.
class Loop final : public Object {
 public:
  Loop(Interpreter* interpreter, const Statement& statement, ScopePtr scope, Value iterable, int depth0)
      : interpreter_(interpreter),
        statement_(statement),
        scope_(std::move(scope)),
        iterable_(iterable),
        cursor_(std::move(iterable)),
        depth0_(depth0) {}

  // Moves to the next element; false at the end.
  bool Advance(Value* element) {
    std::optional<Value> next = ahead_ ? std::exchange(ahead_, std::nullopt) : Pull();
    if (!next) return false;
    ++index0_;
    previous_ = std::exchange(current_, *next);
    *element = *std::move(next);
    return true;
  }

  std::string_view type_name() const override { return "LoopContext"; }
  bool callable() const override { return true; }
  Value Call(Runtime& runtime, CallArguments&& arguments) override {
    if (!statement_.recursive) {
      throw Error(ErrorCode::kInvalidArgument, "The loop must have the 'recursive' marker to be called recursively.");
    }
    const Arguments bound("loop", std::move(arguments), {"iterable"}, 1);
    return runtime.Text(interpreter_->RunLoop(statement_, scope_, bound[0], depth0_ + 1));
  }
  std::optional<Value> Attribute(Runtime& runtime, std::string_view name) override;

  Value Cycle(const CallArguments& arguments) const {
    if (arguments.positional.empty()) throw Error(ErrorCode::kInvalidArgument, "no items for cycling given");
    return arguments.positional[static_cast<size_t>(index0_) % arguments.positional.size()];
  }
  Value Changed(CallArguments arguments) {
    Value values = Value::Tuple(std::move(arguments.positional));
    if (last_changed_ && Equals(*last_changed_, values, interpreter_->budget())) return Value::Bool(false);
    last_changed_ = std::move(values);
    return Value::Bool(true);
  }

 private:
  std::optional<Value> Pull() {
    Value element;
    if (counted_) return counted_->Next(interpreter_->budget(), &element) ? std::optional(element) : std::nullopt;
    while (cursor_.Next(interpreter_->budget(), &element)) {
      if (statement_.test == nullptr || interpreter_->PassesTest(statement_, scope_, element)) return element;
    }
    return std::nullopt;
  }

  const std::optional<Value>& Peek() {
    if (!ahead_) ahead_ = Pull();
    return ahead_;
  }

  // len() of what is iterated; for a generator, and behind an "if", all of it is pulled to be counted.
  int64_t Length() {
    if (length_) return *length_;
    if (statement_.test == nullptr && !iterable_.is(Kind::kIterator)) {
      length_ = Size(iterable_);
    } else {
      Value::Items rest;
      if (ahead_) rest.push_back(*std::exchange(ahead_, std::nullopt));
      while (std::optional<Value> next = Pull()) rest.push_back(*std::move(next));
      length_ = index0_ + 1 + static_cast<int64_t>(rest.size());
      counted_ = Cursor(Value::MakeIterator(std::move(rest)));
    }
    return *length_;
  }

  friend class LoopMethod;

  Interpreter* interpreter_;
  const Statement& statement_;
  ScopePtr scope_;
  Value iterable_;
  Cursor cursor_;
  std::optional<Cursor> counted_;  // what is left after Length() pulled everything; the test has passed
  int depth0_;
  int64_t index0_ = -1;
  std::optional<int64_t> length_;
  std::optional<Value> ahead_;
  Value current_, previous_;
  std::optional<Value> last_changed_;
};

// loop.cycle and loop.changed.
class LoopMethod final : public Object {
 public:
  LoopMethod(Loop* loop, bool cycles) : loop_(loop), cycles_(cycles) {}

  std::string_view type_name() const override { return "method"; }
  bool callable() const override { return true; }
  Value Call(Runtime& /*runtime*/, CallArguments&& arguments) override {
    return cycles_ ? loop_->Cycle(arguments) : loop_->Changed(std::move(arguments));
  }

 private:
  Loop* loop_;
  bool cycles_;
};

std::optional<Value> Loop::Attribute(Runtime& runtime, std::string_view name) {
  if (name == "index") return Value::Int(index0_ + 1);
  if (name == "index0") return Value::Int(index0_);
  if (name == "first") return Value::Bool(index0_ == 0);
  if (name == "last") return Value::Bool(!Peek());
  if (name == "length") return Value::Int(Length());
  if (name == "revindex") return Value::Int(Length() - index0_);
  if (name == "revindex0") return Value::Int(Length() - index0_ - 1);
  if (name == "depth") return Value::Int(depth0_ + 1);
  if (name == "depth0") return Value::Int(depth0_);
  if (name == "previtem") return index0_ == 0 ? Value::Undefined("there is no previous item") : previous_;
  if (name == "nextitem") return Peek() ? *Peek() : Value::Undefined("there is no next item");
  if (name == "cycle" || name == "changed") {
    return Value::FromObject(runtime.Make<LoopMethod>(this, name == "cycle"));
  }
  return std::nullopt;
}

}  // namespace

const Value* Scope::Find(int symbol) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent_.get()) {
    for (const auto& [key, value] : scope->variables_) {
      if (key == symbol) return &value;
    }
  }
  return nullptr;
}

void Scope::Set(int symbol, Value value) {
  for (auto& [key, stored] : variables_) {
    if (key != symbol) continue;
    stored = std::move(value);
    return;
  }
  variables_.emplace_back(symbol, std::move(value));
}

Interpreter::Depth::Depth(Interpreter* interpreter) : interpreter_(interpreter) {
  if (interpreter->depth_ >= kMostDepth) {
    throw Error(ErrorCode::kOutOfRange, "the template calls itself, or nests, too deep");
  }
  ++interpreter->depth_;
}

Interpreter::Interpreter(const Syntax& syntax, Runtime& runtime,
                         const std::vector<std::pair<std::string, Value>>& variables)
    : syntax_(syntax), runtime_(runtime) {
  std::unordered_map<std::string_view, const Value*> given;
  for (const auto& [name, value] : variables) given[name] = &value;
  outermost_.reserve(syntax.symbols.size());
  for (const std::string& name : syntax.symbols) {
    const auto found = given.find(name);
    if (found != given.end()) {
      outermost_.push_back(*found->second);
    } else {
      std::optional<Value> global = MakeGlobal(runtime, name);
      outermost_.push_back(global ? *std::move(global) : Value::Undefined("'" + name + "' is undefined"));
    }
  }
}

std::string Interpreter::Run() {
  std::string out;
  try {
    RunBody(syntax_.body, std::make_shared<Scope>(nullptr), &out);
  } catch (const Error& error) {
    throw Error(error.code(), AtLine(line_, error.what()));
  }
  return out;
}

void Interpreter::Print(std::string_view text, std::string* out) {
  budget().Bytes(text.size());
  *out += text;
}

Interpreter::Flow Interpreter::RunBody(const Body& body, const ScopePtr& scope, std::string* out) {
  const Depth depth(this);
  for (const Statement& statement : body) {
    line_ = statement.line;
    const Flow flow = RunStatement(statement, scope, out);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::RunStatement(const Statement& statement, const ScopePtr& scope, std::string* out) {
  budget().Steps();
  switch (statement.kind) {
    case StatementKind::kData:
      Print(statement.text, out);
      return Flow::kNext;
    case StatementKind::kOutput:
      for (const ExpressionPtr& expression : statement.expressions) {
        Print(ToText(Evaluate(*expression, scope), budget()), out);
      }
      return Flow::kNext;
    case StatementKind::kIf:
      return RunIf(statement, scope, out);
    case StatementKind::kFor: {
      Value iterable = Evaluate(*statement.expression, scope);
      return RunFor(statement, scope, std::move(iterable), 0, out);
    }
    case StatementKind::kSet:
      Assign(*statement.target, Evaluate(*statement.expression, scope), scope);
      return Flow::kNext;
    case StatementKind::kSetBlock:
    case StatementKind::kFilter:
      return RunTextBlock(statement, scope, out);
    case StatementKind::kMacro:
      scope->Set(statement.symbol, Value::FromObject(runtime_.Make<Macro>(this, statement, scope)));
      return Flow::kNext;
    case StatementKind::kCall:
      RunCall(statement, scope, out);
      return Flow::kNext;
    case StatementKind::kWith:
      return RunWith(statement, scope, out);
    case StatementKind::kGeneration:
      return RunBody(statement.body, std::make_shared<Scope>(scope), out);
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::RunIf(const Statement& statement, const ScopePtr& scope, std::string* out) {
  for (const Branch& branch : statement.branches) {
    if (Evaluate(*branch.condition, scope).Truthy()) return RunBody(branch.body, scope, out);
  }
  return RunBody(statement.else_body, scope, out);
}

bool Interpreter::PassesTest(const Statement& statement, const ScopePtr& scope, const Value& element) {
  const auto test_scope = std::make_shared<Scope>(scope);
  Assign(*statement.target, element, test_scope);
  return Evaluate(*statement.test, test_scope).Truthy();
}

// A break or continue in the "else" of a loop is for the loop around it; that is what is returned.
Interpreter::Flow Interpreter::RunFor(const Statement& statement, const ScopePtr& scope, Value iterable, int depth0,
                                      std::string* out) {
  auto* loop = runtime_.Make<Loop>(this, statement, scope, std::move(iterable), depth0);
  const Value loop_value = Value::FromObject(loop);
  auto body_scope = std::make_shared<Scope>(scope);
  bool ran = false;
  Value element;
  while (loop->Advance(&element)) {
    ran = true;
    body_scope->Set(kLoopSymbol, loop_value);
    Assign(*statement.target, std::move(element), body_scope);
    if (RunBody(statement.body, body_scope, out) == Flow::kBreak) break;
    if (body_scope.use_count() == 1) {
      body_scope->Clear();
    } else {
      body_scope = std::make_shared<Scope>(scope);
    }
  }
  return ran ? Flow::kNext : RunBody(statement.else_body, std::make_shared<Scope>(scope), out);
}

std::string Interpreter::RunLoop(const Statement& statement, const ScopePtr& scope, Value iterable, int depth0) {
  std::string text;
  const int line = line_;
  RunFor(statement, scope, std::move(iterable), depth0, &text);
  line_ = line;
  return text;
}

Interpreter::Flow Interpreter::RunTextBlock(const Statement& statement, const ScopePtr& scope, std::string* out) {
  std::string text;
  const Flow flow = RunBody(statement.body, std::make_shared<Scope>(scope), &text);
  if (flow != Flow::kNext) return flow;
  line_ = statement.line;
  // The filters' arguments may hold blocks of their own, by way of macros.
  Value outer = std::exchange(block_text_, Value::TrustedString(std::move(text)));
  Value result = Evaluate(*statement.expression, scope);
  block_text_ = std::move(outer);
  if (statement.kind == StatementKind::kSetBlock) {
    Assign(*statement.target, std::move(result), scope);
  } else {
    Print(ToText(result, budget()), out);
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::RunWith(const Statement& statement, const ScopePtr& scope, std::string* out) {
  std::vector<Value> values = EvaluateAll(statement.expressions, scope);
  const auto inner = std::make_shared<Scope>(scope);
  for (size_t i = 0; i < values.size(); ++i) Assign(*statement.targets[i], std::move(values[i]), inner);
  return RunBody(statement.body, inner, out);
}

void Interpreter::RunCall(const Statement& statement, const ScopePtr& scope, std::string* out) {
  const Value caller = Value::FromObject(runtime_.Make<Macro>(this, statement, scope));
  Print(ToText(EvaluateCall(*statement.expression, scope, caller), budget()), out);
}

std::string Interpreter::CallMacro(const Statement& statement, const ScopePtr& closure, CallArguments arguments) {
  const Depth depth(this);
  const int line = line_;
  const auto scope = std::make_shared<Scope>(closure);
  BindMacro(statement.macro, std::move(arguments), scope);
  std::string text;
  RunBody(statement.body, scope, &text);
  line_ = line;
  return text;
}

void Interpreter::BindMacro(const MacroSignature& signature, CallArguments arguments, const ScopePtr& scope) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument, "macro '" + signature.name + "' " + what);
  };
  const size_t count = signature.names.size();
  std::vector<std::optional<Value>> values(count);
  for (size_t i = 0; i < std::min(count, arguments.positional.size()); ++i) {
    values[i] = std::move(arguments.positional[i]);
  }
  if (arguments.positional.size() > count && !signature.uses_varargs) {
    refuse("takes not more than " + std::to_string(count) + " argument(s)");
  }
  std::optional<Value> caller;
  Value::Entries others;
  for (auto& [name, value] : arguments.named) {
    const auto found = std::find(signature.names.begin(), signature.names.end(), name);
    const auto place = static_cast<size_t>(found - signature.names.begin());
    if (found != signature.names.end() && !values[place]) {
      values[place] = std::move(value);
    } else if (name == "caller" && signature.uses_caller && !caller) {
      caller = std::move(value);
    } else if (signature.uses_kwargs) {
      others.emplace_back(Value::TrustedString(name), std::move(value));
    } else {
      refuse("takes no keyword argument '" + name + "'");
    }
  }
  const bool declares_caller =
      std::find(signature.names.begin(), signature.names.end(), "caller") != signature.names.end();
  if (signature.uses_caller && !declares_caller) {
    scope->Set(kCallerSymbol, caller ? *std::move(caller) : Value::Undefined("No caller defined"));
  }
  if (signature.uses_kwargs) scope->Set(kKwargsSymbol, Value::Map(std::move(others)));
  if (signature.uses_varargs) {
    const size_t begin = std::min(count, arguments.positional.size());
    scope->Set(kVarargsSymbol, Value::Tuple({arguments.positional.begin() + static_cast<std::ptrdiff_t>(begin),
                                             arguments.positional.end()}));
  }
  for (size_t i = 0; i < count; ++i) {
    if (!values[i] && signature.defaults[i]) values[i] = Evaluate(*signature.defaults[i], scope);
    if (!values[i]) values[i] = Value::Undefined("parameter '" + signature.names[i] + "' was not provided");
    scope->Set(signature.parameters[i], *std::move(values[i]));
  }
}

void Interpreter::Assign(const Expression& target, Value value, const ScopePtr& scope) {
  switch (target.kind) {
    case ExpressionKind::kName:
      scope->Set(target.symbol, std::move(value));
      return;
    case ExpressionKind::kAttribute: {
      const Value& owner = Lookup(target.children[0]->symbol, *scope);
      auto* object = owner.is(Kind::kObject) ? dynamic_cast<Namespace*>(owner.object()) : nullptr;
      if (object == nullptr) {
        throw Error(ErrorCode::kInvalidArgument, "cannot assign attribute on non-namespace object");
      }
      object->Set(budget(), target.text, std::move(value));
      return;
    }
    default: {
      const Value::Items items = Collect(value, budget());
      const size_t expected = target.children.size();
      if (items.size() != expected) {
        throw Error(ErrorCode::kInvalidArgument, std::string(items.size() < expected ? "not enough" : "too many") +
                                                     " values to unpack (expected " + std::to_string(expected) +
                                                     ", got " + std::to_string(items.size()) + ")");
      }
      for (size_t i = 0; i < expected; ++i) Assign(*target.children[i], items[i], scope);
    }
  }
}

}  // namespace offgraph::llm::jinja
