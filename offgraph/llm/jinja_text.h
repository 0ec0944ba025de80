// What Python's str can do, on UTF-8. Texts are valid UTF-8; positions and counts are code points unless said
// otherwise. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

inline constexpr int64_t kAllSplits = std::numeric_limits<int64_t>::max();
// str.split and str.rsplit (from the right). Without `separator`: at runs of white space. REQUIRES: separator not
// empty, max_splits >= 0.
std::vector<std::string_view> Split(std::string_view text, std::optional<std::string_view> separator,
                                    int64_t max_splits, bool from_right);
std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends);
// Places (bytes) where `part` is found, left to right, not overlapping; for an empty part, before every character and
// at the end. At most `max_count`.
std::vector<size_t> FindAll(std::string_view text, std::string_view part, int64_t max_count);

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
