// From the text of a template to its parsed form. The grammar is that of jinja2/parser.py, with the extensions
// loopcontrols and {% generation %}.
#pragma once

#include <string_view>

#include "offgraph/llm/jinja_ast.h"

namespace offgraph::llm::jinja {

// Throws kBadFile, with the line, for text that is no template, or nests deeper than any template written by people;
// kUnsupported for a statement that is not known.
Syntax Parse(std::string_view source);

}  // namespace offgraph::llm::jinja
