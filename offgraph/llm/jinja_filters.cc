#include "offgraph/llm/jinja_filters.h"

#include <string>

#include "offgraph/llm/jinja_operators.h"
#include "offgraph/llm/jinja_text.h"

namespace offgraph::llm::jinja {
namespace {

const FilterEntry* FindFilter(std::string_view name) {
  for (const std::span<const FilterEntry> table : {TextFilters(), SequenceFilters()}) {
    for (const FilterEntry& entry : table) {
      if (entry.name == name) return &entry;
    }
  }
  return nullptr;
}

struct TestCall {
  Runtime& runtime;
  std::string_view name;
  const Value& input;
  CallArguments arguments;

  void BindNothing() { RefuseArguments(name, std::move(arguments)); }
  Value BindOne() {
    Arguments bound(name, std::move(arguments), {"other"}, 1);
    return bound[0];
  }
};

template <Kind kind>
bool IsKind(TestCall& call) {
  call.BindNothing();
  return call.input.is(kind);
}

template <bool wanted>
bool IsDefined(TestCall& call) {
  call.BindNothing();
  return call.input.is(Kind::kUndefined) != wanted;
}

template <bool wanted>
bool IsBool(TestCall& call) {
  call.BindNothing();
  return call.input.is(Kind::kBool) && call.input.as_bool() == wanted;
}

bool IsNumber(TestCall& call) {
  call.BindNothing();
  return call.input.is_number();
}

// value % divisor == remainder
bool HasRemainder(TestCall& call, const Value& divisor, int64_t remainder) {
  Budget& budget = call.runtime.budget();
  return Equals(Apply(BinaryOperator::kModulo, call.input, divisor, budget), Value::Int(remainder), budget);
}

template <int64_t remainder>
bool HasParity(TestCall& call) {
  call.BindNothing();
  return HasRemainder(call, Value::Int(2), remainder);
}

bool IsDivisible(TestCall& call) {
  const Value divisor = call.BindOne();
  return HasRemainder(call, divisor, 0);
}

template <bool upper>
bool HasCase(TestCall& call) {
  call.BindNothing();
  const std::string text = ToText(call.input, call.runtime.budget());
  call.runtime.budget().Steps(text.size() / 4);
  return IsCased(text, upper);
}

bool IsMapping(TestCall& call) { return IsKind<Kind::kDict>(call); }

// What has a length and items: texts, lists, tuples, ranges, dicts; undefined too, as in Jinja.
bool IsSequenceLike(TestCall& call) {
  call.BindNothing();
  const Value& value = call.input;
  return value.is(Kind::kString) || value.is(Kind::kDict) || value.is(Kind::kUndefined) ||
         value.is_sequence(SequenceType::kList) || value.is_sequence(SequenceType::kTuple) ||
         value.is_sequence(SequenceType::kRange);
}

bool CanIterate(TestCall& call) {
  call.BindNothing();
  return IsIterable(call.input);
}

bool IsCallable(TestCall& call) {
  call.BindNothing();
  // Python sees the __call__ of an undefined value, which only raises its error.
  return call.input.is(Kind::kUndefined) || (call.input.is(Kind::kObject) && call.input.object()->callable());
}

bool IsSame(TestCall& call) { return call.input.Same(call.BindOne()); }

bool IsEscaped(TestCall& call) {
  call.BindNothing();
  return call.input.is_markup();
}

template <bool (*exists)(std::string_view)>
bool NamesExisting(TestCall& call) {
  call.BindNothing();
  return call.input.is(Kind::kString) && exists(call.input.text());
}

template <Comparison comparison>
bool Compares(TestCall& call) {
  return Compare(comparison, call.input, call.BindOne(), call.runtime.budget());
}

struct TestEntry {
  std::string_view name;
  bool (*test)(TestCall& call);
};

constexpr TestEntry kTests[] = {
    {"defined", IsDefined<true>},
    {"undefined", IsDefined<false>},
    {"none", IsKind<Kind::kNone>},
    {"boolean", IsKind<Kind::kBool>},
    {"true", IsBool<true>},
    {"false", IsBool<false>},
    {"integer", IsKind<Kind::kInt>},
    {"float", IsKind<Kind::kFloat>},
    {"number", IsNumber},
    {"string", IsKind<Kind::kString>},
    {"mapping", IsMapping},
    {"sequence", IsSequenceLike},
    {"iterable", CanIterate},
    {"callable", IsCallable},
    {"sameas", IsSame},
    {"escaped", IsEscaped},
    {"odd", HasParity<1>},
    {"even", HasParity<0>},
    {"divisibleby", IsDivisible},
    {"lower", HasCase<false>},
    {"upper", HasCase<true>},
    {"filter", NamesExisting<IsFilter>},
    {"test", NamesExisting<IsTest>},
    {"in", Compares<Comparison::kIn>},
    {"eq", Compares<Comparison::kEqual>},
    {"==", Compares<Comparison::kEqual>},
    {"equalto", Compares<Comparison::kEqual>},
    {"ne", Compares<Comparison::kNotEqual>},
    {"!=", Compares<Comparison::kNotEqual>},
    {"gt", Compares<Comparison::kGreater>},
    {">", Compares<Comparison::kGreater>},
    {"greaterthan", Compares<Comparison::kGreater>},
    {"ge", Compares<Comparison::kGreaterEqual>},
    {">=", Compares<Comparison::kGreaterEqual>},
    {"lt", Compares<Comparison::kLess>},
    {"<", Compares<Comparison::kLess>},
    {"lessthan", Compares<Comparison::kLess>},
    {"le", Compares<Comparison::kLessEqual>},
    {"<=", Compares<Comparison::kLessEqual>},
};

const TestEntry* FindTest(std::string_view name) {
  for (const TestEntry& entry : kTests) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

}  // namespace

bool IsFilter(std::string_view name) { return FindFilter(name) != nullptr; }

Value CallFilter(Runtime& runtime, std::string_view name, const Value& input, CallArguments arguments) {
  runtime.budget().Steps();
  const FilterEntry* entry = FindFilter(name);
  if (entry == nullptr) throw Error(ErrorCode::kUnsupported, "there is no filter '" + std::string(name) + "'");
  if (entry->filter == nullptr) {
    throw Error(ErrorCode::kUnsupported, "the filter '" + std::string(name) + "' is not supported");
  }
  FilterCall call{runtime, entry->name, input, std::move(arguments)};
  return entry->filter(call);
}

bool IsTest(std::string_view name) { return FindTest(name) != nullptr; }

bool CallTest(Runtime& runtime, std::string_view name, const Value& input, CallArguments arguments) {
  runtime.budget().Steps();
  const TestEntry* entry = FindTest(name);
  if (entry == nullptr) throw Error(ErrorCode::kUnsupported, "there is no test '" + std::string(name) + "'");
  TestCall call{runtime, entry->name, input, std::move(arguments)};
  return entry->test(call);
}

}  // namespace offgraph::llm::jinja
