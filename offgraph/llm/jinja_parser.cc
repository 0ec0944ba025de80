#include "offgraph/llm/jinja_parser.h"

#include <algorithm>
#include <array>
#include <initializer_list>

#include "offgraph/cache/error.h"
#include "offgraph/llm/jinja_expression_parser.h"

namespace offgraph::llm::jinja {
namespace {

class Parser : public ExpressionParser {
 public:
  explicit Parser(std::string_view source) : ExpressionParser(source) {}

  Syntax Run() {
    syntax().body = ParseBody({});
    return std::move(syntax());
  }

 private:
  using EndTags = std::initializer_list<std::string_view>;

  // Everything up to one of the tags in `ends`, whose name is then current, or to the end of the template.
  Body ParseBody(EndTags ends) {
    const Nesting nesting(this);
    Body body;
    while (current().type != TokenType::kEnd) {
      const Token token = Take();
      if (token.type == TokenType::kData) {
        body.push_back(New(StatementKind::kData, token.line));
        body.back().text = token.text;
      } else if (token.type == TokenType::kVariableBegin) {
        body.push_back(New(StatementKind::kOutput, token.line));
        body.back().expressions.push_back(ParseTuple());
        Expect(TokenType::kVariableEnd, "'}}'");
      } else {
        if (std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return AtName(end); })) return body;
        body.push_back(ParseStatement());
        Expect(TokenType::kBlockEnd, "'%}'");
      }
    }
    if (ends.size() > 0) Fail("expected {% " + std::string(*ends.begin()) + " %}, found the end of the template");
    return body;
  }

  // The rest of a tag, and what follows it up to one of `ends`. (The colon is for people who come from Python.)
  Body ParseBlock(EndTags ends) {
    SkipOperator(":");
    Expect(TokenType::kBlockEnd, "'%}'");
    return ParseBody(ends);
  }

  Body ParseBlockTo(std::string_view end) {
    Body body = ParseBlock({end});
    Take();
    return body;
  }

  static Statement New(StatementKind kind, int line) {
    Statement statement;
    statement.kind = kind;
    statement.line = line;
    return statement;
  }

  Statement ParseStatement() {
    using Reader = void (Parser::*)(Statement*);
    struct Entry {
      std::string_view tag;
      StatementKind kind;
      Reader read;
    };
    static constexpr Entry kStatements[] = {
        {"for", StatementKind::kFor, &Parser::ReadFor},
        {"if", StatementKind::kIf, &Parser::ReadIf},
        {"set", StatementKind::kSet, &Parser::ReadSet},
        {"macro", StatementKind::kMacro, &Parser::ReadMacro},
        {"call", StatementKind::kCall, &Parser::ReadCall},
        {"filter", StatementKind::kFilter, &Parser::ReadFilter},
        {"with", StatementKind::kWith, &Parser::ReadWith},
        {"print", StatementKind::kOutput, &Parser::ReadPrint},
        {"generation", StatementKind::kGeneration, &Parser::ReadGeneration},
        {"break", StatementKind::kBreak, &Parser::ReadLoopControl},
        {"continue", StatementKind::kContinue, &Parser::ReadLoopControl},
    };
    if (current().type != TokenType::kName) Fail("expected the name of a statement, found " + Describe(current()));
    for (const Entry& entry : kStatements) {
      if (!AtName(entry.tag)) continue;
      Statement statement = New(entry.kind, Take().line);
      (this->*entry.read)(&statement);
      return statement;
    }
    const std::string& name = current().text;
    if (name.starts_with("end") || name == "else" || name == "elif") Fail("'" + name + "' has nothing to end here");
    throw Error(ErrorCode::kUnsupported, AtLine(current().line, "the statement '" + name + "' is not supported"));
  }

  void ReadFor(Statement* statement) {
    statement->target = ParseTarget(false, "in");
    ExpectName("in");
    statement->expression = ParseTuple(false, "recursive");
    if (SkipName("if")) statement->test = ParseExpression();
    statement->recursive = SkipName("recursive");
    ++loops_;
    statement->body = ParseBlock({"endfor", "else"});
    --loops_;
    if (Take().text == "else") statement->else_body = ParseBlockTo("endfor");
  }

  void ReadIf(Statement* statement) {
    while (true) {
      Branch branch;
      branch.condition = ParseTuple(false);
      branch.body = ParseBlock({"endif", "elif", "else"});
      statement->branches.push_back(std::move(branch));
      const std::string tag = Take().text;
      if (tag == "elif") continue;
      if (tag == "else") statement->else_body = ParseBlockTo("endif");
      return;
    }
  }

  void ReadSet(Statement* statement) {
    statement->target = ParseTarget(true);
    if (SkipOperator("=")) {
      statement->expression = ParseTuple();
      return;
    }
    statement->kind = StatementKind::kSetBlock;
    statement->expression = ParseFilters(Make(ExpressionKind::kBlockText, statement->line), false);
    statement->body = ParseBlockTo("endset");
  }

  void ReadFilter(Statement* statement) {
    statement->expression = ParseFilters(Make(ExpressionKind::kBlockText, statement->line), true);
    statement->body = ParseBlockTo("endfilter");
  }

  void ReadWith(Statement* statement) {
    while (current().type != TokenType::kBlockEnd) {
      if (!statement->targets.empty()) ExpectOperator(",");
      statement->targets.push_back(ParseTarget(false));
      ExpectOperator("=");
      statement->expressions.push_back(ParseExpression());
    }
    statement->body = ParseBlockTo("endwith");
  }

  void ReadPrint(Statement* statement) {
    while (current().type != TokenType::kBlockEnd) {
      if (!statement->expressions.empty()) ExpectOperator(",");
      statement->expressions.push_back(ParseExpression());
    }
  }

  void ReadMacro(Statement* statement) {
    statement->macro.name = TakeName();
    statement->symbol = Symbol(statement->macro.name);
    ReadFunction(statement, "endmacro", [&] { ReadSignature(&statement->macro); });
  }

  void ReadCall(Statement* statement) {
    ReadFunction(statement, "endcall", [&] {
      if (AtOperator("(")) ReadSignature(&statement->macro);
      statement->expression = ParseExpression();
      if (statement->expression->kind != ExpressionKind::kCall) Fail("expected a call");
    });
  }

  void ReadGeneration(Statement* statement) {
    ReadFunction(statement, "endgeneration", [] {});
  }

  // The body becomes a function: loops around it cannot be left from within.
  template <class ReadHead>
  void ReadFunction(Statement* statement, std::string_view end, ReadHead read_head) {
    constexpr std::array kSpecial = {kCallerSymbol, kVarargsSymbol, kKwargsSymbol};
    std::array<int, 3> before{};
    for (size_t i = 0; i < kSpecial.size(); ++i) before[i] = Mentions(kSpecial[i]);
    read_head();
    const int loops = std::exchange(loops_, 0);
    statement->body = ParseBlockTo(end);
    loops_ = loops;
    statement->macro.uses_caller = Mentions(kSpecial[0]) > before[0];
    statement->macro.uses_varargs = Mentions(kSpecial[1]) > before[1];
    statement->macro.uses_kwargs = Mentions(kSpecial[2]) > before[2];
  }

  void ReadSignature(MacroSignature* signature) {
    ExpectOperator("(");
    while (!AtOperator(")")) {
      if (!signature->names.empty()) ExpectOperator(",");
      signature->names.push_back(TakeName());
      signature->parameters.push_back(Symbol(signature->names.back()));
      if (SkipOperator("=")) {
        signature->defaults.push_back(ParseExpression());
      } else {
        if (!signature->defaults.empty() && signature->defaults.back()) {
          Fail("a parameter without a default follows one that has one");
        }
        signature->defaults.push_back(nullptr);
      }
    }
    ExpectOperator(")");
  }

  void ReadLoopControl(Statement* /*statement*/) {
    if (loops_ == 0) Fail("there is no loop to leave or continue here");
  }

  int loops_ = 0;  // that enclose the current place, within the innermost macro
};

}  // namespace

Syntax Parse(std::string_view source) { return Parser(source).Run(); }

}  // namespace offgraph::llm::jinja
