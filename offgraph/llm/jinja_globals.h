// The functions that every template may call, and the objects that they make.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "offgraph/llm/jinja_runtime.h"
#include "offgraph/llm/jinja_value.h"

namespace offgraph::llm::jinja {

// range, dict, namespace, cycler, joiner, raise_exception, strftime_now; lipsum is there and refuses to be called.
// Nothing for another name.
std::optional<Value> MakeGlobal(Runtime& runtime, std::string_view name);

// namespace(a=1): the one thing of a template whose attributes can be set.
class Namespace final : public Object {
 public:
  std::string_view type_name() const override { return "TemplateNamespace"; }
  std::optional<Value> Attribute(Runtime& runtime, std::string_view name) override;
  std::string Repr(Budget& budget) const override;
  // Throws kInvalidArgument for a name that begins with an underscore, as transformers does.
  void Set(Budget& budget, std::string_view name, Value value);

 private:
  std::vector<std::pair<std::string, Value>> attributes_;
  mutable bool printing_ = false;  // a namespace may hold itself
};

// strftime with English names. Throws kUnsupported for a conversion that is not known.
std::string FormatTime(std::string_view format, const std::tm& time);

}  // namespace offgraph::llm::jinja
