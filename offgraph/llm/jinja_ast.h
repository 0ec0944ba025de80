// The parsed form of a template: plain structs, one per expression and statement. What a field holds depends on the
// kind; fields that a kind does not name are empty.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "offgraph/llm/jinja_operators.h"
#include "offgraph/llm/jinja_value.h"

namespace offgraph::llm::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

enum class ExpressionKind {
  kLiteral,      // value
  kName,         // symbol
  kTuple,        // children
  kList,         // children
  kDict,         // children: key, value, key, value, ...
  kNot,          // children: operand
  kPlus,         // children: operand
  kMinus,        // children: operand
  kBinary,       // op; children: left, right
  kAnd,          // children: left, right
  kOr,           // children: left, right
  kConcatenate,  // children
  kCompare,      // children: n + 1 operands; comparisons: n
  kConditional,  // children: value, condition, otherwise (may be null)
  kAttribute,    // text; children: container
  kItem,         // children: container, key
  kSlice,        // children: container, start, stop, step (the last three may be null)
  kCall,         // children: callee; arguments
  kFilter,       // text; children: input; arguments
  kTest,         // text; children: input; arguments
  kBlockText,    // the text of the block that the filters of {% filter %} or {% set %} apply to
};

// (positional, ..., *spread, name=value, ..., **named_spread)
struct ArgumentList {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr spread;        // may be null
  ExpressionPtr named_spread;  // may be null
};

struct Expression {
  ExpressionKind kind = ExpressionKind::kLiteral;
  int line = 0;
  int depth = 1;  // levels of expressions, this one among them
  Value value;
  int symbol = 0;
  std::string text;
  BinaryOperator op = BinaryOperator::kAdd;
  std::vector<Comparison> comparisons;
  std::vector<ExpressionPtr> children;
  ArgumentList arguments;
};

struct Statement;
using Body = std::vector<Statement>;

enum class StatementKind {
  kData,        // text
  kOutput,      // expressions: each is printed
  kIf,          // branches, else_body
  kFor,         // target, expression (what is iterated), test (may be null), recursive, body, else_body
  kSet,         // target, expression
  kSetBlock,    // target, expression (filters over kBlockText), body
  kMacro,       // symbol, macro, body
  kCall,        // expression (a kCall), macro (of caller), body
  kFilter,      // expression (filters over kBlockText), body
  kWith,        // targets, expressions, body
  kGeneration,  // body
  kBreak,
  kContinue,
};

// What a macro, or the body of a call block, takes.
struct MacroSignature {
  std::string name;                     // empty for a call block
  std::vector<int> parameters;          // symbols
  std::vector<std::string> names;       // of the parameters
  std::vector<ExpressionPtr> defaults;  // one per parameter; null: none
  // Whether the body mentions these names, which a macro knows without declaring them.
  bool uses_caller = false;
  bool uses_varargs = false;
  bool uses_kwargs = false;
};

struct Branch {
  ExpressionPtr condition;
  Body body;
};

struct Statement {
  StatementKind kind = StatementKind::kData;
  int line = 0;
  std::string text;
  int symbol = 0;
  bool recursive = false;
  ExpressionPtr target;
  ExpressionPtr expression;
  ExpressionPtr test;
  std::vector<ExpressionPtr> targets;
  std::vector<ExpressionPtr> expressions;
  std::vector<Branch> branches;
  MacroSignature macro;
  Body body;
  Body else_body;
};

// Symbols that have a meaning of their own; every template has them in this order.
enum ReservedSymbol : int { kLoopSymbol, kCallerSymbol, kVarargsSymbol, kKwargsSymbol };

struct Syntax {
  std::vector<std::string> symbols;  // names of variables, by symbol
  Body body;
};

}  // namespace offgraph::llm::jinja
