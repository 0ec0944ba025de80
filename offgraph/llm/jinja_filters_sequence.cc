// Filters on lists, dicts and whatever can be iterated. Where Jinja returns a generator, so does this: a list would be
// true when empty, have a length and be used twice, which a generator is not.
#include <algorithm>
#include <functional>
#include <string>

#include "offgraph/llm/jinja_filters.h"
#include "offgraph/llm/jinja_methods.h"
#include "offgraph/llm/jinja_operators.h"
#include "offgraph/llm/jinja_text.h"

namespace offgraph::llm::jinja {
namespace {

[[noreturn]] void Refuse(const std::string& message) { throw Error(ErrorCode::kInvalidArgument, message); }

// Python's sequence protocol of reversed(): what has a length and places, or is a dict.
bool IsReversible(const Value& value) { return value.is(Kind::kSequence) || value.is(Kind::kDict); }

Value IgnoreCase(const Value& value, Budget& budget) {
  if (!value.is(Kind::kString)) return value;
  budget.Steps(value.text().size() / 4);
  budget.Bytes(value.text().size());
  return Value::TrustedString(Lower(value.text()));
}

// Looks up "name", "outer.inner" or "0.name" in an item; nothing but the item itself for None.
class AttributeGetter {
 public:
  AttributeGetter(const Value& attribute, Budget& budget) {
    if (attribute.is(Kind::kString)) {
      for (const std::string_view part : Split(attribute.text(), ".", kAllSplits, false, budget)) {
        const bool number = !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
        parts_.push_back(number ? Value::Int(ParseInt(part).value_or(0)) : Value::TrustedString(std::string(part)));
      }
    } else if (!attribute.is(Kind::kNone)) {
      parts_.push_back(attribute);
    }
  }

  Value Get(Runtime& runtime, const Value& item, const Value& fallback = {}) const {
    Value result = item;
    for (const Value& part : parts_) {
      result = GetItem(runtime, result, part);
      if (result.is(Kind::kUndefined) && !fallback.is(Kind::kNone)) result = fallback;
    }
    return result;
  }

 private:
  Value::Items parts_;
};

Value Default(FilterCall& call) {
  const Arguments arguments = call.Bind({"default_value", "boolean"});
  const bool use = call.input.is(Kind::kUndefined) || (arguments.Bool(1, false) && !call.input.Truthy());
  if (!use) return call.input;
  return arguments.Has(0) ? arguments[0] : Value::TrustedString("");
}

Value Count(FilterCall& call) {
  call.Bind({});
  if (call.input.is(Kind::kString)) call.budget().Steps(call.input.text().size() / 64);
  return Value::Int(Size(call.input));
}

Value First(FilterCall& call) {
  call.Bind({});
  Cursor cursor(call.input);
  Value element;
  if (cursor.Next(call.budget(), &element)) return element;
  return Value::Undefined("No first item, sequence was empty.");
}

Value Last(FilterCall& call) {
  call.Bind({});
  if (call.input.is(Kind::kIterator)) Refuse("'generator' object is not reversible");
  const Value::Items items = Collect(call.input, call.budget());
  return items.empty() ? Value::Undefined("No last item, sequence was empty.") : items.back();
}

Value ToList(FilterCall& call) {
  call.Bind({});
  return Value::List(Collect(call.input, call.budget()));
}

Value Reverse(FilterCall& call) {
  call.Bind({});
  if (call.input.is(Kind::kString)) {
    std::string result;
    call.budget().Bytes(call.input.text().size());
    const std::vector<std::string_view> characters = Characters(call.input.text());
    for (auto character = characters.rbegin(); character != characters.rend(); ++character) result += *character;
    return Value::TrustedString(std::move(result), call.input.is_markup());
  }
  Value::Items items = Collect(call.input, call.budget());
  std::reverse(items.begin(), items.end());
  return IsReversible(call.input) ? call.runtime.Generator(std::move(items)) : Value::List(std::move(items));
}

Value Join(FilterCall& call) {
  const Arguments arguments = call.Bind({"d", "attribute"});
  const std::string separator = arguments.Has(0) ? ToText(arguments[0], call.budget()) : "";
  const AttributeGetter getter(arguments[1], call.budget());
  std::string result;
  bool first = true;
  Cursor cursor(call.input);
  Value item;
  while (cursor.Next(call.budget(), &item)) {
    if (!first) {
      call.budget().Bytes(separator.size());
      result += separator;
    }
    first = false;
    result += ToText(getter.Get(call.runtime, item), call.budget());
  }
  return Value::TrustedString(std::move(result));
}

// An item with what it is compared by.
struct Keyed {
  Value key;
  Value item;
};

std::vector<Keyed> WithKeys(Runtime& runtime, const Value::Items& items,
                            const std::function<Value(const Value&)>& key) {
  std::vector<Keyed> result;
  result.reserve(items.size());
  runtime.budget().Bytes(items.size() * sizeof(Keyed));
  for (const Value& item : items) result.push_back({key(item), item});
  return result;
}

void SortByKey(std::vector<Keyed>* keyed, bool reverse, Budget& budget) {
  const auto less = [&](const Keyed& a, const Keyed& b) {
    return reverse ? Less(b.key, a.key, budget) : Less(a.key, b.key, budget);
  };
  std::stable_sort(keyed->begin(), keyed->end(), less);
}

Value::Items ItemsOf(std::vector<Keyed> keyed) {
  Value::Items items;
  items.reserve(keyed.size());
  for (Keyed& entry : keyed) items.push_back(std::move(entry.item));
  return items;
}

std::function<Value(const Value&)> KeyFunction(Runtime& runtime, AttributeGetter getter, bool case_sensitive,
                                               Value fallback = {}) {
  return [&runtime, getter = std::move(getter), case_sensitive, fallback = std::move(fallback)](const Value& item) {
    const Value key = getter.Get(runtime, item, fallback);
    return case_sensitive ? key : IgnoreCase(key, runtime.budget());
  };
}

Value Sort(FilterCall& call) {
  const Arguments arguments = call.Bind({"reverse", "case_sensitive", "attribute"});
  // "a,b" sorts by several attributes.
  std::vector<AttributeGetter> getters;
  if (arguments[2].is(Kind::kString)) {
    for (const std::string_view part : Split(arguments[2].text(), ",", kAllSplits, false, call.budget())) {
      getters.emplace_back(Value::TrustedString(std::string(part)), call.budget());
    }
  } else {
    getters.emplace_back(arguments[2], call.budget());
  }
  const bool case_sensitive = arguments.Bool(1, false);
  const auto key = [&](const Value& item) {
    Value::Items parts;
    for (const AttributeGetter& getter : getters) {
      const Value part = getter.Get(call.runtime, item);
      parts.push_back(case_sensitive ? part : IgnoreCase(part, call.budget()));
    }
    return Value::List(std::move(parts));
  };
  std::vector<Keyed> keyed = WithKeys(call.runtime, Collect(call.input, call.budget()), key);
  SortByKey(&keyed, arguments.Bool(0, false), call.budget());
  return Value::List(ItemsOf(std::move(keyed)));
}

Value DictSort(FilterCall& call) {
  const Arguments arguments = call.Bind({"case_sensitive", "by", "reverse"});
  const std::string by = arguments.Has(1) ? arguments.Text(1) : "key";
  if (by != "key" && by != "value") Refuse("You can only sort by either \"key\" or \"value\"");
  RequireDefined(call.input);
  if (!call.input.is(Kind::kDict)) Refuse("dictsort expects a dict, not " + TypeName(call.input));
  std::vector<Keyed> keyed;
  for (const auto& [name, value] : call.input.dict().entries) {
    call.budget().Bytes(sizeof(Keyed) + sizeof(Sequence));
    const Value& key = by == "key" ? name : value;
    keyed.push_back({arguments.Bool(0, false) ? key : IgnoreCase(key, call.budget()), Value::Tuple({name, value})});
  }
  SortByKey(&keyed, arguments.Bool(2, false), call.budget());
  return Value::List(ItemsOf(std::move(keyed)));
}

template <bool smallest>
Value Extreme(FilterCall& call) {
  const Arguments arguments = call.Bind({"case_sensitive", "attribute"});
  const auto key = KeyFunction(call.runtime, AttributeGetter(arguments[1], call.budget()), arguments.Bool(0, false));
  const std::vector<Keyed> keyed = WithKeys(call.runtime, Collect(call.input, call.budget()), key);
  if (keyed.empty()) return Value::Undefined("No aggregated item, sequence was empty.");
  const Keyed* best = &keyed[0];
  for (const Keyed& entry : keyed) {
    if (smallest ? Less(entry.key, best->key, call.budget()) : Less(best->key, entry.key, call.budget())) best = &entry;
  }
  return best->item;
}

Value Sum(FilterCall& call) {
  const Arguments arguments = call.Bind({"attribute", "start"});
  const AttributeGetter getter(arguments[0], call.budget());
  Value total = arguments.Has(1) ? arguments[1] : Value::Int(0);
  if (total.is(Kind::kString)) Refuse("sum() can't sum strings [use ''.join(seq) instead]");
  for (const Value& item : Collect(call.input, call.budget())) {
    total = Apply(BinaryOperator::kAdd, total, getter.Get(call.runtime, item), call.budget());
  }
  return total;
}

Value Unique(FilterCall& call) {
  const Arguments arguments = call.Bind({"case_sensitive", "attribute"});
  const auto key = KeyFunction(call.runtime, AttributeGetter(arguments[1], call.budget()), arguments.Bool(0, false));
  std::vector<Keyed> keyed = WithKeys(call.runtime, Collect(call.input, call.budget()), key);
  // A dict keeps the first of equal keys in its place, and the last value: so the items go in from the back.
  Value::Items unique;
  Value::Entries seen;
  for (size_t i = keyed.size(); i-- > 0;) {
    PayForKey(keyed[i].key, call.budget());
    seen.emplace_back(keyed[i].key, Value::Int(static_cast<int64_t>(i)));
  }
  const Value first_places = Value::Map(std::move(seen));
  for (size_t i = 0; i < keyed.size(); ++i) {
    if (first_places.dict().Find(keyed[i].key)->as_int() == static_cast<int64_t>(i)) unique.push_back(keyed[i].item);
  }
  return call.runtime.Generator(std::move(unique));
}

Value GroupBy(FilterCall& call) {
  const Arguments arguments = call.Bind({"attribute", "default", "case_sensitive"}, 1);
  const AttributeGetter getter(arguments[0], call.budget());
  const auto key = KeyFunction(call.runtime, getter, arguments.Bool(2, false), arguments[1]);
  std::vector<Keyed> keyed = WithKeys(call.runtime, Collect(call.input, call.budget()), key);
  SortByKey(&keyed, false, call.budget());
  Value::Items groups;
  for (size_t begin = 0; begin < keyed.size();) {
    size_t end = begin;
    Value::Items members;
    while (end < keyed.size() && Equals(keyed[begin].key, keyed[end].key, call.budget())) {
      members.push_back(keyed[end++].item);
    }
    const Value name = getter.Get(call.runtime, keyed[begin].item, arguments[1]);
    groups.push_back(Value::MakeGroup(name, call.runtime.List(std::move(members))));
    begin = end;
  }
  return call.runtime.List(std::move(groups));
}

Value DictItems(FilterCall& call) {
  call.Bind({});
  if (call.input.is(Kind::kUndefined)) return Value::MakeIterator({});
  if (!call.input.is(Kind::kDict)) Refuse("Can only get item pairs from a mapping.");
  return call.runtime.Generator(CallMethod(call.runtime, call.input, "items", {}).items());
}

Value Batch(FilterCall& call) {
  const Arguments arguments = call.Bind({"linecount", "fill_with"}, 1);
  const int64_t width = arguments.Int(0, 0);
  Value::Items rows, row;
  for (const Value& item : Collect(call.input, call.budget())) {
    if (static_cast<int64_t>(row.size()) == width) rows.push_back(call.runtime.List(std::exchange(row, {})));
    row.push_back(item);
  }
  if (!row.empty()) {
    if (!arguments[1].is(Kind::kNone) && static_cast<int64_t>(row.size()) < width) {
      call.budget().Bytes(static_cast<uint64_t>(width) * sizeof(Value));
      row.resize(static_cast<size_t>(width), arguments[1]);
    }
    rows.push_back(call.runtime.List(std::move(row)));
  }
  return call.runtime.Generator(std::move(rows));
}

Value Slice(FilterCall& call) {
  const Arguments arguments = call.Bind({"slices", "fill_with"}, 1);
  const int64_t slices = arguments.Int(0, 0);
  if (slices == 0) Refuse("division by zero");
  const Value::Items items = Collect(call.input, call.budget());
  call.budget().Bytes(static_cast<uint64_t>(std::max<int64_t>(slices, 0)) * sizeof(Sequence));
  const auto length = static_cast<int64_t>(items.size());
  Value::Items columns;
  auto next = items.begin();
  for (int64_t i = 0; i < slices; ++i) {
    const bool has_extra = i < length % slices;
    const auto end = next + length / slices + (has_extra ? 1 : 0);
    Value::Items column(next, end);
    if (!arguments[1].is(Kind::kNone) && !has_extra) column.push_back(arguments[1]);
    columns.push_back(call.runtime.List(std::move(column)));
    next = end;
  }
  return call.runtime.Generator(std::move(columns));
}

// foo|attr("bar"): the attribute alone, never the item.
Value Attr(FilterCall& call) {
  const Arguments arguments = call.Bind({"name"}, 1);
  const std::string& name = arguments.Text(0);
  if (call.input.is(Kind::kDict) && FindMethod(call.input, name) == MethodAccess::kAbsent) {
    return Value::Undefined("'dict object' has no attribute " + TextRepr(name));
  }
  return GetAttribute(call.runtime, call.input, name);
}

Value Map(FilterCall& call) {
  if (!call.input.Truthy()) return Value::MakeIterator({});
  CallArguments& arguments = call.arguments;
  std::function<Value(const Value&)> convert;
  if (arguments.positional.empty()) {
    const Arguments bound = call.Bind({"attribute", "default"}, 1);
    convert = [&runtime = call.runtime, getter = AttributeGetter(bound[0], call.budget()),
               fallback = bound[1]](const Value& item) { return getter.Get(runtime, item, fallback); };
  } else {
    const Value name = arguments.positional.front();
    if (!name.is(Kind::kString)) Refuse("map expects the name of a filter, not " + TypeName(name));
    arguments.positional.erase(arguments.positional.begin());
    convert = [&call, name](const Value& item) { return CallFilter(call.runtime, name.text(), item, call.arguments); };
  }
  Value::Items results;
  for (const Value& item : Collect(call.input, call.budget())) results.push_back(convert(item));
  return call.runtime.Generator(std::move(results));
}

// select, reject, selectattr and rejectattr: ([attribute,] [test, arguments of the test...])
template <bool wanted, bool by_attribute>
Value Select(FilterCall& call) {
  if (!call.input.Truthy()) return Value::MakeIterator({});
  CallArguments& arguments = call.arguments;
  const auto take = [&]() -> std::optional<Value> {
    if (arguments.positional.empty()) return std::nullopt;
    Value value = std::move(arguments.positional.front());
    arguments.positional.erase(arguments.positional.begin());
    return value;
  };
  Value attribute;
  if (by_attribute) {
    std::optional<Value> given = take();
    if (!given) Refuse("Missing parameter for attribute name");
    attribute = *given;
  }
  const AttributeGetter getter(attribute, call.budget());
  const std::optional<Value> test = take();
  if (test && !test->is(Kind::kString)) {
    Refuse(std::string(call.name) + " expects the name of a test, not " + TypeName(*test));
  }
  Value::Items kept;
  for (const Value& item : Collect(call.input, call.budget())) {
    const Value value = getter.Get(call.runtime, item);
    const bool holds = test ? CallTest(call.runtime, test->text(), value, arguments) : value.Truthy();
    if (holds == wanted) kept.push_back(item);
  }
  return call.runtime.Generator(std::move(kept));
}

constexpr FilterEntry kSequenceFilters[] = {
    {"attr", Attr},
    {"batch", Batch},
    {"count", Count},
    {"d", Default},
    {"default", Default},
    {"dictsort", DictSort},
    {"first", First},
    {"groupby", GroupBy},
    {"items", DictItems},
    {"join", Join},
    {"last", Last},
    {"length", Count},
    {"list", ToList},
    {"map", Map},
    {"max", Extreme<false>},
    {"min", Extreme<true>},
    {"random", nullptr},
    {"reject", Select<false, false>},
    {"rejectattr", Select<false, true>},
    {"reverse", Reverse},
    {"select", Select<true, false>},
    {"selectattr", Select<true, true>},
    {"slice", Slice},
    {"sort", Sort},
    {"sum", Sum},
    {"unique", Unique},
};

}  // namespace

std::span<const FilterEntry> SequenceFilters() { return kSequenceFilters; }

}  // namespace offgraph::llm::jinja
