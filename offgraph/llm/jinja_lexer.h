// Cuts a template into tokens, as jinja2/lexer.py does with trim_blocks and lstrip_blocks: the white space that tags
// take away is gone from the data tokens, comments are gone, and raw blocks are data.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "offgraph/llm/jinja_value.h"

namespace offgraph::llm::jinja {

enum class TokenType {
  kData,           // text outside of tags
  kBlockBegin,     // {%
  kBlockEnd,       // %}
  kVariableBegin,  // {{
  kVariableEnd,    // }}
  kName,
  kString,   // value: its text, escapes resolved
  kInteger,  // value
  kFloat,    // value
  kOperator,
  kEnd,
};

struct Token {
  TokenType type = TokenType::kEnd;
  int line = 0;      // counted from 1
  std::string text;  // of data, a name or an operator
  Value value;       // of a literal

  bool Is(TokenType wanted, std::string_view wanted_text) const { return type == wanted && text == wanted_text; }
};

// How a token is called in messages.
std::string Describe(const Token& token);

// The last token is kEnd. Throws kBadFile, with the line, for text that is no template, kUnsupported for literals that
// have no place here (integers beyond 64 bits, lone surrogates, named characters).
std::vector<Token> Tokenize(std::string_view source);

// "chat template, line N: ..."
std::string AtLine(int line, const std::string& message);

}  // namespace offgraph::llm::jinja
