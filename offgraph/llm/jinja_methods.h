// The methods of text, lists, tuples and dicts. Those that would change a list or dict are refused by the sandbox: in
// Jinja they are undefined, so a template may test for them.
#pragma once

#include <string_view>

#include "offgraph/llm/jinja_runtime.h"
#include "offgraph/llm/jinja_value.h"

namespace offgraph::llm::jinja {

enum class MethodAccess { kAbsent, kAllowed, kUnsafe };

MethodAccess FindMethod(const Value& self, std::string_view name);

// REQUIRES: FindMethod says kAllowed. Throws kUnsupported for a method that Python has and this does not.
Value CallMethod(Runtime& runtime, const Value& self, std::string_view name, CallArguments arguments);

// self.name as a value, to be called later.
Value BindMethod(Runtime& runtime, const Value& self, std::string_view name);

// str.replace: at most `most` occurrences. For an empty `old`, before every character and at the end.
Value ReplaceAll(Runtime& runtime, std::string_view text, std::string_view old, std::string_view replacement,
                 int64_t most);

}  // namespace offgraph::llm::jinja
