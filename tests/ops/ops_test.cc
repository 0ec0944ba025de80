// Runs the cases of tests/data/ops: every op with its fields, element types and dynamic values, against references
// that know nothing of MLX.
#include <gtest/gtest.h>
#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <ostream>
#include <string_view>
#include <variant>
#include <vector>

#include "offgraph/cache/error.h"
#include "offgraph/program/flow.h"
#include "offgraph/program/interpreter.h"
#include "offgraph/program/mlx_types.h"
#include "tests/ops/op_case.h"

namespace offgraph::testing {
namespace {

namespace mx = mlx::core;
using nlohmann::json;
using program::ScalarType;

constexpr ScalarType kTypes[] = {ScalarType::kByte,    ScalarType::kChar,   ScalarType::kShort,  ScalarType::kInt,
                                 ScalarType::kLong,    ScalarType::kHalf,   ScalarType::kFloat,  ScalarType::kDouble,
                                 ScalarType::kBool,    ScalarType::kUInt16, ScalarType::kUInt32, ScalarType::kUInt64,
                                 ScalarType::kBFloat16};

mx::Dtype TypeNamed(std::string_view name) {
  for (ScalarType type : kTypes) {
    if (Name(type) == name) return program::ToMlx(type);
  }
  throw std::runtime_error("no type is named " + std::string(name));
}

bool IsFloating(mx::Dtype type) { return mx::issubdtype(type, mx::floating); }

// [type, shape, elements] as an evaluated array. Elements are exact in their type, so the way there does not matter.
mx::array ToArray(const json& tensor) {
  const mx::Dtype type = TypeNamed(tensor[0].get<std::string>());
  const auto shape = tensor[1].get<mx::Shape>();
  mx::array result = mx::array(0);
  if (IsFloating(type)) {
    std::vector<double> numbers;
    for (const json& element : tensor[2]) numbers.push_back(ToNumber(element));
    result = mx::astype(mx::array(numbers.begin(), shape, mx::float64), type);
  } else {
    std::vector<int64_t> numbers;
    for (const json& element : tensor[2]) {
      numbers.push_back(element.is_boolean() ? static_cast<int64_t>(element.get<bool>()) : element.get<int64_t>());
    }
    result = mx::astype(mx::array(numbers.begin(), shape, mx::int64), type);
  }
  mx::eval(result);
  return result;
}

// What rounding to the type, and a few roundings in the type on the way, may change.
std::pair<double, double> ToleranceOf(mx::Dtype type) {
  if (type == mx::float16) return {0x1p-10, 0x1p-13};
  if (type == mx::bfloat16) return {0x1p-7, 0x1p-10};
  if (IsFloating(type)) return {1e-5, 1e-6};
  return {0, 0};
}

bool IsClose(double want, double got, double rtol, double atol) {
  return want == got || (std::isnan(want) && std::isnan(got)) || std::abs(want - got) <= atol + rtol * std::abs(want);
}

void ExpectArray(const json& expected, const mx::array& actual, const OpCase& one) {
  const mx::Dtype type = TypeNamed(expected[0].get<std::string>());
  ASSERT_EQ(program::FromMlx(actual.dtype()), program::FromMlx(type));
  ASSERT_EQ(program::ShapeText(actual.shape()), program::ShapeText(expected[1].get<mx::Shape>()));
  if (!IsFloating(type)) {
    mx::array same = mx::array_equal(actual, ToArray(expected));
    EXPECT_TRUE(same.item<bool>()) << "got " << actual;
    return;
  }
  const auto [rtol, atol] = one.tolerance.value_or(ToleranceOf(type));
  mx::array numbers = mx::contiguous(mx::astype(actual, mx::float64));
  mx::eval(numbers);
  for (size_t i = 0; i < numbers.size(); ++i) {
    const double want = ToNumber(expected[2][i]);
    EXPECT_TRUE(IsClose(want, numbers.data<double>()[i], rtol, atol))
        << "element " << i << ": expected " << want << ", got " << numbers.data<double>()[i];
  }
}

// Binds and runs the case, and leaves the results in `frame`.
void RunCase(const OpCase& one, const program::Interpreter& interpreter, program::Frame* frame) {
  for (const auto& [tid, tensor] : one.tensors) frame->Set(tid, ToArray(tensor));
  for (const auto& [vid, value] : one.values) frame->Set(vid, value);
  interpreter.Run(0, *frame);
  std::vector<mx::array> results;
  for (uint32_t i = one.graph.first_output(); i < one.graph.first_buffer(); ++i) {
    results.push_back(frame->Get(program::Tid{i}));
  }
  mx::eval(results);
}

class OpsTest : public ::testing::TestWithParam<json> {};

TEST_P(OpsTest, MatchesItsReference) {
  const OpCase one = ToOpCase(GetParam());
  SCOPED_TRACE(one.name);
  CheckFlow(one.graph, "case");
  if (!one.error.empty()) {
    try {
      const program::Interpreter interpreter(one.graph, "case");
      program::Frame frame(one.graph, interpreter);
      RunCase(one, interpreter, &frame);
      FAIL() << "it was accepted";
    } catch (const Error& error) {
      EXPECT_NE(std::string_view(error.what()).find(one.error), std::string_view::npos) << error.what();
    }
    return;
  }
  const program::Interpreter interpreter(one.graph, "case");
  program::Frame frame(one.graph, interpreter);
  RunCase(one, interpreter, &frame);
  for (const auto& [tid, tensor] : one.expected) ExpectArray(tensor, frame.Get(tid), one);
  for (const auto& [vid, value] : one.expected_values) EXPECT_EQ(frame.Int(vid), value);
}

// Numbers that a damaged or malicious file may hold.
constexpr int64_t kExtremeInts[] = {0, -1, 3, INT32_MAX, INT32_MIN, int64_t{1} << 32, INT64_MAX, INT64_MIN};
constexpr double kExtremeFloats[] = {
    0, -1, 1e300, -1e300, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()};
constexpr int64_t kMemoryLimit = 1 << 20;

// Puts each extreme in the place of every number of a field, one at a time, and calls `run` for each.
class Extremes {
 public:
  explicit Extremes(const std::function<void()>& run) : run_(run) {}

  void operator()(int64_t& number) const { Try(number, kExtremeInts); }
  void operator()(double& number) const { Try(number, kExtremeFloats); }
  void operator()(std::vector<int64_t>& numbers) const {
    for (int64_t& number : numbers) (*this)(number);
  }
  void operator()(std::vector<program::IntOperand>& operands) const {
    for (program::IntOperand& operand : operands) (*this)(operand);
  }
  void operator()(program::IntOperand& operand) const { std::visit(*this, operand.value); }
  void operator()(program::FloatOperand& operand) const { std::visit(*this, operand.value); }
  void operator()(program::IndexOperand& operand) const { std::visit(*this, operand.value); }
  template <typename Other>
  void operator()(Other& /*no number*/) const {}

 private:
  template <typename Number, size_t N>
  void Try(Number& number, const Number (&extremes)[N]) const {
    const Number before = number;
    for (Number extreme : extremes) {
      number = extreme;
      run_();
    }
    number = before;
  }

  const std::function<void()>& run_;
};

// A result or an Error, whatever the numbers of an instruction and of the value slots are.
TEST_P(OpsTest, SurvivesExtremes) {
  OpCase one = ToOpCase(GetParam());
  SCOPED_TRACE(one.name);
  const std::function<void()> run = [&] {
    try {
      const program::Interpreter interpreter(one.graph, "case");
      program::Frame frame(one.graph, interpreter);
      frame.LimitMemory(kMemoryLimit);
      RunCase(one, interpreter, &frame);
    } catch (const Error&) {
    }
  };
  for (program::Chain& chain : one.graph.chains) {
    for (program::Instruction& instruction : chain) {
      for (program::Field& field : instruction.fields) {
        // Which chain is called is checked when a payload is read.
        if (!field.name.ends_with("_chain_idx")) std::visit(Extremes(run), field.value);
      }
    }
  }
  for (auto& [vid, value] : one.values) std::visit(Extremes(run), value);
}

// "AddNode fp32" -> "AddNode_fp32": a name that a filter can name.
std::string TestName(const ::testing::TestParamInfo<json>& info) {
  std::string name = info.param.at("name");
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name + "_" + std::to_string(info.index);
}

INSTANTIATE_TEST_SUITE_P(All, OpsTest, ::testing::ValuesIn(ReadCaseFile().get<std::vector<json>>()), TestName);

}  // namespace
}  // namespace offgraph::testing

// Printed where a case fails: its name is enough.
NLOHMANN_JSON_NAMESPACE_BEGIN
void PrintTo(const json& one, std::ostream* stream) { *stream << one.at("name"); }
NLOHMANN_JSON_NAMESPACE_END
