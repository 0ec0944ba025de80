#include "offgraph/bytes/linear_op_packed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mlx/ops.h>
#include <mlx/random.h>
#include <mlx/transforms.h>

#include <functional>
#include <string>
#include <vector>

#include "offgraph/bytes/linear_op.h"
#include "offgraph/cache/error_test_util.h"

namespace offgraph::bytes {
namespace {

namespace mx = mlx::core;
using mx::array;

array Random(const mx::Shape& shape, mx::Dtype type = mx::float32) {
  return mx::astype(mx::random::normal(shape, mx::float32), type);
}

QuantizedArrays Quantize(const array& w, int group_size, int bits) {
  const auto parts = mx::quantize(w, group_size, bits);
  return {parts[0], parts[1], parts[2]};
}

float LargestDifference(const array& a, const array& b) {
  return mx::max(mx::abs(mx::subtract(mx::astype(a, mx::float32), mx::astype(b, mx::float32)))).item<float>();
}

class PackedLinearTest : public ::testing::Test {
 protected:
  void SetUp() override {
    mx::set_default_device(mx::Device::cpu);
    mx::random::seed(3);
  }
};

TEST_F(PackedLinearTest, IsNearTheExactModeForEveryWidthAndShape) {
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    for (const int group_size : {32, 64, 128}) {
      const QuantizedArrays w = Quantize(Random({70, 256}, mx::bfloat16), group_size, bits);
      const auto packed = PackWeights({&w, 1}, group_size, bits);
      for (const mx::Shape& shape : {mx::Shape{256}, {1, 256}, {2, 9, 256}, {1, 40, 256}}) {
        const array x = Random(shape);
        const array exact = QuantizedMatmul(x, w.codes, w.scales, w.biases, true, group_size, bits);
        const array fast = PackedLinear(x, packed);
        ASSERT_EQ(fast.shape(), exact.shape());
        EXPECT_EQ(fast.dtype(), mx::float32);
        // Codes are off by half a step of about 3 / 2039; 256 such errors times weights near 1 add up like a walk.
        EXPECT_LT(LargestDifference(fast, exact), 16 * 6 * 0.5 * 3.5 / 2039) << bits << " bits, groups " << group_size;
      }
    }
  }
}

TEST_F(PackedLinearTest, ManyProjectionsAreOneProduct) {
  const std::vector<QuantizedArrays> parts = {Quantize(Random({48, 64}), 32, 4), Quantize(Random({16, 64}), 32, 4),
                                              Quantize(Random({19, 64}), 32, 4)};
  const array x = Random({1, 5, 64}, mx::bfloat16);
  const array together = PackedLinear(x, PackWeights(parts, 32, 4));
  EXPECT_EQ(together.dtype(), mx::bfloat16);
  std::vector<array> apart;
  for (const QuantizedArrays& part : parts) apart.push_back(PackedLinear(x, PackWeights({&part, 1}, 32, 4)));
  EXPECT_TRUE(mx::array_equal(together, mx::concatenate(apart, -1)).item<bool>());
}

TEST_F(PackedLinearTest, TakesABiasEveryViewAndAnotherType) {
  const QuantizedArrays w = Quantize(Random({24, 64}), 32, 8);
  const auto packed = PackWeights({&w, 1}, 32, 8);
  const array bias = Random({24}, mx::float16);
  const array big = Random({6, 10, 128});
  const array view = mx::slice(big, {0, 1, 0}, {6, 9, 128}, {2, 3, 2});
  const array y = PackedLinear(view, packed, bias, mx::float16);
  EXPECT_EQ(y.dtype(), mx::float16);
  EXPECT_TRUE(mx::array_equal(y, PackedLinear(mx::contiguous(view), packed, bias, mx::float16)).item<bool>());
  const array sum = mx::add(PackedLinear(view, packed), bias);
  EXPECT_LT(LargestDifference(y, sum), 0.05F);
  EXPECT_EQ(PackedLinear(mx::zeros({2, 0, 64}), packed).shape(), (mx::Shape{2, 0, 24}));
}

TEST_F(PackedLinearTest, TheWeightOutlivesWhatItWasPackedFrom) {
  const array x = Random({1, 64});
  std::shared_ptr<const kernels::PackedWeights> packed;
  std::optional<array> exact;
  {
    const QuantizedArrays w = Quantize(Random({32, 64}), 32, 4);
    packed = PackWeights({&w, 1}, 32, 4);
    exact = QuantizedMatmul(x, w.codes, w.scales, w.biases, true, 32, 4);
    exact->eval();
  }
  array y = PackedLinear(x, packed);
  packed.reset();
  y.eval();
  EXPECT_LT(LargestDifference(y, *exact), 0.1F);
}

void ExpectRefused(const std::function<void()>& call, const std::string& part) {
  EXPECT_THAT(Refusal(ErrorCode::kInvalidArgument, call), testing::HasSubstr(part));
}

TEST_F(PackedLinearTest, RefusesWhatDoesNotFit) {
  const QuantizedArrays w = Quantize(Random({32, 64}), 32, 4);
  const QuantizedArrays wide = Quantize(Random({32, 128}), 32, 4);
  const std::vector<QuantizedArrays> uneven = {w, wide};
  ExpectRefused([&] { PackWeights({}, 32, 4); }, "no weight");
  ExpectRefused([&] { PackWeights({&w, 1}, 32, 7); }, "bits must be");
  ExpectRefused([&] { PackWeights({&w, 1}, 48, 4); }, "group size must be");
  ExpectRefused([&] { PackWeights({&w, 1}, 64, 4); }, "do not fit together");
  ExpectRefused([&] { PackWeights(uneven, 32, 4); }, "do not fit together");
  const auto packed = PackWeights({&w, 1}, 32, 4);
  ExpectRefused([&] { PackedLinear(Random({2, 32}), packed); }, "x must be [..., 64], is [2, 32]");
  ExpectRefused([&] { PackedLinear(Random({2, 64}), packed, Random({31})); }, "bias must be [32]");
  ExpectRefused([&] { PackedLinear(mx::astype(Random({2, 64}), mx::int32), packed); }, "types must be");
}

}  // namespace
}  // namespace offgraph::bytes
