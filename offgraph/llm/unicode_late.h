// The characters that Unicode 15.0, 15.1 and 16.0 added, with their general categories.
//
// The reference knows Unicode 16. The libraries of current distributions do not (Debian 12: PCRE2 10.42 has 14.0,
// utf8proc 2.8 has 15.0), and would take these characters, 20,000 of them ideographs, for unassigned ones, so that text
// would be cut elsewhere. Source: DerivedGeneralCategory.txt of the Unicode Character Database.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace offgraph::llm {

struct LateRange {
  char32_t first = 0;
  char32_t last = 0;
  char category[3] = {};  // two letters, for example "Lo"
};

// In ascending order, disjoint.
std::span<const LateRange> LateRanges();

// The range that `c` is in, or nullptr.
const LateRange* FindLateRange(char32_t c);

bool HasLateCharacter(std::string_view text);

// The late characters whose category begins with `category` ("L", "Lo"), as a regular expression's set without its
// brackets; empty where there are none.
std::string LateSet(std::string_view category);

}  // namespace offgraph::llm
