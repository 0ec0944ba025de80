// Filters (value | name(arguments)) and tests (value is name(arguments)) of templates.
#pragma once

#include <span>
#include <string_view>

#include "offgraph/llm/jinja_runtime.h"
#include "offgraph/llm/jinja_value.h"

namespace offgraph::llm::jinja {

bool IsFilter(std::string_view name);
// Throws kUnsupported, naming it, for a filter that is not known.
Value CallFilter(Runtime& runtime, std::string_view name, const Value& input, CallArguments arguments);

bool IsTest(std::string_view name);
// Throws kUnsupported, naming it, for a test that is not known.
bool CallTest(Runtime& runtime, std::string_view name, const Value& input, CallArguments arguments);

// One call of a filter, and the tables that CallFilter looks into.
struct FilterCall {
  Runtime& runtime;
  std::string_view name;
  const Value& input;
  CallArguments arguments;

  Budget& budget() { return runtime.budget(); }
  Arguments Bind(std::initializer_list<std::string_view> parameters, size_t required = 0) {
    return Arguments(name, std::move(arguments), parameters, required);
  }
};

struct FilterEntry {
  std::string_view name;
  Value (*filter)(FilterCall& call);  // nullptr: Jinja has it, this does not
};

std::span<const FilterEntry> TextFilters();      // jinja_filters_text.cc: texts, numbers, JSON
std::span<const FilterEntry> SequenceFilters();  // jinja_filters_sequence.cc: lists and dicts

}  // namespace offgraph::llm::jinja
