#include "offgraph/llm/jinja.h"

#include "offgraph/llm/jinja_ast.h"
#include "offgraph/llm/jinja_interpreter.h"
#include "offgraph/llm/jinja_parser.h"
#include "offgraph/llm/jinja_runtime.h"

namespace offgraph::llm::jinja {
namespace {

std::tm LocalTime() {
  const std::time_t now = std::time(nullptr);
  std::tm result{};
  localtime_r(&now, &result);
  return result;
}

}  // namespace

Template::Template(std::string_view source) : source_(source), syntax_(std::make_shared<const Syntax>(Parse(source))) {}

std::string Template::Render(const std::vector<std::pair<std::string, Value>>& variables,
                             const RenderOptions& options) const {
  Runtime runtime(options.limits.steps, options.limits.bytes, options.now ? *options.now : LocalTime());
  return Interpreter(*syntax_, runtime, variables).Run();
}

}  // namespace offgraph::llm::jinja
