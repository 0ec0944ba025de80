// What Python's str can do, on UTF-8. Texts are valid UTF-8; positions and counts are code points unless said
// otherwise. What takes no budget is linear in its texts: the caller pays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "offgraph/llm/jinja_budget.h"

namespace offgraph::llm::jinja {

// str.isspace() of one character: Unicode White_Space and the four separators U+001C to U+001F.
bool IsSpace(char32_t c);
bool IsAlpha(char32_t c);
bool IsDecimal(char32_t c);
bool IsDigit(char32_t c);

size_t Length(std::string_view text);
// Byte at which character `index` begins; text.size() for what lies behind the end.
size_t ByteOffset(std::string_view text, size_t index);
std::vector<std::string_view> Characters(std::string_view text);

enum class Side { kLeft, kRight, kBoth };
// Without `characters`: strips white space.
std::string_view Strip(std::string_view text, Side side, std::optional<std::string_view> characters = std::nullopt);

// Byte at which `part` begins for the first time from byte `from` on, or for the last time; npos where it does not.
// Linear in the sizes, unlike std::string_view::find, whatever the texts.
size_t Find(std::string_view text, std::string_view part, size_t from = 0);
size_t FindLast(std::string_view text, std::string_view part);

inline constexpr int64_t kAllSplits = std::numeric_limits<int64_t>::max();
// str.split and str.rsplit (from the right). Without `separator`: at runs of white space. Pays for the parts.
// REQUIRES: separator not empty, max_splits >= 0.
std::vector<std::string_view> Split(std::string_view text, std::optional<std::string_view> separator,
                                    int64_t max_splits, bool from_right, Budget& budget);
std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends, Budget& budget);
// The places (bytes) where `part` is found in `text`, left to right, not overlapping; for an empty part, before every
// character and at the end.
class Occurrences {
 public:
  Occurrences(std::string_view text, std::string_view part) : text_(text), part_(part) {}
  std::optional<size_t> Next();

 private:
  std::string_view text_, part_;
  size_t position_ = 0;  // where to search on; behind the text once all are found
};

std::string Upper(std::string_view text);
std::string Lower(std::string_view text);
std::string Capitalize(std::string_view text);
// str.title(): a letter after a letter is lower case, any other is title case.
std::string Title(std::string_view text);
// Jinja's |title: words end at white space and at one of -({[<.
std::string TitleWords(std::string_view text);
// Whether a text has cased characters and all are upper (or lower) case: str.isupper(), str.islower().
bool IsCased(std::string_view text, bool upper);

// Words as Jinja's |wordcount counts them: runs of letters, digits and underscores.
int64_t CountWords(std::string_view text);

// repr() of a float: the shortest digits that read back as the same number.
std::string FloatRepr(double value);
// repr() of a str.
std::string TextRepr(std::string_view text);
// The five characters that HTML escapes, as Python's markupsafe spells them.
std::string EscapeHtml(std::string_view text);

// int(text, base) and float(text); nothing where Python raises ValueError. An integer beyond 64 bits throws
// kUnsupported. REQUIRES: base is 0 or in [2, 36].
std::optional<int64_t> ParseInt(std::string_view text, int base = 10);
std::optional<double> ParseFloat(std::string_view text);

}  // namespace offgraph::llm::jinja
