#include "offgraph/llm/jinja_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "offgraph/cache/error.h"
#include "offgraph/llm/jinja_casing.h"
#include "offgraph/llm/unicode.h"

namespace offgraph::llm::jinja {
namespace {

utf8proc_category_t Category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

bool IsUpperOrTitle(char32_t c) {
  const auto category = Category(c);
  return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LT;
}

bool IsCasedCharacter(char32_t c) {
  return IsUpperOrTitle(c) || utf8proc_islower(static_cast<utf8proc_int32_t>(c)) != 0 ||
         utf8proc_isupper(static_cast<utf8proc_int32_t>(c)) != 0;
}

// Unicode's Case_Ignorable: what may stand between a final sigma and the rest of its word.
bool IsCaseIgnorable(char32_t c) {
  switch (Category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      break;
  }
  constexpr std::u32string_view kWordPunctuation =
      U"'.:\u00B7\u0387\u055F\u05F4\u2018\u2019\u2024\u2027\uFE13\uFE52"
      U"\uFE55\uFF07\uFF0E\uFF1A";
  return kWordPunctuation.find(c) != std::u32string_view::npos;
}

void AppendUpper(char32_t c, std::string* out) {
  if (const SpecialCasing* special = FindSpecialCasing(c)) {
    *out += special->upper;
  } else {
    AppendUtf8(static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))), out);
  }
}

void AppendTitle(char32_t c, std::string* out) {
  if (const SpecialCasing* special = FindSpecialCasing(c)) {
    *out += special->title;
  } else {
    AppendUtf8(static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))), out);
  }
}

// A capital sigma at the end of a word has a form of its own (SpecialCasing.txt, Final_Sigma).
bool IsFinalSigma(std::string_view text, size_t begin, size_t end) {
  bool cased_before = false;
  for (size_t pos = begin; pos > 0;) {
    const char32_t c = PreviousCodePoint(text, &pos);
    if (IsCaseIgnorable(c)) continue;
    cased_before = IsCasedCharacter(c);
    break;
  }
  if (!cased_before) return false;
  for (size_t pos = end; pos < text.size();) {
    const char32_t c = NextCodePoint(text, &pos);
    if (!IsCaseIgnorable(c)) return !IsCasedCharacter(c);
  }
  return true;
}

// Lower case of the character at text[*pos]; moves *pos behind it.
void AppendLower(std::string_view text, size_t* pos, std::string* out) {
  constexpr char32_t kCapitalDottedI = 0x130;
  constexpr char32_t kCapitalSigma = 0x3A3;
  const size_t begin = *pos;
  const char32_t c = NextCodePoint(text, pos);
  if (c == kCapitalDottedI) {
    *out += "i\u0307";
  } else if (c == kCapitalSigma) {
    *out += IsFinalSigma(text, begin, *pos) ? "\u03C2" : "\u03C3";
  } else {
    AppendUtf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), out);
  }
}

bool IsLineEnd(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

bool IsPrintable(char32_t c) {
  if (c == ' ') return true;
  const auto category = Category(c);
  return category != UTF8PROC_CATEGORY_CN && !(category >= UTF8PROC_CATEGORY_ZS && category <= UTF8PROC_CATEGORY_CO);
}

std::string Hex(char32_t value, int digits) {
  std::array<char, 16> buffer;
  std::snprintf(buffer.data(), buffer.size(), "%0*x", digits, static_cast<unsigned>(value));
  return buffer.data();
}

void PayForPart(Budget& budget) {
  budget.Steps();
  budget.Bytes(sizeof(std::string_view));
}

std::vector<std::string_view> SplitAtSpace(std::string_view text, int64_t max_splits, bool from_right, Budget& budget) {
  std::vector<std::string_view> parts;
  text = Strip(text, from_right ? Side::kRight : Side::kLeft);
  while (!text.empty()) {
    PayForPart(budget);
    if (max_splits-- == 0) {
      parts.push_back(Strip(text, from_right ? Side::kRight : Side::kLeft));
      break;
    }
    size_t pos = from_right ? text.size() : 0;
    size_t word_end = pos;
    while (from_right ? pos > 0 : pos < text.size()) {
      if (IsSpace(from_right ? PreviousCodePoint(text, &pos) : NextCodePoint(text, &pos))) break;
      word_end = pos;
    }
    parts.push_back(from_right ? text.substr(word_end) : text.substr(0, word_end));
    text = from_right ? Strip(text.substr(0, word_end), Side::kRight) : Strip(text.substr(word_end), Side::kLeft);
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

}  // namespace

bool IsSpace(char32_t c) { return IsWhitespace(c) || (c >= 0x1C && c <= 0x1F); }

bool IsAlpha(char32_t c) {
  const auto category = Category(c);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool IsDecimal(char32_t c) { return Category(c) == UTF8PROC_CATEGORY_ND; }

bool IsDigit(char32_t c) {
  // Numeric_Type=Digit: digits that are not used in decimal numbers.
  static constexpr char32_t kDigits[][2] = {
      {0x00B2, 0x00B3}, {0x00B9, 0x00B9},   {0x1369, 0x1371},   {0x19DA, 0x19DA},   {0x2070, 0x2070},
      {0x2074, 0x2079}, {0x2080, 0x2089},   {0x2460, 0x2468},   {0x2474, 0x247C},   {0x2488, 0x2490},
      {0x24EA, 0x24EA}, {0x24F5, 0x24FD},   {0x24FF, 0x24FF},   {0x2776, 0x277E},   {0x2780, 0x2788},
      {0x278A, 0x2792}, {0x10A40, 0x10A43}, {0x10E60, 0x10E68}, {0x11052, 0x1105A}, {0x1F100, 0x1F10A}};
  return IsDecimal(c) || std::any_of(std::begin(kDigits), std::end(kDigits),
                                     [c](const char32_t* range) { return c >= range[0] && c <= range[1]; });
}

size_t Length(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

size_t ByteOffset(std::string_view text, size_t index) {
  size_t pos = 0;
  while (index > 0 && pos < text.size()) {
    pos += Utf8Length(static_cast<unsigned char>(text[pos]));
    --index;
  }
  return std::min(pos, text.size());
}

std::vector<std::string_view> Characters(std::string_view text) {
  std::vector<std::string_view> result;
  for (size_t pos = 0; pos < text.size();) {
    const size_t length = Utf8Length(static_cast<unsigned char>(text[pos]));
    result.push_back(text.substr(pos, length));
    pos += length;
  }
  return result;
}

std::string_view Strip(std::string_view text, Side side, std::optional<std::string_view> characters) {
  std::u32string set;
  if (characters) {
    for (size_t pos = 0; pos < characters->size();) set += NextCodePoint(*characters, &pos);
    std::sort(set.begin(), set.end());
  }
  const auto strips = [&](char32_t c) {
    return characters ? std::binary_search(set.begin(), set.end(), c) : IsSpace(c);
  };
  while (side != Side::kRight && !text.empty()) {
    size_t pos = 0;
    if (!strips(NextCodePoint(text, &pos))) break;
    text.remove_prefix(pos);
  }
  while (side != Side::kLeft && !text.empty()) {
    size_t pos = text.size();
    if (!strips(PreviousCodePoint(text, &pos))) break;
    text = text.substr(0, pos);
  }
  return text;
}

size_t Find(std::string_view text, std::string_view part, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (part.empty()) return from;
  if (part.size() == 1) return text.find(part[0], from);
  const void* found = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  return found == nullptr ? std::string_view::npos : static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

size_t FindLast(std::string_view text, std::string_view part) {
  const std::string backwards(text.rbegin(), text.rend()), part_backwards(part.rbegin(), part.rend());
  const size_t found = Find(backwards, part_backwards);
  return found == std::string_view::npos ? found : text.size() - found - part.size();
}

std::vector<std::string_view> Split(std::string_view text, std::optional<std::string_view> separator,
                                    int64_t max_splits, bool from_right, Budget& budget) {
  budget.Bytes(text.size());
  if (!separator) return SplitAtSpace(text, max_splits, from_right, budget);
  // From the right: the same on the text read backwards.
  std::string backwards, separator_backwards;
  if (from_right) {
    backwards.assign(text.rbegin(), text.rend());
    separator_backwards.assign(separator->rbegin(), separator->rend());
  }
  Occurrences occurrences(from_right ? backwards : text, from_right ? separator_backwards : *separator);
  std::vector<std::string_view> parts;
  size_t begin = 0;
  const auto add = [&](size_t end) {
    PayForPart(budget);
    parts.push_back(text.substr(from_right ? text.size() - end : begin, end - begin));
  };
  while (max_splits-- > 0) {
    const std::optional<size_t> place = occurrences.Next();
    if (!place) break;
    add(*place);
    begin = *place + separator->size();
  }
  add(text.size());
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends, Budget& budget) {
  budget.Bytes(text.size());
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t pos = 0; pos < text.size();) {
    const size_t end = pos;
    const char32_t c = NextCodePoint(text, &pos);
    if (!IsLineEnd(c)) continue;
    if (c == '\r' && pos < text.size() && text[pos] == '\n') ++pos;
    PayForPart(budget);
    lines.push_back(text.substr(begin, (keep_ends ? pos : end) - begin));
    begin = pos;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::optional<size_t> Occurrences::Next() {
  if (position_ > text_.size()) return std::nullopt;
  const size_t found = Find(text_, part_, position_);
  if (found == std::string_view::npos) {
    position_ = text_.size() + 1;
    return std::nullopt;
  }
  const bool at_end = found == text_.size();
  position_ = found + (!part_.empty() ? part_.size()
                       : at_end       ? 1
                                      : Utf8Length(static_cast<unsigned char>(text_[found])));
  return found;
}

std::string Upper(std::string_view text) {
  std::string result;
  for (size_t pos = 0; pos < text.size();) AppendUpper(NextCodePoint(text, &pos), &result);
  return result;
}

std::string Lower(std::string_view text) {
  std::string result;
  for (size_t pos = 0; pos < text.size();) AppendLower(text, &pos, &result);
  return result;
}

std::string Capitalize(std::string_view text) {
  std::string result;
  size_t pos = 0;
  if (!text.empty()) AppendTitle(NextCodePoint(text, &pos), &result);
  while (pos < text.size()) AppendLower(text, &pos, &result);
  return result;
}

std::string Title(std::string_view text) {
  std::string result;
  bool after_cased = false;
  for (size_t pos = 0; pos < text.size();) {
    size_t next = pos;
    const char32_t c = NextCodePoint(text, &next);
    if (after_cased) {
      AppendLower(text, &pos, &result);
    } else {
      AppendTitle(c, &result);
    }
    pos = next;
    after_cased = IsCasedCharacter(c);
  }
  return result;
}

std::string TitleWords(std::string_view text) {
  constexpr std::string_view kBreaks = "-({[<";
  std::string result;
  bool at_start = true;
  size_t word = 0;  // where the part after the word's first character begins
  const auto end_word = [&](size_t end) { result += Lower(text.substr(word, end - word)); };
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    const char32_t c = NextCodePoint(text, &pos);
    if (IsSpace(c) || (c < 0x80 && kBreaks.find(static_cast<char>(c)) != std::string_view::npos)) {
      if (!at_start) end_word(begin);
      result += text.substr(begin, pos - begin);
      at_start = true;
    } else if (at_start) {
      AppendUpper(c, &result);
      at_start = false;
      word = pos;
    }
  }
  if (!at_start) end_word(text.size());
  return result;
}

bool IsCased(std::string_view text, bool upper) {
  bool cased = false;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = NextCodePoint(text, &pos);
    if (!IsCasedCharacter(c)) continue;
    cased = true;
    const bool is_title = Category(c) == UTF8PROC_CATEGORY_LT;
    const bool is_upper = utf8proc_isupper(static_cast<utf8proc_int32_t>(c)) != 0;
    if (is_title || is_upper != upper) return false;
  }
  return cased;
}

int64_t CountWords(std::string_view text) {
  int64_t words = 0;
  bool inside = false;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = NextCodePoint(text, &pos);
    const bool word = c == '_' || IsAlpha(c) || IsNumeric(c);
    if (word && !inside) ++words;
    inside = word;
  }
  return words;
}

std::string FloatRepr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::array<char, 64> buffer;
  const auto written =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::scientific);
  std::string_view text(buffer.data(), static_cast<size_t>(written.ptr - buffer.data()));
  std::string result;
  if (text.front() == '-') {
    result += '-';
    text.remove_prefix(1);
  }
  const size_t mark = text.find('e');
  std::string digits(text.substr(0, mark));
  if (digits.size() > 1) digits.erase(1, 1);  // the point
  int exponent = 0;
  const bool plus = text[mark + 1] == '+';
  std::from_chars(text.data() + mark + (plus ? 2 : 1), text.data() + text.size(), exponent);
  // Python's repr: plain notation for exponents from -4 to 15, else d.ddde[+-]XX with at least two digits.
  const size_t count = digits.size();
  const auto magnitude = static_cast<size_t>(std::abs(exponent));
  if (exponent < -4 || exponent >= 16) {
    result += digits.substr(0, 1);
    if (count > 1) result += "." + digits.substr(1);
    return result + (exponent < 0 ? "e-" : "e+") + (magnitude < 10 ? "0" : "") + std::to_string(magnitude);
  }
  if (exponent < 0) return result + "0." + std::string(magnitude - 1, '0') + digits;
  const size_t whole = magnitude + 1;
  if (count <= whole) return result + digits + std::string(whole - count, '0') + ".0";
  return result + digits.substr(0, whole) + "." + digits.substr(whole);
}

std::string TextRepr(std::string_view text) {
  const bool double_quoted = text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char quote = double_quoted ? '"' : '\'';
  std::string result(1, quote);
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    const char32_t c = NextCodePoint(text, &pos);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      result += '\\';
      result += static_cast<char>(c);
    } else if (c == '\n') {
      result += "\\n";
    } else if (c == '\r') {
      result += "\\r";
    } else if (c == '\t') {
      result += "\\t";
    } else if (IsPrintable(c)) {
      result += text.substr(begin, pos - begin);
    } else if (c < 0x100) {
      result += "\\x" + Hex(c, 2);
    } else if (c < 0x10000) {
      result += "\\u" + Hex(c, 4);
    } else {
      result += "\\U" + Hex(c, 8);
    }
  }
  return result + quote;
}

std::string EscapeHtml(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '\'':
        result += "&#39;";
        break;
      case '"':
        result += "&#34;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

namespace {

// Takes out underscores, which must stand between digits. Nothing where one stands elsewhere.
std::optional<std::string> WithoutUnderscores(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      result += text[i];
      continue;
    }
    const auto is_digit = [&](size_t at) {
      return at < text.size() && std::isxdigit(static_cast<unsigned char>(text[at]));
    };
    if (i == 0 || !is_digit(i - 1) || !is_digit(i + 1)) return std::nullopt;
  }
  return result;
}

}  // namespace

std::optional<int64_t> ParseInt(std::string_view text, int base) {
  text = Strip(text, Side::kBoth);
  bool negative = false;
  if (!text.empty() && (text.front() == '-' || text.front() == '+')) {
    negative = text.front() == '-';
    text.remove_prefix(1);
  }
  if (text.size() > 1 && text.front() == '0') {
    const char mark = static_cast<char>(std::tolower(static_cast<unsigned char>(text[1])));
    const int marked = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
    if (marked != 0 && (base == 0 || base == marked)) {
      text.remove_prefix(text.size() > 2 && text[2] == '_' ? 3 : 2);
      base = marked;
    } else if (base == 0 && text.find_first_not_of("0_") != std::string_view::npos) {
      return std::nullopt;
    }
  }
  if (base == 0) base = 10;
  const std::optional<std::string> digits = WithoutUnderscores(text);
  if (!digits || digits->empty() || !std::isalnum(static_cast<unsigned char>(digits->front()))) return std::nullopt;
  const std::string number = (negative ? "-" : "") + *digits;
  int64_t value = 0;
  const auto read = std::from_chars(number.data(), number.data() + number.size(), value, base);
  if (read.ptr != number.data() + number.size()) return std::nullopt;
  if (read.ec == std::errc::result_out_of_range) {
    throw Error(ErrorCode::kUnsupported, "the integer " + number + " does not fit into 64 bits");
  }
  if (read.ec != std::errc()) return std::nullopt;
  return value;
}

std::optional<double> ParseFloat(std::string_view text) {
  text = Strip(text, Side::kBoth);
  double sign = 1.0;
  if (!text.empty() && (text.front() == '-' || text.front() == '+')) {
    sign = text.front() == '-' ? -1.0 : 1.0;
    text.remove_prefix(1);
  }
  const std::optional<std::string> number = WithoutUnderscores(text);
  if (!number || number->empty() || number->front() == '-' || number->front() == '(') return std::nullopt;
  const bool is_digit_first = std::isdigit(static_cast<unsigned char>(number->front())) || number->front() == '.';
  const std::string lower = Lower(*number);
  if (!is_digit_first && lower != "inf" && lower != "infinity" && lower != "nan") return std::nullopt;
  double value = 0.0;
  const auto read = std::from_chars(number->data(), number->data() + number->size(), value);
  if (read.ptr != number->data() + number->size()) return std::nullopt;
  if (read.ec == std::errc::result_out_of_range) {
    // Too large or too small: a positive exponent tells which.
    const size_t mark = lower.find('e');
    const bool small = mark != std::string::npos && mark + 1 < lower.size() && lower[mark + 1] == '-';
    value = small ? 0.0 : HUGE_VAL;
  }
  return sign * value;
}

}  // namespace offgraph::llm::jinja
