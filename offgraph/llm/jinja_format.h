// Python's two ways to format text: "..." % values and "...".format(values).
#pragma once

#include <string>
#include <string_view>

#include "offgraph/llm/jinja_runtime.h"
#include "offgraph/llm/jinja_value.h"

namespace offgraph::llm::jinja {

// `values`: a tuple, a dict for %(name)s, or a single value. Throws kInvalidArgument where Python does.
std::string PercentFormat(std::string_view format, const Value& values, Budget& budget);

// str.format. Fields reach attributes and items as expressions of a template do.
std::string BraceFormat(Runtime& runtime, std::string_view format, const CallArguments& arguments);

}  // namespace offgraph::llm::jinja
