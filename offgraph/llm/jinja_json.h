// Python's json.dumps. (The way back is ParseJson in jinja_value.h.)
#pragma once

#include <optional>
#include <string>

#include "offgraph/llm/jinja_budget.h"
#include "offgraph/llm/jinja_value.h"

namespace offgraph::llm::jinja {

struct JsonStyle {
  bool ensure_ascii = false;
  std::optional<std::string> indent;  // of one level; absent: all on one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};

// Throws kInvalidArgument for what has no form in JSON: something undefined, a function.
std::string ToJson(const Value& value, const JsonStyle& style, Budget& budget);

}  // namespace offgraph::llm::jinja
