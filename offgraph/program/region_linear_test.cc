#include <gtest/gtest.h>
#include <mlx/ops.h>
#include <mlx/random.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <vector>

#include "offgraph/kernels/thread_pool.h"
#include "offgraph/program/region.h"

namespace offgraph::program {
namespace {

namespace mx = mlx::core;

constexpr int kColumns = 128;
constexpr int kRows = 48;

// A layer of random weights in 4 bits.
LinearWeights QuantizedLayer(bool fast) {
  const mx::array w = mx::random::normal({kRows, kColumns}, mx::float32, 0.0F, 1.0F, mx::random::key(3));
  std::vector<mx::array> parts = mx::quantize(w, 32, 4);
  mx::eval(parts);
  LinearWeights linear;
  linear.weights = {parts[0]};
  linear.scales = {parts[1]};
  linear.biases = {parts[2]};
  linear.bits = 4;
  linear.group_size = 32;
  linear.fast = fast;
  return linear;
}

std::vector<float> Product(const bytes::RegionLinear& linear) {
  std::vector<float> x(kColumns);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7) - 3.0F;
  std::vector<float> y(kRows);
  linear(1, {x.data(), kColumns, 1, kColumns, kColumns}, {y.data(), kRows, 1, kRows, kRows},
         kernels::ThreadPool::Default());
  return y;
}

TEST(RegionLinearTest, WeightsThatWereLaidOutAnewAreNotReadAgain) {
  kernels::WeightArena arena;
  LinearWeights linear = QuantizedLayer(true);
  EXPECT_TRUE(IsLaidOutAnew(linear));
  const bytes::RegionLinear product = PackedLinear(LayOut(linear, arena), linear.round);
  const std::vector<float> before = Product(product);
  std::fill_n(linear.weights[0].data<uint32_t>(), linear.weights[0].size(), 0U);
  EXPECT_EQ(Product(product), before);
}

TEST(RegionLinearTest, WeightsThatAreReadInEveryStepStay) {
  LinearWeights linear = QuantizedLayer(false);
  EXPECT_FALSE(IsLaidOutAnew(linear));
  const bytes::RegionLinear product = ExactLinear(linear);
  const std::vector<float> before = Product(product);
  std::fill_n(linear.weights[0].data<uint32_t>(), linear.weights[0].size(), 0U);
  EXPECT_NE(Product(product), before);
}

}  // namespace
}  // namespace offgraph::program
