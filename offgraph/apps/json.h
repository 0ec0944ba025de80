// JSON as the commands print it: keys in the order that they were set, bytes that are not UTF-8 replaced.
#pragma once

#include <iostream>
#include <nlohmann/json.hpp>

namespace offgraph::apps {

using Json = nlohmann::ordered_json;

// One value and a newline on stdout. `indent` < 0: on one line.
inline void PrintJson(const Json& value, int indent = 2) {
  std::cout << value.dump(indent, ' ', false, Json::error_handler_t::replace) << "\n";
}

}  // namespace offgraph::apps
