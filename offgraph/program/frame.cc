#include "offgraph/program/frame.h"

#include <mlx/random.h>

#include <cmath>
#include <limits>
#include <random>
#include <utility>

#include "offgraph/cache/error.h"
#include "offgraph/program/mlx_types.h"

namespace offgraph::program {
namespace {

namespace mx = mlx::core;

uint64_t FreshSeed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

}  // namespace

Frame::Frame(const Graph& graph, const Interpreter& interpreter)
    : interpreter_(&interpreter),
      tensors_(graph.n_tensors()),
      values_(graph.n_values),
      random_state_(mx::random::key(FreshSeed())) {}

const mx::array& Frame::Get(Tid tid) const {
  const std::optional<mx::array>& slot = tensors_[tid.index];
  if (!slot) {
    throw Error(ErrorCode::kInvalidArgument,
                "tensor slot " + std::to_string(tid.index) + " is read before it is written");
  }
  return *slot;
}

std::vector<mx::array> Frame::Get(const std::vector<Tid>& tids) const {
  std::vector<mx::array> arrays;
  arrays.reserve(tids.size());
  for (Tid tid : tids) arrays.push_back(Get(tid));
  return arrays;
}

const Value& Frame::Get(Vid vid) const {
  const std::optional<Value>& slot = values_[vid.index];
  if (!slot) {
    throw Error(ErrorCode::kInvalidArgument,
                "value slot " + std::to_string(vid.index) + " is read before it is written");
  }
  return *slot;
}

void Frame::DropValues() { values_.assign(values_.size(), std::nullopt); }

int64_t Frame::Int(Vid vid) const {
  const Value& value = Get(vid);
  if (const auto* integer = std::get_if<int64_t>(&value)) return *integer;
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? 1 : 0;
  const double number = std::get<double>(value);
  constexpr double kLimit = 9.2e18;
  if (!(std::abs(number) < kLimit) || std::trunc(number) != number) {
    throw Error(ErrorCode::kInvalidArgument, "value slot " + std::to_string(vid.index) + " holds " +
                                                 std::to_string(number) + " where an integer is needed");
  }
  return static_cast<int64_t>(number);
}

int64_t Frame::Int(const IntOperand& operand) const {
  const auto* literal = std::get_if<int64_t>(&operand.value);
  return literal != nullptr ? *literal : Int(std::get<Vid>(operand.value));
}

Value Frame::Number(const FloatOperand& operand) const {
  const auto* literal = std::get_if<double>(&operand.value);
  return literal != nullptr ? *literal : Get(std::get<Vid>(operand.value));
}

int Frame::Int32(const IntOperand& operand) const { return ToInt32(Int(operand), "operand"); }

std::vector<int64_t> Frame::Ints(const std::vector<IntOperand>& operands) const {
  std::vector<int64_t> values;
  values.reserve(operands.size());
  for (const IntOperand& operand : operands) values.push_back(Int(operand));
  return values;
}

mx::Shape Frame::Shape(const std::vector<IntOperand>& operands, size_t item_size) const {
  return ToShape(Ints(operands), static_cast<int64_t>(item_size), "shape");
}

mx::array Frame::NextRandomKey() {
  auto [state, key] = mx::random::split(random_state_);
  random_state_ = state;
  return key;
}

int ToInt32(int64_t value, const char* what) {
  if (value < std::numeric_limits<int32_t>::min() || value > std::numeric_limits<int32_t>::max()) {
    throw Error(ErrorCode::kInvalidArgument, std::string(what) + " " + std::to_string(value) + " is beyond 32 bits");
  }
  return static_cast<int>(value);
}

}  // namespace offgraph::program
