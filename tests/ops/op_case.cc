#include "tests/ops/op_case.h"

#include <fstream>
#include <limits>
#include <set>
#include <stdexcept>
#include <string_view>

#include "offgraph/program/op_schema.h"

namespace offgraph::testing {
namespace {

using nlohmann::json;
using namespace program;  // NOLINT(google-build-using-namespace): every type here is of that room

const OpSchema& SchemaOf(const std::string& op) {
  for (const OpSchema& schema : OpSchemas()) {
    if (schema.name == op) return schema;
  }
  throw std::runtime_error("the schema has no " + op);
}

// Gives slots their numbers, in the order that the graph wants: inputs, outputs, temporaries.
class Builder {
 public:
  explicit Builder(const json& source) : source_(source) {
    for (const auto& [name, tensor] : Part("in").items()) tids_.emplace(name, Tid{graph_.n_inputs++});
    for (const auto& [name, tensor] : Part("out").items()) {
      if (tensor.is_array()) tids_.emplace(name, Tid{graph_.n_inputs + graph_.n_outputs++});
    }
  }

  OpCase Build() {
    OpCase result;
    result.name = source_.at("name");
    // Slots that hold values are those that are given, and those that ops write.
    for (const auto& [name, value] : Part("values").items())
      result.values.emplace_back(ValueSlot(name), ToValue(value));
    graph_.chains.push_back(ReadChain(source_.at("ops")));
    for (const json& chain : Part("chains")) graph_.chains.push_back(ReadChain(chain));
    for (uint32_t i = 0; i < graph_.n_inputs; ++i) graph_.inputs.push_back({SlotKind::kTensor, i});
    for (const auto& [vid, value] : result.values) graph_.inputs.push_back({SlotKind::kInt, vid.index});
    for (uint32_t i = 0; i < graph_.n_outputs; ++i) graph_.outputs.push_back({SlotKind::kTensor, graph_.n_inputs + i});
    for (const auto& [name, tensor] : Part("in").items()) result.tensors.emplace_back(tids_.at(name), tensor);
    for (const auto& [name, wanted] : Part("out").items()) {
      if (wanted.is_array()) {
        result.expected.emplace_back(tids_.at(name), wanted);
      } else {
        result.expected_values.emplace_back(vids_.at(name), wanted.get<int64_t>());
      }
    }
    if (source_.contains("error")) result.error = source_["error"];
    if (source_.contains("tol")) result.tolerance = {source_["tol"][0], source_["tol"][1]};
    result.graph = std::move(graph_);
    return result;
  }

 private:
  const json& Part(const char* key) const {
    static const json empty = json::object();
    return source_.contains(key) ? source_[key] : empty;
  }

  static Value ToValue(const json& value) {
    if (value.is_boolean()) return value.get<bool>();
    if (value.is_number_integer()) return value.get<int64_t>();
    return ToNumber(value);
  }

  Chain ReadChain(const json& ops) {
    Chain chain;
    for (const json& op : ops) {
      Instruction& instruction = chain.emplace_back();
      instruction.op = op[0];
      for (const FieldSchema& field : SchemaOf(instruction.op).fields) {
        const bool given = op[1].contains(field.name);
        instruction.fields.push_back(
            {field.name, given ? ReadField(field.kind, op[1][field.name]) : field.default_value});
      }
    }
    return chain;
  }

  Tid TensorSlot(const std::string& name) {
    const auto [slot, fresh] = tids_.emplace(name, Tid{graph_.n_inputs + graph_.n_outputs + graph_.n_temps});
    if (fresh) ++graph_.n_temps;
    return slot->second;
  }
  Vid ValueSlot(const std::string& name) {
    const auto [slot, fresh] = vids_.emplace(name, Vid{graph_.n_values});
    if (fresh) ++graph_.n_values;
    return slot->second;
  }
  IntOperand ToInt(const json& value) {
    if (value.is_string()) return {ValueSlot(value)};
    return {value.get<int64_t>()};
  }

  FieldValue ReadField(FieldKind kind, const json& value) {
    switch (kind) {
      case FieldKind::kBool:
        return value.get<bool>();
      case FieldKind::kInt:
        return value.get<int64_t>();
      case FieldKind::kFloat:
        return ToNumber(value);
      case FieldKind::kString:
        return value.get<std::string>();
      case FieldKind::kTid:
        return TensorSlot(value);
      case FieldKind::kVid:
        return ValueSlot(value);
      case FieldKind::kIntOperand:
        return ToInt(value);
      case FieldKind::kFloatOperand:
        return value.is_string() && vids_.contains(value) ? FloatOperand{ValueSlot(value)}
                                                          : FloatOperand{ToNumber(value)};
      case FieldKind::kSlotOperand:
        return tids_.contains(value) ? SlotOperand{TensorSlot(value)} : SlotOperand{ValueSlot(value)};
      case FieldKind::kIndexOperand:
        if (value.is_number()) return IndexOperand{value.get<int64_t>()};
        return tids_.contains(value) ? IndexOperand{TensorSlot(value)} : IndexOperand{ValueSlot(value)};
      case FieldKind::kIntVector:
        return value.get<std::vector<int64_t>>();
      case FieldKind::kTidVector: {
        std::vector<Tid> tids;
        for (const json& name : value) tids.push_back(TensorSlot(name));
        return tids;
      }
      case FieldKind::kIntOperandVector: {
        std::vector<IntOperand> operands;
        for (const json& one : value) operands.push_back(ToInt(one));
        return operands;
      }
      default:
        throw std::runtime_error("no case has a field that is a " + ToString(kind));
    }
  }

  const json& source_;
  Graph graph_;
  std::map<std::string, Tid> tids_;
  std::map<std::string, Vid> vids_;
};

}  // namespace

json ReadCaseFile() { return json::parse(std::ifstream(OFFGRAPH_TEST_DATA "/ops/cases.json")); }

OpCase ToOpCase(const json& source) { return Builder(source).Build(); }

double ToNumber(const json& value) {
  if (value.is_number()) return value.get<double>();
  const std::string text = value;
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  throw std::runtime_error("not a number: " + text);
}

}  // namespace offgraph::testing
