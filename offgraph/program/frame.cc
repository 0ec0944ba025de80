#include "offgraph/program/frame.h"

#include <mlx/random.h>

#include <cmath>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "offgraph/cache/error.h"
#include "offgraph/program/mlx_types.h"

namespace offgraph::program {
namespace {

namespace mx = mlx::core;

// What MLX keeps for a result that is not computed yet, beside its elements: the description, the op, the links to its
// inputs. Counted so that a step of many small results has a limit too.
constexpr int64_t kBytesOfAResult = 512;

int64_t BytesOf(const mx::array& array) {
  auto bytes = static_cast<int64_t>(array.itemsize());
  for (int32_t dim : array.shape()) {
    if (dim < 0 || __builtin_mul_overflow(bytes, int64_t{dim == 0 ? 1 : dim}, &bytes)) {
      throw Error(ErrorCode::kInvalidArgument, "a result of shape " + ShapeText(array.shape()) + " is not possible");
    }
  }
  return static_cast<int64_t>(array.nbytes());
}

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

void Frame::LimitMemory(int64_t limit) {
  memory_limit_ = limit;
  memory_used_ = 0;
  counted_.clear();
}

void Frame::TakeMemory(int64_t bytes, const char* what, const mx::Shape& shape) {
  CheckFitsMachine(bytes, what);
  if (!__builtin_add_overflow(memory_used_, bytes, &memory_used_) &&
      (memory_limit_ == 0 || memory_used_ <= memory_limit_)) {
    return;
  }
  throw Error(ErrorCode::kOutOfMemory,
              std::string("with ") + what + (shape.empty() ? "" : " of shape " + ShapeText(shape)) +
                  " the step takes " + std::to_string(memory_used_) + " bytes, and its limit is " +
                  std::to_string(memory_limit_) + "; raise the limit, or make the step smaller");
}

void Frame::TakeMemory(const mx::array& result) {
  std::vector<mx::array> pending = {result};
  while (!pending.empty()) {
    const mx::array array = std::move(pending.back());
    pending.pop_back();
    if (!counted_.emplace(array.id(), array).second) continue;
    TakeMemory(BytesOf(array) + kBytesOfAResult, "a result", array.shape());
    for (const mx::array& input : array.inputs()) {
      if (!input.is_available()) pending.push_back(input);
    }
    for (const mx::array& sibling : array.siblings()) pending.push_back(sibling);
  }
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
