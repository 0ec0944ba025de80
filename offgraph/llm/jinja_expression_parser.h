// The half of the parser that reads expressions; jinja_parser.cc builds statements on it.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "offgraph/llm/jinja_ast.h"
#include "offgraph/llm/jinja_lexer.h"

namespace offgraph::llm::jinja {

class ExpressionParser {
 protected:
  explicit ExpressionParser(std::string_view source);

  // ---- tokens
  const Token& current() const { return tokens_[pos_]; }
  const Token& following() const { return tokens_[std::min(pos_ + 1, tokens_.size() - 1)]; }
  Token Take();
  bool AtName(std::string_view name) const { return current().Is(TokenType::kName, name); }
  bool AtOperator(std::string_view op) const { return current().Is(TokenType::kOperator, op); }
  bool SkipName(std::string_view name);
  bool SkipOperator(std::string_view op);
  void ExpectName(std::string_view name);
  void ExpectOperator(std::string_view op);
  void Expect(TokenType type, std::string_view what);
  std::string TakeName();
  [[noreturn]] void Fail(const std::string& message) const;

  int Symbol(const std::string& name);
  Syntax& syntax() { return syntax_; }
  // How often a reserved symbol was mentioned so far.
  int Mentions(ReservedSymbol symbol) const { return mentions_[static_cast<size_t>(symbol)]; }

  // ---- expressions
  ExpressionPtr ParseExpression(bool with_conditional = true);
  // An expression, or several with commas between them: a tuple. Ends before the name `end`, if one is given.
  ExpressionPtr ParseTuple(bool with_conditional = true, std::string_view end = {}, bool in_parentheses = false);
  // What can stand on the left of an assignment: a name, a tuple of such, name.attribute where `with_namespace`.
  ExpressionPtr ParseTarget(bool with_namespace, std::string_view end = {});
  // Filters ("|name(...)|name") over `input`; the first name comes without a bar where `inline_start`.
  ExpressionPtr ParseFilters(ExpressionPtr input, bool inline_start);

  // Counts nesting while it lives, so that neither this parser nor the interpreter runs out of stack.
  class Nesting {
   public:
    explicit Nesting(ExpressionParser* parser);
    ~Nesting() { --parser_->nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    ExpressionParser* parser_;
  };

  ExpressionPtr Make(ExpressionKind kind, int line, std::vector<ExpressionPtr> children = {});

 private:
  template <class... Children>
  ExpressionPtr MakeOf(ExpressionKind kind, int line, Children... children);
  void CheckDepth(Expression* expression) const;

  ExpressionPtr ParseConditional();
  ExpressionPtr ParseOr();
  ExpressionPtr ParseAnd();
  ExpressionPtr ParseNot();
  ExpressionPtr ParseComparison();
  ExpressionPtr ParseSum();
  ExpressionPtr ParseConcatenation();
  ExpressionPtr ParseProduct();
  ExpressionPtr ParsePower();
  ExpressionPtr ParseUnary(bool with_filters = true);
  ExpressionPtr ParsePrimary();
  ExpressionPtr ParseName();
  ExpressionPtr ParseListLiteral();
  ExpressionPtr ParseDictLiteral();
  ExpressionPtr ParsePostfix(ExpressionPtr expression);
  ExpressionPtr ParseFiltersAndTests(ExpressionPtr expression);
  ExpressionPtr ParseAttribute(ExpressionPtr container);
  ExpressionPtr ParseSubscript(ExpressionPtr container);
  ExpressionPtr ParseCall(ExpressionPtr callee);
  ExpressionPtr ParseTest(ExpressionPtr input);
  ArgumentList ParseArguments();
  bool AtTupleEnd(std::string_view end) const;
  void RequireAssignable(const Expression& target) const;

  std::vector<Token> tokens_;
  size_t pos_ = 0;
  Syntax syntax_;
  std::unordered_map<std::string, int> symbols_;
  std::vector<int> mentions_;
  int nesting_ = 0;
};

}  // namespace offgraph::llm::jinja
