#include "offgraph/llm/jinja_runtime.h"

#include "offgraph/llm/jinja_operators.h"

namespace offgraph::llm::jinja {

std::optional<Value> Object::Attribute(Runtime& /*runtime*/, std::string_view /*name*/) { return std::nullopt; }

Value Object::Call(Runtime& /*runtime*/, CallArguments&& /*arguments*/) {
  throw Error(ErrorCode::kInvalidArgument, "'" + std::string(type_name()) + "' object is not callable");
}

std::string Object::Repr(Budget& /*budget*/) const {
  throw Error(ErrorCode::kUnsupported, "a " + std::string(type_name()) + " has no text that could be printed");
}

Value Runtime::Text(std::string text, bool markup) {
  budget_.Bytes(text.size());
  return Value::TrustedString(std::move(text), markup);
}

Value Runtime::List(Value::Items items) {
  budget_.Bytes(items.size() * sizeof(Value));
  return Value::List(std::move(items));
}

Value Runtime::Generator(Value::Items items) {
  budget_.Bytes(items.size() * sizeof(Value));
  return Value::MakeIterator(std::move(items));
}

Arguments::Arguments(std::string_view function, CallArguments arguments,
                     std::initializer_list<std::string_view> parameters, size_t required)
    : function_(function), parameters_(parameters), values_(parameters.size()) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument, function_ + "() " + what);
  };
  if (arguments.positional.size() > parameters_.size()) {
    refuse("takes at most " + std::to_string(parameters_.size()) + " arguments, " +
           std::to_string(arguments.positional.size()) + " were given");
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = std::move(arguments.positional[i]);
  for (auto& [name, value] : arguments.named) {
    size_t i = 0;
    while (i < parameters_.size() && parameters_[i] != name) ++i;
    if (i == parameters_.size()) refuse("has no argument '" + name + "'");
    if (values_[i]) refuse("got several values for its argument '" + name + "'");
    values_[i] = std::move(value);
  }
  for (size_t i = 0; i < required; ++i) {
    if (!values_[i]) refuse("is missing its argument '" + std::string(parameters_[i]) + "'");
  }
}

const Value& Arguments::operator[](size_t i) const {
  static const Value kAbsent;
  return values_[i] ? *values_[i] : kAbsent;
}

int64_t Arguments::Int(size_t i, int64_t fallback) const {
  if (!Has(i)) return fallback;
  if (!values_[i]->is_integral()) Refuse(i, "an integer");
  return values_[i]->as_int();
}

const std::string& Arguments::Text(size_t i) const {
  if (!(*this)[i].is(Kind::kString)) Refuse(i, "a text");
  return values_[i]->text();
}

std::optional<std::string_view> Arguments::OptionalText(size_t i) const {
  if ((*this)[i].is(Kind::kNone)) return std::nullopt;
  return Text(i);
}

void Arguments::Refuse(size_t i, std::string_view expected) const {
  RequireDefined((*this)[i]);
  throw Error(ErrorCode::kInvalidArgument, function_ + "() expects " + std::string(expected) + " as its argument '" +
                                               std::string(parameters_[i]) + "', not a value of type " +
                                               TypeName((*this)[i]));
}

void RefuseArguments(std::string_view function, CallArguments&& arguments) {
  const Arguments none(function, std::move(arguments), {});
}

}  // namespace offgraph::llm::jinja
