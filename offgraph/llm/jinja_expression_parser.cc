#include "offgraph/llm/jinja_expression_parser.h"

#include <algorithm>

#include "offgraph/cache/error.h"

namespace offgraph::llm::jinja {
namespace {

constexpr int kMostNesting = 100;
constexpr int kMostDepth = 400;

}  // namespace

ExpressionParser::ExpressionParser(std::string_view source) : tokens_(Tokenize(source)) {
  for (const char* name : {"loop", "caller", "varargs", "kwargs"}) Symbol(name);
  mentions_.assign(symbols_.size(), 0);
}

ExpressionParser::Nesting::Nesting(ExpressionParser* parser) : parser_(parser) {
  if (parser->nesting_ >= kMostNesting) parser->Fail("the template nests too deep");
  ++parser->nesting_;
}

Token ExpressionParser::Take() {
  Token token = current();
  if (pos_ + 1 < tokens_.size()) ++pos_;
  return token;
}

bool ExpressionParser::SkipName(std::string_view name) {
  if (!AtName(name)) return false;
  Take();
  return true;
}

bool ExpressionParser::SkipOperator(std::string_view op) {
  if (!AtOperator(op)) return false;
  Take();
  return true;
}

void ExpressionParser::ExpectName(std::string_view name) {
  if (!SkipName(name)) Fail("expected '" + std::string(name) + "', found " + Describe(current()));
}

void ExpressionParser::ExpectOperator(std::string_view op) {
  if (!SkipOperator(op)) Fail("expected '" + std::string(op) + "', found " + Describe(current()));
}

void ExpressionParser::Expect(TokenType type, std::string_view what) {
  if (current().type != type) Fail("expected " + std::string(what) + ", found " + Describe(current()));
  Take();
}

std::string ExpressionParser::TakeName() {
  if (current().type != TokenType::kName) Fail("expected a name, found " + Describe(current()));
  return Take().text;
}

void ExpressionParser::Fail(const std::string& message) const {
  throw Error(ErrorCode::kBadFile, AtLine(current().line, message));
}

int ExpressionParser::Symbol(const std::string& name) {
  const auto [place, added] = symbols_.emplace(name, static_cast<int>(syntax_.symbols.size()));
  if (added) syntax_.symbols.push_back(name);
  return place->second;
}

ExpressionPtr ExpressionParser::Make(ExpressionKind kind, int line, std::vector<ExpressionPtr> children) {
  auto expression = std::make_unique<Expression>();
  expression->kind = kind;
  expression->line = line;
  expression->children = std::move(children);
  CheckDepth(expression.get());
  return expression;
}

template <class... Children>
ExpressionPtr ExpressionParser::MakeOf(ExpressionKind kind, int line, Children... children) {
  std::vector<ExpressionPtr> list;
  (list.push_back(std::move(children)), ...);
  return Make(kind, line, std::move(list));
}

void ExpressionParser::CheckDepth(Expression* expression) const {
  int deepest = 0;
  const auto look = [&](const ExpressionPtr& child) {
    if (child) deepest = std::max(deepest, child->depth);
  };
  for (const ExpressionPtr& child : expression->children) look(child);
  for (const ExpressionPtr& child : expression->arguments.positional) look(child);
  for (const auto& [name, child] : expression->arguments.named) look(child);
  look(expression->arguments.spread);
  look(expression->arguments.named_spread);
  expression->depth = deepest + 1;
  if (expression->depth > kMostDepth) Fail("an expression has too many operators in a row");
}

ExpressionPtr ExpressionParser::ParseExpression(bool with_conditional) {
  const Nesting nesting(this);
  return with_conditional ? ParseConditional() : ParseOr();
}

ExpressionPtr ExpressionParser::ParseConditional() {
  int line = current().line;
  ExpressionPtr value = ParseOr();
  while (SkipName("if")) {
    ExpressionPtr condition = ParseOr();
    ExpressionPtr otherwise = SkipName("else") ? ParseExpression() : nullptr;
    value = MakeOf(ExpressionKind::kConditional, line, std::move(value), std::move(condition), std::move(otherwise));
    line = current().line;
  }
  return value;
}

ExpressionPtr ExpressionParser::ParseOr() {
  ExpressionPtr left = ParseAnd();
  while (AtName("or")) {
    const int line = Take().line;
    left = MakeOf(ExpressionKind::kOr, line, std::move(left), ParseAnd());
  }
  return left;
}

ExpressionPtr ExpressionParser::ParseAnd() {
  ExpressionPtr left = ParseNot();
  while (AtName("and")) {
    const int line = Take().line;
    left = MakeOf(ExpressionKind::kAnd, line, std::move(left), ParseNot());
  }
  return left;
}

ExpressionPtr ExpressionParser::ParseNot() {
  if (!AtName("not")) return ParseComparison();
  const Nesting nesting(this);
  const int line = Take().line;
  return MakeOf(ExpressionKind::kNot, line, ParseNot());
}

ExpressionPtr ExpressionParser::ParseComparison() {
  static constexpr std::pair<std::string_view, Comparison> kOperators[] = {
      {"==", Comparison::kEqual},     {"!=", Comparison::kNotEqual}, {"<", Comparison::kLess},
      {"<=", Comparison::kLessEqual}, {">", Comparison::kGreater},   {">=", Comparison::kGreaterEqual}};
  const int line = current().line;
  std::vector<ExpressionPtr> operands;
  std::vector<Comparison> comparisons;
  operands.push_back(ParseSum());
  while (true) {
    const auto* found = std::find_if(std::begin(kOperators), std::end(kOperators),
                                     [&](const auto& entry) { return AtOperator(entry.first); });
    if (found != std::end(kOperators)) {
      Take();
      comparisons.push_back(found->second);
    } else if (SkipName("in")) {
      comparisons.push_back(Comparison::kIn);
    } else if (AtName("not") && following().Is(TokenType::kName, "in")) {
      Take();
      Take();
      comparisons.push_back(Comparison::kNotIn);
    } else {
      break;
    }
    operands.push_back(ParseSum());
  }
  if (comparisons.empty()) return std::move(operands[0]);
  ExpressionPtr result = Make(ExpressionKind::kCompare, line, std::move(operands));
  result->comparisons = std::move(comparisons);
  return result;
}

ExpressionPtr ExpressionParser::ParseSum() {
  ExpressionPtr left = ParseConcatenation();
  while (AtOperator("+") || AtOperator("-")) {
    const Token token = Take();
    left = MakeOf(ExpressionKind::kBinary, token.line, std::move(left), ParseConcatenation());
    left->op = token.text == "+" ? BinaryOperator::kAdd : BinaryOperator::kSubtract;
  }
  return left;
}

ExpressionPtr ExpressionParser::ParseConcatenation() {
  const int line = current().line;
  std::vector<ExpressionPtr> parts;
  parts.push_back(ParseProduct());
  while (SkipOperator("~")) parts.push_back(ParseProduct());
  if (parts.size() == 1) return std::move(parts[0]);
  return Make(ExpressionKind::kConcatenate, line, std::move(parts));
}

ExpressionPtr ExpressionParser::ParseProduct() {
  static constexpr std::pair<std::string_view, BinaryOperator> kOperators[] = {{"*", BinaryOperator::kMultiply},
                                                                               {"/", BinaryOperator::kDivide},
                                                                               {"//", BinaryOperator::kFloorDivide},
                                                                               {"%", BinaryOperator::kModulo}};
  ExpressionPtr left = ParsePower();
  while (true) {
    const auto* found = std::find_if(std::begin(kOperators), std::end(kOperators),
                                     [&](const auto& entry) { return AtOperator(entry.first); });
    if (found == std::end(kOperators)) return left;
    const int line = Take().line;
    left = MakeOf(ExpressionKind::kBinary, line, std::move(left), ParsePower());
    left->op = found->second;
  }
}

// Left-associative, unlike Python's: that is how Jinja reads 2 ** 3 ** 2.
ExpressionPtr ExpressionParser::ParsePower() {
  ExpressionPtr left = ParseUnary();
  while (AtOperator("**")) {
    const int line = Take().line;
    left = MakeOf(ExpressionKind::kBinary, line, std::move(left), ParseUnary());
    left->op = BinaryOperator::kPower;
  }
  return left;
}

ExpressionPtr ExpressionParser::ParseUnary(bool with_filters) {
  ExpressionPtr expression;
  if (AtOperator("-") || AtOperator("+")) {
    const Nesting nesting(this);
    const Token token = Take();
    const ExpressionKind kind = token.text == "-" ? ExpressionKind::kMinus : ExpressionKind::kPlus;
    expression = MakeOf(kind, token.line, ParseUnary(false));
  } else {
    expression = ParsePrimary();
  }
  expression = ParsePostfix(std::move(expression));
  return with_filters ? ParseFiltersAndTests(std::move(expression)) : std::move(expression);
}

ExpressionPtr ExpressionParser::ParsePrimary() {
  const Token& token = current();
  const int line = token.line;
  switch (token.type) {
    case TokenType::kName:
      return ParseName();
    case TokenType::kString: {
      std::string text;
      while (current().type == TokenType::kString) text += Take().value.text();
      ExpressionPtr literal = Make(ExpressionKind::kLiteral, line);
      literal->value = Value::TrustedString(std::move(text));
      return literal;
    }
    case TokenType::kInteger:
    case TokenType::kFloat: {
      ExpressionPtr literal = Make(ExpressionKind::kLiteral, line);
      literal->value = Take().value;
      return literal;
    }
    default:
      break;
  }
  if (SkipOperator("(")) {
    const Nesting nesting(this);
    ExpressionPtr inner = ParseTuple(true, {}, true);
    ExpectOperator(")");
    return inner;
  }
  if (AtOperator("[")) return ParseListLiteral();
  if (AtOperator("{")) return ParseDictLiteral();
  Fail("expected an expression, found " + Describe(token));
}

ExpressionPtr ExpressionParser::ParseName() {
  const Token token = Take();
  const std::string& name = token.text;
  if (name == "true" || name == "True" || name == "false" || name == "False") {
    ExpressionPtr literal = Make(ExpressionKind::kLiteral, token.line);
    literal->value = Value::Bool(name == "true" || name == "True");
    return literal;
  }
  if (name == "none" || name == "None") return Make(ExpressionKind::kLiteral, token.line);
  ExpressionPtr expression = Make(ExpressionKind::kName, token.line);
  expression->symbol = Symbol(name);
  if (static_cast<size_t>(expression->symbol) < mentions_.size()) ++mentions_[static_cast<size_t>(expression->symbol)];
  return expression;
}

ExpressionPtr ExpressionParser::ParseListLiteral() {
  const int line = current().line;
  ExpectOperator("[");
  std::vector<ExpressionPtr> items;
  while (!AtOperator("]")) {
    if (!items.empty()) ExpectOperator(",");
    if (AtOperator("]")) break;
    items.push_back(ParseExpression());
  }
  ExpectOperator("]");
  return Make(ExpressionKind::kList, line, std::move(items));
}

ExpressionPtr ExpressionParser::ParseDictLiteral() {
  const int line = current().line;
  ExpectOperator("{");
  std::vector<ExpressionPtr> items;
  while (!AtOperator("}")) {
    if (!items.empty()) ExpectOperator(",");
    if (AtOperator("}")) break;
    items.push_back(ParseExpression());
    ExpectOperator(":");
    items.push_back(ParseExpression());
  }
  ExpectOperator("}");
  return Make(ExpressionKind::kDict, line, std::move(items));
}

bool ExpressionParser::AtTupleEnd(std::string_view end) const {
  return current().type == TokenType::kVariableEnd || current().type == TokenType::kBlockEnd || AtOperator(")") ||
         (!end.empty() && AtName(end));
}

ExpressionPtr ExpressionParser::ParseTuple(bool with_conditional, std::string_view end, bool in_parentheses) {
  const int line = current().line;
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
  while (true) {
    if (!items.empty()) ExpectOperator(",");
    if (AtTupleEnd(end)) break;
    items.push_back(ParseExpression(with_conditional));
    if (!AtOperator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !items.empty()) return std::move(items[0]);
  if (!is_tuple && !in_parentheses) Fail("expected an expression, found " + Describe(current()));
  return Make(ExpressionKind::kTuple, line, std::move(items));
}

void ExpressionParser::RequireAssignable(const Expression& target) const {
  if (target.kind == ExpressionKind::kTuple) {
    for (const ExpressionPtr& child : target.children) RequireAssignable(*child);
  } else if (target.kind != ExpressionKind::kName && target.kind != ExpressionKind::kAttribute) {
    Fail("only names can be assigned to");
  }
}

ExpressionPtr ExpressionParser::ParseTarget(bool with_namespace, std::string_view end) {
  const int line = current().line;
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
  while (true) {
    if (!items.empty()) ExpectOperator(",");
    if (AtTupleEnd(end)) break;
    ExpressionPtr item = ParsePrimary();
    if (with_namespace && item->kind == ExpressionKind::kName && AtOperator("."))
      item = ParseAttribute(std::move(item));
    items.push_back(std::move(item));
    if (!AtOperator(",")) break;
    is_tuple = true;
  }
  if (items.empty()) Fail("expected a name to assign to, found " + Describe(current()));
  ExpressionPtr target = is_tuple ? Make(ExpressionKind::kTuple, line, std::move(items)) : std::move(items[0]);
  RequireAssignable(*target);
  return target;
}

ExpressionPtr ExpressionParser::ParsePostfix(ExpressionPtr expression) {
  while (true) {
    if (AtOperator(".")) {
      expression = ParseAttribute(std::move(expression));
    } else if (AtOperator("[")) {
      expression = ParseSubscript(std::move(expression));
    } else if (AtOperator("(")) {
      expression = ParseCall(std::move(expression));
    } else {
      return expression;
    }
  }
}

ExpressionPtr ExpressionParser::ParseFiltersAndTests(ExpressionPtr expression) {
  while (true) {
    if (AtOperator("|")) {
      expression = ParseFilters(std::move(expression), false);
    } else if (AtName("is")) {
      expression = ParseTest(std::move(expression));
    } else if (AtOperator("(")) {
      expression = ParseCall(std::move(expression));
    } else {
      return expression;
    }
  }
}

ExpressionPtr ExpressionParser::ParseAttribute(ExpressionPtr container) {
  const int line = current().line;
  ExpectOperator(".");
  if (current().type == TokenType::kInteger) {
    ExpressionPtr key = Make(ExpressionKind::kLiteral, line);
    key->value = Take().value;
    return MakeOf(ExpressionKind::kItem, line, std::move(container), std::move(key));
  }
  ExpressionPtr expression = MakeOf(ExpressionKind::kAttribute, line, std::move(container));
  expression->text = TakeName();
  return expression;
}

ExpressionPtr ExpressionParser::ParseSubscript(ExpressionPtr container) {
  const int line = current().line;
  ExpectOperator("[");
  ExpressionPtr start;
  if (!AtOperator(":")) {
    start = ParseExpression();
    if (SkipOperator("]")) return MakeOf(ExpressionKind::kItem, line, std::move(container), std::move(start));
    if (AtOperator(",")) throw Error(ErrorCode::kUnsupported, AtLine(line, "several indices in one subscript"));
  }
  ExpectOperator(":");
  ExpressionPtr stop, step;
  if (!AtOperator(":") && !AtOperator("]")) stop = ParseExpression();
  if (SkipOperator(":") && !AtOperator("]")) step = ParseExpression();
  ExpectOperator("]");
  return MakeOf(ExpressionKind::kSlice, line, std::move(container), std::move(start), std::move(stop), std::move(step));
}

ExpressionPtr ExpressionParser::ParseCall(ExpressionPtr callee) {
  ExpressionPtr call = MakeOf(ExpressionKind::kCall, current().line, std::move(callee));
  call->arguments = ParseArguments();
  CheckDepth(call.get());
  return call;
}

ArgumentList ExpressionParser::ParseArguments() {
  ArgumentList list;
  ExpectOperator("(");
  bool first = true;
  while (!AtOperator(")")) {
    if (!first) ExpectOperator(",");
    first = false;
    if (AtOperator(")")) break;
    if (AtOperator("*") && !list.spread && !list.named_spread) {
      Take();
      list.spread = ParseExpression();
    } else if (AtOperator("**") && !list.named_spread) {
      Take();
      list.named_spread = ParseExpression();
    } else if (current().type == TokenType::kName && following().Is(TokenType::kOperator, "=") && !list.named_spread) {
      std::string name = TakeName();
      Take();
      list.named.emplace_back(std::move(name), ParseExpression());
    } else if (list.named.empty() && !list.spread && !list.named_spread) {
      list.positional.push_back(ParseExpression());
    } else {
      Fail("positional arguments come before named ones");
    }
  }
  ExpectOperator(")");
  return list;
}

ExpressionPtr ExpressionParser::ParseFilters(ExpressionPtr input, bool inline_start) {
  while (inline_start || SkipOperator("|")) {
    inline_start = false;
    ExpressionPtr filter = MakeOf(ExpressionKind::kFilter, current().line, std::move(input));
    filter->text = TakeName();
    while (SkipOperator(".")) filter->text += "." + TakeName();
    if (AtOperator("(")) filter->arguments = ParseArguments();
    CheckDepth(filter.get());
    input = std::move(filter);
  }
  return input;
}

ExpressionPtr ExpressionParser::ParseTest(ExpressionPtr input) {
  const int line = current().line;
  ExpectName("is");
  const bool negated = SkipName("not");
  ExpressionPtr test = MakeOf(ExpressionKind::kTest, line, std::move(input));
  test->text = TakeName();
  while (SkipOperator(".")) test->text += "." + TakeName();
  const bool takes_argument = current().type == TokenType::kName || current().type == TokenType::kString ||
                              current().type == TokenType::kInteger || current().type == TokenType::kFloat ||
                              AtOperator("[") || AtOperator("{");
  if (AtOperator("(")) {
    test->arguments = ParseArguments();
  } else if (takes_argument && !AtName("else") && !AtName("or") && !AtName("and")) {
    if (AtName("is")) Fail("tests cannot be chained with 'is'");
    test->arguments.positional.push_back(ParsePostfix(ParsePrimary()));
  }
  CheckDepth(test.get());
  return negated ? MakeOf(ExpressionKind::kNot, line, std::move(test)) : std::move(test);
}

}  // namespace offgraph::llm::jinja
