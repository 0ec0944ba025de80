#include "offgraph/delegate/cache_definition.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "offgraph/cache/error.h"

namespace offgraph::delegate {
namespace {

using Json = nlohmann::json;

Error Invalid(const std::string& what) { return {ErrorCode::kInvalidArgument, "cache definition: " + what}; }

// Fields that hold one integer each.
struct IntegerField {
  std::string_view name;
  int64_t CacheDefinition::*member;
  int64_t least;
};
constexpr std::array kIntegers = {
    IntegerField{"capacity", &CacheDefinition::capacity, 1},
    IntegerField{"initial_capacity", &CacheDefinition::initial_capacity, 1},
    IntegerField{"sinks", &CacheDefinition::sinks, 0},
    IntegerField{"max_step", &CacheDefinition::max_step, 1},
    IntegerField{"rewind_reserve", &CacheDefinition::rewind_reserve, 0},
};

struct DtypeName {
  std::string_view name;
  KvDtype dtype;
};
constexpr std::array kDtypes = {
    DtypeName{"fp32", KvDtype::kFloat32},
    DtypeName{"fp16", KvDtype::kFloat16},
    DtypeName{"bf16", KvDtype::kBFloat16},
    DtypeName{"same", KvDtype::kSame},
};

constexpr std::string_view kKvDtype = "kv_dtype";
constexpr std::string_view kWindows = "windows";

// The value for a message; of a list or an object only what it is, since it may be long, and nest as deep as it likes.
std::string Shown(const Json& value) {
  return value.is_structured() ? std::string("an ") + value.type_name() : value.dump();
}

int64_t Integer(const Json& value, const std::string& name) {
  const bool too_large =
      value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (!value.is_number_integer() || too_large) throw Invalid(name + " is " + Shown(value) + ", expected an integer");
  return value.get<int64_t>();
}

KvDtype Dtype(const Json& value) {
  const auto* found = std::find_if(kDtypes.begin(), kDtypes.end(), [&](const DtypeName& entry) {
    return value.is_string() && value.get_ref<const std::string&>() == entry.name;
  });
  if (found == kDtypes.end()) {
    throw Invalid("kv_dtype is " + Shown(value) + R"(, expected "fp32", "fp16", "bf16" or "same")");
  }
  return found->dtype;
}

std::vector<int64_t> Windows(const Json& value) {
  if (value.is_number()) {
    const int64_t window = Integer(value, "windows");
    if (window != 0) {
      throw Invalid("windows is " + std::to_string(window) +
                    ", expected 0 (full attention in all caches) or a list "
                    "with one number per cache");
    }
    return {0};
  }
  if (!value.is_array() || value.empty()) {
    throw Invalid("windows is " + Shown(value) + ", expected 0 or a list with one number per cache");
  }
  std::vector<int64_t> windows;
  for (const Json& window : value)
    windows.push_back(Integer(window, "windows[" + std::to_string(windows.size()) + "]"));
  return windows;
}

// Parses, and refuses a name that is given twice, of which the library would keep the last.
Json ParseObject(const std::string& text) {
  std::set<std::string> names;
  const auto watch = [&](int depth, Json::parse_event_t event, const Json& parsed) {
    if (event == Json::parse_event_t::key && depth == 1 && !names.insert(parsed.get<std::string>()).second) {
      throw Invalid(parsed.dump() + " is given twice");
    }
    return true;
  };
  try {
    Json object = Json::parse(text, watch);
    if (!object.is_object()) throw Invalid("expected a JSON object");
    return object;
  } catch (const Json::exception& error) {
    throw Invalid(std::string("no valid JSON: ") + error.what());
  }
}

}  // namespace

void Check(const CacheDefinition& definition) {
  for (const IntegerField& field : kIntegers) {
    const int64_t value = definition.*field.member;
    if (value < field.least) {
      throw Invalid(std::string(field.name) + " is " + std::to_string(value) + ", expected at least " +
                    std::to_string(field.least));
    }
  }
  if (!definition.kv_dtype) throw Invalid(R"(kv_dtype is missing: "fp32", "fp16", "bf16" or "same")");
  if (definition.windows.empty()) {
    throw Invalid(
        "windows is missing: one number per cache, as the program's method get_windows says, or 0 where all "
        "attention is full");
  }
  for (size_t i = 0; i < definition.windows.size(); ++i) {
    if (definition.windows[i] < 0) {
      throw Invalid("windows[" + std::to_string(i) + "] is " + std::to_string(definition.windows[i]) +
                    ", expected at least 0");
    }
  }
  const bool ring = std::any_of(definition.windows.begin(), definition.windows.end(), [](int64_t w) { return w > 0; });
  if (definition.sinks > 0 && !ring) {
    throw Invalid("sinks is " + std::to_string(definition.sinks) + ", expected 0: no cache has a window");
  }
}

CacheDefinition ParseCacheDefinition(const std::string& json) {
  const Json object = ParseObject(json);
  CacheDefinition definition;
  for (const auto& [name, value] : object.items()) {
    const auto* field = std::find_if(kIntegers.begin(), kIntegers.end(),
                                     [&, &wanted = name](const IntegerField& entry) { return entry.name == wanted; });
    if (field != kIntegers.end()) {
      definition.*field->member = Integer(value, name);
    } else if (name == kKvDtype) {
      definition.kv_dtype = Dtype(value);
    } else if (name == kWindows) {
      definition.windows = Windows(value);
    } else {
      throw Invalid("unknown name \"" + name + "\"");
    }
  }
  if (!object.contains("capacity")) throw Invalid("capacity is missing: the tokens that a sequence may hold");
  Check(definition);
  return definition;
}

}  // namespace offgraph::delegate
