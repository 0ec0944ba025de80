#include "offgraph/llm/jinja_lexer.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <optional>

#include "offgraph/cache/error.h"
#include "offgraph/llm/jinja_text.h"
#include "offgraph/llm/unicode.h"

namespace offgraph::llm::jinja {
namespace {

constexpr size_t kNone = std::string_view::npos;

bool IsAsciiDigit(char c) { return c >= '0' && c <= '9'; }

bool IsNameStart(char32_t c) { return c == '_' || (c < 0x80 ? IsAlpha(c) : IsAlpha(c) || IsNumeric(c)); }

bool IsNamePart(char32_t c) { return IsNameStart(c) || IsDecimal(c) || (c >= 0x80 && IsMark(c)); }

// All line ends become \n, and one at the end of the template is dropped.
std::string NormalizeLines(std::string_view source) {
  std::string result;
  result.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      result += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      result += source[i];
    }
  }
  if (result.ends_with('\n')) result.pop_back();
  return result;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(NormalizeLines(source)) {}

  std::vector<Token> Run() {
    while (pos_ < source_.size()) Root();
    Push(TokenType::kEnd);
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void Fail(const std::string& message) const { FailAs(ErrorCode::kBadFile, message); }
  [[noreturn]] void FailAs(ErrorCode code, const std::string& message) const {
    throw Error(code, AtLine(line_, message));
  }

  std::string_view Rest() const { return std::string_view(source_).substr(pos_); }
  bool At(std::string_view text) const { return Rest().starts_with(text); }

  void Push(TokenType type, std::string text = {}, Value value = {}) {
    tokens_.push_back({type, line_, std::move(text), std::move(value)});
  }

  void Advance(size_t bytes) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(pos_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(pos_ + bytes), '\n'));
    pos_ += bytes;
    line_starts_ = bytes > 0 && source_[pos_ - 1] == '\n';
  }

  size_t SpaceLength(std::string_view text) const { return text.size() - Strip(text, Side::kLeft).size(); }

  // Text up to the next tag, and the beginning of the tag.
  void Root() {
    size_t tag = pos_;
    while ((tag = source_.find('{', tag)) != kNone) {
      const char next = tag + 1 < source_.size() ? source_[tag + 1] : '\0';
      if (next == '{' || next == '%' || next == '#') break;
      ++tag;
    }
    if (tag == kNone) {
      Push(TokenType::kData, std::string(Rest()));
      Advance(Rest().size());
      return;
    }
    const char kind = source_[tag + 1];
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    const bool has_sign = sign == '-' || sign == '+';
    EmitData(tag, has_sign ? sign : '\0', kind == '{');
    const std::optional<size_t> raw = kind == '%' ? RawBegin(tag + (has_sign ? 3 : 2)) : std::nullopt;
    Advance(tag - pos_);
    if (raw) {
      Advance(*raw - pos_);
      RawBody();
      return;
    }
    Advance(has_sign ? 3 : 2);
    if (kind == '#') {
      Comment();
    } else {
      Push(kind == '{' ? TokenType::kVariableBegin : TokenType::kBlockBegin);
      Tag(kind == '{');
    }
  }

  // Data before a tag at `end`, without the white space that the tag takes away.
  void EmitData(size_t end, char sign, bool variable) {
    std::string_view text = std::string_view(source_).substr(pos_, end - pos_);
    if (sign == '-') {
      text = Strip(text, Side::kRight);
    } else if (sign != '+' && !variable) {
      const size_t line_begin = text.rfind('\n') == kNone ? 0 : text.rfind('\n') + 1;
      const bool at_line_start = line_begin > 0 || line_starts_;
      if (at_line_start && Strip(text.substr(line_begin), Side::kLeft).empty()) text = text.substr(0, line_begin);
    }
    if (!text.empty()) Push(TokenType::kData, std::string(text));
  }

  // Where the body of a raw block begins whose name would stand at `pos`.
  std::optional<size_t> RawBegin(size_t pos) const {
    const std::string_view source = source_;
    pos += SpaceLength(source.substr(pos));
    if (!source.substr(pos).starts_with("raw")) return std::nullopt;
    pos += 3;
    pos += SpaceLength(source.substr(pos));
    if (source.substr(pos).starts_with("-%}")) {
      pos += 3;
      return pos + SpaceLength(source.substr(pos));
    }
    if (source.substr(pos).starts_with("%}")) return pos + 2;
    return std::nullopt;
  }

  void RawBody() {
    const std::string_view source = source_;
    for (size_t tag = source.find("{%", pos_); tag != kNone; tag = source.find("{%", tag + 1)) {
      size_t pos = tag + 2;
      const char sign = pos < source.size() ? source[pos] : '\0';
      const bool has_sign = sign == '-' || sign == '+';
      if (has_sign) ++pos;
      pos += SpaceLength(source.substr(pos));
      if (!source.substr(pos).starts_with("endraw")) continue;
      pos += 6;
      pos += SpaceLength(source.substr(pos));
      const size_t end = BlockEnd(pos);
      if (end == 0) continue;
      EmitData(tag, has_sign ? sign : '\0', false);
      Advance(pos + end - pos_);
      return;
    }
    Fail("the raw block has no end");
  }

  void Comment() {
    const size_t close = source_.find("#}", pos_);
    if (close == kNone) Fail("the comment has no end");
    size_t end = close + 2;
    // A sign before the end belongs to it.
    if (close > pos_ && source_[close - 1] == '-') {
      end += SpaceLength(std::string_view(source_).substr(end));
    } else if (!(close > pos_ && source_[close - 1] == '+') && end < source_.size() && source_[end] == '\n') {
      ++end;
    }
    Advance(end - pos_);
  }

  // Length of the end of a block at `pos`, with the white space it takes away; 0 where there is none.
  size_t BlockEnd(size_t pos) const {
    const std::string_view rest = std::string_view(source_).substr(pos);
    if (rest.starts_with("+%}")) return 3;
    if (rest.starts_with("-%}")) return 3 + SpaceLength(rest.substr(3));
    if (rest.starts_with("%}\n")) return 3;
    return rest.starts_with("%}") ? 2 : 0;
  }

  size_t VariableEnd(size_t pos) const {
    const std::string_view rest = std::string_view(source_).substr(pos);
    if (rest.starts_with("-}}")) return 3 + SpaceLength(rest.substr(3));
    return rest.starts_with("}}") ? 2 : 0;
  }

  // Inside {{ }} or {% %}.
  void Tag(bool variable) {
    std::string open;  // the brackets that must still be closed, innermost last
    while (true) {
      if (open.empty()) {
        if (const size_t end = variable ? VariableEnd(pos_) : BlockEnd(pos_); end > 0) {
          Push(variable ? TokenType::kVariableEnd : TokenType::kBlockEnd);
          Advance(end);
          return;
        }
      }
      if (pos_ >= source_.size()) {
        Push(TokenType::kEnd);  // the parser says what it expected instead
        return;
      }
      if (const size_t space = SpaceLength(Rest()); space > 0) {
        Advance(space);
      } else if (!Number() && !Name() && !String()) {
        Operator(&open);
      }
    }
  }

  // Length of digits, possibly separated by single underscores, at `pos`.
  template <class Digit>
  size_t DigitsLength(size_t pos, Digit is_digit) const {
    const size_t begin = pos;
    while (pos < source_.size()) {
      const bool separates =
          pos > begin && source_[pos] == '_' && pos + 1 < source_.size() && is_digit(source_[pos + 1]);
      if (!separates && !is_digit(source_[pos])) break;
      ++pos;
    }
    return pos - begin;
  }

  size_t FloatLength() const {
    const auto digits = [&](size_t pos) { return DigitsLength(pos, IsAsciiDigit); };
    if (pos_ > 0 && source_[pos_ - 1] == '.') return 0;
    const size_t whole = digits(pos_);
    if (whole == 0) return 0;
    size_t pos = pos_ + whole;
    size_t fraction = 0;
    if (pos < source_.size() && source_[pos] == '.') fraction = digits(pos + 1);
    if (fraction > 0) pos += 1 + fraction;
    size_t exponent = 0;
    if (pos < source_.size() && (source_[pos] == 'e' || source_[pos] == 'E')) {
      const size_t sign = pos + 1 < source_.size() && (source_[pos + 1] == '+' || source_[pos + 1] == '-') ? 1 : 0;
      if (const size_t count = digits(pos + 1 + sign); count > 0) exponent = 1 + sign + count;
    }
    return fraction + exponent > 0 ? pos + exponent - pos_ : 0;
  }

  size_t IntegerLength() const {
    const char first = source_[pos_];
    if (!IsAsciiDigit(first)) return 0;
    if (first != '0') return DigitsLength(pos_, IsAsciiDigit);
    const char mark = pos_ + 1 < source_.size() ? static_cast<char>(source_[pos_ + 1] | 0x20) : '\0';
    const size_t underscore = pos_ + 2 < source_.size() && source_[pos_ + 2] == '_' ? 1 : 0;
    const auto marked = [&](auto is_digit) {
      const size_t digits = DigitsLength(pos_ + 2 + underscore, is_digit);
      return digits > 0 ? 2 + underscore + digits : 0;
    };
    size_t length = 0;
    if (mark == 'b') length = marked([](char c) { return c == '0' || c == '1'; });
    if (mark == 'o') length = marked([](char c) { return c >= '0' && c <= '7'; });
    if (mark == 'x') length = marked([](char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; });
    return length > 0 ? length : DigitsLength(pos_, [](char c) { return c == '0'; });
  }

  bool Number() {
    if (const size_t length = FloatLength(); length > 0) {
      Push(TokenType::kFloat, {}, Value::Float(ParseFloat(Rest().substr(0, length)).value_or(0.0)));
      Advance(length);
      return true;
    }
    const size_t length = IntegerLength();
    if (length == 0) return false;
    try {
      Push(TokenType::kInteger, {}, Value::Int(ParseInt(Rest().substr(0, length), 0).value_or(0)));
    } catch (const Error& error) {
      FailAs(error.code(), error.what());
    }
    Advance(length);
    return true;
  }

  bool Name() {
    const std::string_view rest = Rest();
    size_t end = 0;
    while (end < rest.size()) {
      size_t next = end;
      const char32_t c = NextCodePoint(rest, &next);
      if (end == 0 ? !IsNameStart(c) : !IsNamePart(c)) break;
      end = next;
    }
    if (end == 0) return false;
    Push(TokenType::kName, std::string(rest.substr(0, end)));
    Advance(end);
    return true;
  }

  bool String() {
    const char quote = source_[pos_];
    if (quote != '\'' && quote != '"') return false;
    size_t end = pos_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) return false;
    const size_t length = end + 1 - pos_;
    Push(TokenType::kString, {}, Value::TrustedString(Unescape(Rest().substr(1, length - 2))));
    Advance(length);
    return true;
  }

  std::string Unescape(std::string_view text) const;
  char32_t CodePointEscape(std::string_view text, size_t* pos, size_t digits) const;

  void Operator(std::string* open) {
    constexpr std::array<std::string_view, 26> kOperators = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                             "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                             ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    const auto* found =
        std::find_if(kOperators.begin(), kOperators.end(), [&](std::string_view text) { return At(text); });
    if (found == kOperators.end()) {
      const size_t length = Utf8Length(static_cast<unsigned char>(source_[pos_]));
      Fail("unexpected character '" + std::string(Rest().substr(0, length)) + "'");
    }
    constexpr std::string_view kOpening = "([{", kClosing = ")]}";
    const char first = found->front();
    if (const size_t kind = kOpening.find(first); kind != kNone) {
      *open += kClosing[kind];
    } else if (kClosing.find(first) != kNone) {
      if (open->empty()) Fail(std::string("unexpected '") + first + "'");
      if (open->back() != first) {
        Fail(std::string("unexpected '") + first + "', expected '" + open->back() + "'");
      }
      open->pop_back();
    }
    Push(TokenType::kOperator, std::string(*found));
    Advance(found->size());
  }

  std::string source_;
  std::vector<Token> tokens_;
  size_t pos_ = 0;
  int line_ = 1;
  bool line_starts_ = true;  // what was read last ended a line
};

// Python's unicode_escape, after Jinja wrote characters beyond ASCII as escapes.
std::string Lexer::Unescape(std::string_view text) const {
  std::string result;
  for (size_t pos = 0; pos < text.size();) {
    if (text[pos] != '\\') {
      result += text[pos++];
      continue;
    }
    ++pos;
    const size_t begin = pos;
    const char32_t c = NextCodePoint(text, &pos);
    constexpr std::string_view kSimple = "\\'\"abfnrtv", kMeaning = "\\'\"\a\b\f\n\r\t\v";
    const size_t simple = c < 0x80 ? kSimple.find(static_cast<char>(c)) : kNone;
    if (simple != kNone) {
      result += kMeaning[simple];
    } else if (c == '\n') {
      // A line that goes on.
    } else if (c >= '0' && c <= '7') {
      char32_t value = 0;
      for (pos = begin; pos < text.size() && pos < begin + 3 && text[pos] >= '0' && text[pos] <= '7'; ++pos) {
        value = value * 8 + static_cast<char32_t>(text[pos] - '0');
      }
      AppendUtf8(value, &result);
    } else if (c == 'x' || c == 'u' || c == 'U') {
      AppendUtf8(CodePointEscape(text, &pos, c == 'x' ? 2 : c == 'u' ? 4 : 8), &result);
    } else if (c == 'N') {
      FailAs(ErrorCode::kUnsupported, "characters by name (\\N{...}) are not supported");
    } else if (c >= 0x80) {
      // The backslash escapes the backslash of the character's own escape, so that stays as text.
      std::array<char, 16> buffer;
      const char* pattern = c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x";
      std::snprintf(buffer.data(), buffer.size(), pattern, static_cast<unsigned>(c));
      result += buffer.data();
    } else {
      result += '\\';
      result += static_cast<char>(c);
    }
  }
  return result;
}

char32_t Lexer::CodePointEscape(std::string_view text, size_t* pos, size_t digits) const {
  char32_t value = 0;
  for (size_t i = 0; i < digits; ++i, ++*pos) {
    if (*pos >= text.size() || std::isxdigit(static_cast<unsigned char>(text[*pos])) == 0) {
      Fail("an escape in a text needs " + std::to_string(digits) + " hexadecimal digits");
    }
    const char c = text[*pos];
    value = value * 16 + static_cast<char32_t>(IsAsciiDigit(c) ? c - '0' : (c | 0x20) - 'a' + 10);
  }
  if (value >= kCodePointEnd) Fail("an escape in a text names no character");
  if (value >= 0xD800 && value < 0xE000) FailAs(ErrorCode::kUnsupported, "lone surrogates are not supported");
  return value;
}

}  // namespace

std::string Describe(const Token& token) {
  switch (token.type) {
    case TokenType::kData:
      return "text";
    case TokenType::kBlockBegin:
      return "'{%'";
    case TokenType::kBlockEnd:
      return "'%}'";
    case TokenType::kVariableBegin:
      return "'{{'";
    case TokenType::kVariableEnd:
      return "'}}'";
    case TokenType::kName:
    case TokenType::kOperator:
      return "'" + token.text + "'";
    case TokenType::kString:
      return "a string";
    case TokenType::kInteger:
    case TokenType::kFloat:
      return "a number";
    case TokenType::kEnd:
      return "the end of the template";
  }
  return {};
}

std::vector<Token> Tokenize(std::string_view source) {
  if (!IsValidUtf8(source)) throw Error(ErrorCode::kBadFile, "chat template: the text is not valid UTF-8");
  return Lexer(source).Run();
}

std::string AtLine(int line, const std::string& message) {
  return "chat template, line " + std::to_string(line) + ": " + message;
}

}  // namespace offgraph::llm::jinja
