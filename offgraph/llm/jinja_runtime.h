// What the parts of the interpreter share while one template is rendered: the budget, the objects that live as long as
// the rendering, and how functions are called.
#pragma once

#include <ctime>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "offgraph/llm/jinja_budget.h"
#include "offgraph/llm/jinja_value.h"

namespace offgraph::llm::jinja {

class Runtime;

struct CallArguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// What has behaviour. Owned by the Runtime; values point to it.
class Object {
 public:
  virtual ~Object() = default;
  // Python's name of the type, for messages.
  virtual std::string_view type_name() const = 0;
  // Nothing where there is no such attribute.
  virtual std::optional<Value> Attribute(Runtime& runtime, std::string_view name);
  virtual bool callable() const { return false; }
  // Throws kInvalidArgument where it cannot be called.
  virtual Value Call(Runtime& runtime, CallArguments&& arguments);
  // Throws kUnsupported for what prints as an address in Python.
  virtual std::string Repr(Budget& budget) const;
};

class Runtime {
 public:
  Runtime(int64_t steps, int64_t bytes, std::tm now) : budget_(steps, bytes), now_(now) {}

  Budget& budget() { return budget_; }
  const std::tm& now() const { return now_; }

  template <class T, class... Args>
  T* Make(Args&&... args) {
    constexpr size_t kOverhead = 64;
    budget_.Bytes(sizeof(T) + kOverhead);
    auto object = std::make_unique<T>(std::forward<Args>(args)...);
    T* result = object.get();
    objects_.push_back(std::move(object));
    return result;
  }

  // New values, paid for.
  Value Text(std::string text, bool markup = false);
  Value List(Value::Items items);
  Value Generator(Value::Items items);

 private:
  Budget budget_;
  std::tm now_;
  std::vector<std::unique_ptr<Object>> objects_;
};

// Gives positional and named arguments their places, as Python does for a function with these parameters.
class Arguments {
 public:
  // The first `required` parameters have no default. Throws kInvalidArgument that names `function`.
  Arguments(std::string_view function, CallArguments arguments, std::initializer_list<std::string_view> parameters,
            size_t required = 0);

  bool Has(size_t i) const { return values_[i].has_value(); }
  // None where it was not given.
  const Value& operator[](size_t i) const;
  bool Bool(size_t i, bool fallback) const { return Has(i) ? values_[i]->Truthy() : fallback; }
  // Throw kInvalidArgument where the argument is of another type.
  int64_t Int(size_t i, int64_t fallback) const;
  const std::string& Text(size_t i) const;
  // Nothing for an argument that was not given or is None.
  std::optional<std::string_view> OptionalText(size_t i) const;

 private:
  [[noreturn]] void Refuse(size_t i, std::string_view expected) const;

  std::string function_;
  std::vector<std::string_view> parameters_;
  std::vector<std::optional<Value>> values_;
};

// For a function without parameters. Throws as Arguments does where there are any.
void RefuseArguments(std::string_view function, CallArguments&& arguments);

}  // namespace offgraph::llm::jinja
