// A Jinja template, parsed once and rendered any number of times: the language of chat templates.
//
// It behaves as Jinja 3.1 does in the environment that Hugging Face transformers sets up for chat templates
// (transformers/utils/chat_template_utils.py): a sandbox whose lists and dicts cannot be changed, trim_blocks and
// lstrip_blocks, break and continue, {% generation %}, raise_exception(), strftime_now(), and a tojson filter that is
// Python's json.dumps without escaping for HTML.
//
// Where it differs, it refuses: what is not known is an Error(kUnsupported) that names it and its line. That is
//  - statements: block, extends, include, import, from, autoescape, and those of extensions;
//  - filters: filesizeformat, forceescape, pprint, random, striptags, urlencode, urlize, wordwrap, xmlattr;
//  - the function lipsum; integers beyond 64 bits; text that is not Unicode (lone surrogates);
//  - methods of text that no template was seen to use (encode, translate, ...);
//  - printing what has no lasting text in Python either (functions, generators, loops).
// It is also bounded, see RenderLimits; recursion and nesting are bounded as well, far beyond what people write.
#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "offgraph/llm/jinja_value.h"

namespace offgraph::llm::jinja {

// What one rendering may use. A hostile template ends with Error(kOutOfRange) at the first limit that it reaches.
struct RenderLimits {
  // Expressions evaluated and elements visited. A turn of a conversation takes about a hundred; a million takes some
  // tenths of a second.
  int64_t steps = 2'000'000;
  // Bytes of all strings and containers that are made on the way, the output among them, not counting what is freed.
  int64_t bytes = 128 << 20;
};

struct RenderOptions {
  RenderLimits limits;
  std::optional<std::tm> now;  // what strftime_now sees; absent: the local time
};

struct Syntax;  // the parsed form, jinja_ast.h

// Immutable; any number of threads may render at once. Copies share the parsed form.
class Template {
 public:
  // Throws kBadFile where the text is not a template (or not UTF-8), kUnsupported for a statement that is not known.
  explicit Template(std::string_view source);

  // Throws kInvalidArgument with the template's message where it calls raise_exception, and for operations that have
  // no meaning (an attribute of something undefined, a sum of text and number); kUnsupported and kOutOfRange as above.
  std::string Render(const std::vector<std::pair<std::string, Value>>& variables,
                     const RenderOptions& options = {}) const;

  const std::string& source() const { return source_; }

 private:
  std::string source_;
  std::shared_ptr<const Syntax> syntax_;
};

}  // namespace offgraph::llm::jinja
