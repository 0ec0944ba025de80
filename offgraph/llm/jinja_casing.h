// Upper and title case of the characters that become several: the unconditional mappings of Unicode's
// SpecialCasing.txt.
#pragma once

#include <string_view>

namespace offgraph::llm::jinja {

struct SpecialCasing {
  char32_t character;
  std::string_view upper;
  std::string_view title;
};

// nullptr for a character that has none.
const SpecialCasing* FindSpecialCasing(char32_t character);

}  // namespace offgraph::llm::jinja
