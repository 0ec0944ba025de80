// Renders a parsed template. Statements are in jinja_interpreter.cc, expressions in jinja_evaluator.cc.
//
// Scopes are Jinja's: the body of a loop, once per element, of a macro, with, filter, call, generation and block set
// are scopes of their own; an if is not. A name is looked up outwards from where it stands in the text, then among the
// variables that the caller gave, then among the global functions.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "offgraph/llm/jinja_ast.h"
#include "offgraph/llm/jinja_runtime.h"

namespace offgraph::llm::jinja {

// Variables by symbol. Shared, since a macro keeps the scope that it was defined in.
class Scope {
 public:
  explicit Scope(std::shared_ptr<Scope> parent) : parent_(std::move(parent)) {}

  // In this scope and those around it; nullptr where there is none.
  const Value* Find(int symbol) const;
  void Set(int symbol, Value value);
  // Makes a fresh scope of it. REQUIRES: nobody else holds it.
  void Clear() { variables_.clear(); }

 private:
  std::shared_ptr<Scope> parent_;
  std::vector<std::pair<int, Value>> variables_;
};

using ScopePtr = std::shared_ptr<Scope>;

class Interpreter {
 public:
  Interpreter(const Syntax& syntax, Runtime& runtime, const std::vector<std::pair<std::string, Value>>& variables);

  // The whole template. Errors say the line.
  std::string Run();

  Runtime& runtime() { return runtime_; }
  Budget& budget() { return runtime_.budget(); }

  // For macros and loops, which call back.
  std::string CallMacro(const Statement& statement, const ScopePtr& closure, CallArguments arguments);
  std::string RunLoop(const Statement& statement, const ScopePtr& scope, Value iterable, int depth0);
  // Whether `element` passes the loop's "if".
  bool PassesTest(const Statement& statement, const ScopePtr& scope, const Value& element);

 private:
  enum class Flow { kNext, kBreak, kContinue };

  // Adds a level of recursion while it lives.
  class Depth {
   public:
    explicit Depth(Interpreter* interpreter);
    ~Depth() { --interpreter_->depth_; }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;

   private:
    Interpreter* interpreter_;
  };

  // ---- statements
  Flow RunBody(const Body& body, const ScopePtr& scope, std::string* out);
  Flow RunStatement(const Statement& statement, const ScopePtr& scope, std::string* out);
  Flow RunIf(const Statement& statement, const ScopePtr& scope, std::string* out);
  Flow RunFor(const Statement& statement, const ScopePtr& scope, Value iterable, int depth0, std::string* out);
  Flow RunTextBlock(const Statement& statement, const ScopePtr& scope, std::string* out);
  Flow RunWith(const Statement& statement, const ScopePtr& scope, std::string* out);
  void RunCall(const Statement& statement, const ScopePtr& scope, std::string* out);
  void BindMacro(const MacroSignature& signature, CallArguments arguments, const ScopePtr& scope);
  void Assign(const Expression& target, Value value, const ScopePtr& scope);
  void Print(std::string_view text, std::string* out);

  // ---- expressions
  Value Evaluate(const Expression& expression, const ScopePtr& scope);
  Value EvaluateKind(const Expression& expression, const ScopePtr& scope);
  Value EvaluateContainer(const Expression& expression, const ScopePtr& scope);
  Value EvaluateCompare(const Expression& expression, const ScopePtr& scope);
  Value EvaluateConditional(const Expression& expression, const ScopePtr& scope);
  Value EvaluateSlice(const Expression& expression, const ScopePtr& scope);
  Value EvaluateCall(const Expression& expression, const ScopePtr& scope, std::optional<Value> caller = std::nullopt);
  std::vector<Value> EvaluateAll(const std::vector<ExpressionPtr>& expressions, const ScopePtr& scope);
  CallArguments EvaluateArguments(const ArgumentList& list, const ScopePtr& scope);
  const Value& Lookup(int symbol, const Scope& scope) const;

  const Syntax& syntax_;
  Runtime& runtime_;
  std::vector<Value> outermost_;  // by symbol: what the caller gave, or a global function, or undefined
  Value block_text_;              // of the {% filter %} or {% set %} whose filters are being applied
  int line_ = 1;                  // of what is being run
  int depth_ = 0;
};

}  // namespace offgraph::llm::jinja
