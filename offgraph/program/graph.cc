#include "offgraph/program/graph.h"

#include <cstdio>

namespace offgraph::program {
namespace {

template <typename... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <typename... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

// What an op does with a tensor or value field follows from the field's name, alike in all ops.
enum class Access : uint8_t { kRead, kWrite, kReadWrite };

Access AccessOf(std::string_view field) {
  if (field == "out" || field == "outs" || field == "outputs" || field == "sliced") return Access::kWrite;
  if (field == "carry") return Access::kReadWrite;  // a scan's state
  return Access::kRead;
}

class UseCollector {
 public:
  UseCollector(SlotUse* use, Access access) : use_(use), access_(access) {}

  void operator()(Tid tid) const {
    if (access_ != Access::kWrite) use_->reads.push_back(tid);
    if (access_ != Access::kRead) use_->writes.push_back(tid);
  }
  void operator()(Vid vid) const {
    if (access_ != Access::kWrite) use_->value_reads.push_back(vid);
    if (access_ != Access::kRead) use_->value_writes.push_back(vid);
  }
  void operator()(const IntOperand& operand) const { std::visit(*this, operand.value); }
  void operator()(const FloatOperand& operand) const { std::visit(*this, operand.value); }
  void operator()(const SlotOperand& operand) const { std::visit(*this, operand.value); }
  void operator()(const IndexOperand& operand) const { std::visit(*this, operand.value); }
  void operator()(const std::vector<Tid>& tids) const {
    for (Tid tid : tids) (*this)(tid);
  }
  void operator()(const std::vector<IntOperand>& operands) const {
    for (const IntOperand& operand : operands) (*this)(operand);
  }
  template <typename Literal>
  void operator()(const Literal& /*literal*/) const {}

 private:
  SlotUse* use_;
  Access access_;
};

std::string Text(Tid tid) { return std::string("t").append(std::to_string(tid.index)); }
std::string Text(Vid vid) { return std::string("v").append(std::to_string(vid.index)); }
std::string Text(int64_t value) { return std::to_string(value); }
std::string Text(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof(buffer), "%g", value);
  return buffer;
}
std::string Text(const std::string& value) { return std::string("\"").append(value).append("\""); }
std::string Text(const IntOperand& operand) {
  return std::visit([](const auto& value) { return Text(value); }, operand.value);
}
template <typename T>
std::string Text(const std::vector<T>& values) {
  std::string text = "[";
  for (size_t i = 0; i < values.size(); ++i) text += (i == 0 ? "" : ", ") + Text(values[i]);
  return text + "]";
}

}  // namespace

const Field* FindField(const Instruction& instruction, std::string_view name) {
  for (const Field& field : instruction.fields) {
    if (field.name == name) return &field;
  }
  return nullptr;
}

SlotUse UseOf(const Instruction& instruction) {
  SlotUse use;
  for (const Field& field : instruction.fields) std::visit(UseCollector(&use, AccessOf(field.name)), field.value);
  return use;
}

bool WritesSlots(std::string_view field) { return AccessOf(field) != Access::kRead; }

std::vector<int64_t> ChainsOf(const Instruction& instruction) {
  constexpr std::string_view kSuffix = "_chain_idx";
  std::vector<int64_t> chains;
  for (const Field& field : instruction.fields) {
    const std::string_view name = field.name;
    const bool is_chain = name.size() > kSuffix.size() && name.substr(name.size() - kSuffix.size()) == kSuffix;
    if (is_chain && std::holds_alternative<int64_t>(field.value)) chains.push_back(std::get<int64_t>(field.value));
  }
  return chains;
}

std::string ToString(const FieldValue& value) {
  return std::visit(
      Overloaded{
          [](std::monostate) { return std::string("absent"); },
          [](bool flag) { return std::string(flag ? "true" : "false"); },
          [](const FloatOperand& o) { return std::visit([](const auto& v) { return Text(v); }, o.value); },
          [](const SlotOperand& o) { return std::visit([](const auto& v) { return Text(v); }, o.value); },
          [](const IndexOperand& o) { return std::visit([](const auto& v) { return Text(v); }, o.value); },
          [](const auto& other) { return Text(other); },
      },
      value);
}

std::string ToString(const Instruction& instruction) {
  std::string text = instruction.op + "(";
  bool first = true;
  for (const Field& field : instruction.fields) {
    if (std::holds_alternative<std::monostate>(field.value)) continue;
    text += (first ? "" : ", ") + field.name + "=" + ToString(field.value);
    first = false;
  }
  return text + ")";
}

}  // namespace offgraph::program
