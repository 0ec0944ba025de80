// Op cases in JSON: small programs with inputs and what is expected of them (tests/data/ops/make_cases.py says how a
// case is written).
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "offgraph/program/frame.h"
#include "offgraph/program/graph.h"

namespace offgraph::testing {

struct OpCase {
  std::string name;
  program::Graph graph;  // inputs are the case's tensors and values; every expected tensor is an output
  std::vector<std::pair<program::Tid, nlohmann::json>> tensors;  // [type, shape, elements]
  std::vector<std::pair<program::Vid, program::Value>> values;
  std::vector<std::pair<program::Tid, nlohmann::json>> expected;
  std::vector<std::pair<program::Vid, int64_t>> expected_values;
  std::string error;                                   // a part of the message, where the case must be refused
  std::optional<std::pair<double, double>> tolerance;  // relative, absolute
};

// All cases of tests/data/ops/cases.json. Throws where the file is not as described.
nlohmann::json ReadCaseFile();

// Absent fields get the schema's defaults, as they do in a payload.
OpCase ToOpCase(const nlohmann::json& json);

// A number, or "inf", "-inf", "nan".
double ToNumber(const nlohmann::json& json);

}  // namespace offgraph::testing
