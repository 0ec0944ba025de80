#include "offgraph/bytes/linear_op.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mlx/ops.h>
#include <mlx/random.h>
#include <mlx/transforms.h>

#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "offgraph/cache/error_test_util.h"
#include "offgraph/kernels/thread_pool.h"

namespace offgraph::bytes {
namespace {

namespace mx = mlx::core;
using mx::array;

const std::vector<mx::Dtype> kTypes = {mx::float32, mx::float16, mx::bfloat16};

array Random(const mx::Shape& shape, mx::Dtype type = mx::float32) {
  return mx::astype(mx::random::normal(shape, mx::float32), type);
}

double Epsilon(mx::Dtype type) {
  if (type == mx::float16) return 0x1p-11;
  return type == mx::bfloat16 ? 0x1p-8 : 0x1p-24;
}

array Abs32(const array& a) { return mx::abs(mx::astype(a, mx::float32)); }

// Ours against MLX's own op. MLX accumulates in an order of its own, for narrow types rounding on the way: both are
// within (K + 2) roundings to the result's type of the exact value, relative to the sum of absolute products.
void ExpectAgrees(const array& ours, const array& theirs, const array& magnitude, int64_t k) {
  ASSERT_EQ(ours.shape(), theirs.shape());
  ASSERT_EQ(ours.dtype(), theirs.dtype());
  const array difference = mx::abs(mx::subtract(mx::astype(ours, mx::float32), mx::astype(theirs, mx::float32)));
  const auto bound = static_cast<float>(2 * static_cast<double>(k + 2) * Epsilon(ours.dtype()));
  const array fits = mx::all(mx::less_equal(difference, mx::multiply(magnitude, array(bound))));
  EXPECT_TRUE(array(fits).item<bool>()) << "largest difference " << mx::max(difference).item<float>();
}

void ExpectSameBits(const array& a, const array& b) {
  ASSERT_EQ(a.shape(), b.shape());
  ASSERT_EQ(a.dtype(), b.dtype());
  EXPECT_TRUE(mx::array_equal(a, b).item<bool>());
}

class LinearOpTest : public ::testing::Test {
 protected:
  void SetUp() override {
    mx::set_default_device(mx::Device::cpu);
    mx::random::seed(7);
  }
};

TEST_F(LinearOpTest, LinearHasTheShapesTypesAndValuesOfMlx) {
  for (const mx::Dtype x_type : kTypes) {
    for (const mx::Dtype w_type : kTypes) {
      const array w = Random({13, 40}, w_type);
      const array bias = Random({13}, w_type);
      for (const mx::Shape& shape : {mx::Shape{40}, {1, 40}, {5, 40}, {1, 7, 40}, {2, 3, 4, 40}}) {
        const array x = Random(shape, x_type);
        const array transposed = mx::transpose(w);
        const array magnitude = mx::matmul(Abs32(x), Abs32(transposed));
        ExpectAgrees(Linear(x, w), mx::matmul(x, transposed), magnitude, 40);
        ExpectAgrees(Linear(x, w, bias), mx::add(mx::matmul(x, transposed), bias), mx::add(magnitude, Abs32(bias)), 41);
      }
    }
  }
}

TEST_F(LinearOpTest, LinearTakesEveryView) {
  const array x = Random({4, 6, 40});
  const array w = Random({40, 13});
  const array big = Random({9, 30, 80});
  const std::vector<array> views = {
      mx::transpose(x, {1, 0, 2}),
      mx::slice(big, {1, 2, 3}, {9, 30, 43}, {2, 3, 1}),
      mx::slice(big, {0, 0, 0}, {9, 30, 80}, {1, 1, 2}),
      mx::broadcast_to(Random({1, 1, 40}), {3, 5, 40}),
      mx::transpose(Random({40, 8})),
  };
  for (const array& view : views) {
    const array y = Linear(view, mx::transpose(w));
    ExpectAgrees(y, mx::matmul(view, w), mx::matmul(Abs32(view), Abs32(w)), 40);
    ExpectSameBits(y, Linear(mx::contiguous(view), mx::contiguous(mx::transpose(w))));
  }
}

TEST_F(LinearOpTest, MatmulBroadcastsAndTakesVectors) {
  struct Case {
    mx::Shape a;
    mx::Shape b;
  };
  const std::vector<Case> cases = {
      {{3, 8}, {8, 5}},
      {{8}, {8, 5}},
      {{3, 8}, {8}},
      {{8}, {8}},
      {{2, 3, 8}, {8, 5}},
      {{3, 8}, {4, 8, 5}},
      {{2, 1, 3, 8}, {4, 8, 5}},
      {{2, 4, 1, 8}, {2, 1, 8, 5}},
      {{6, 1, 8}, {8, 1}},
      {{8}, {2, 3, 8, 5}},
      {{0, 8}, {8, 5}},
      {{3, 0}, {0, 5}},
  };
  for (const mx::Dtype type : kTypes) {
    for (const Case& c : cases) {
      const array a = Random(c.a, type);
      const array b = Random(c.b, type);
      const array theirs = mx::matmul(a, b);
      const array ours = Matmul(a, b);
      if (theirs.size() == 0) {
        EXPECT_EQ(ours.shape(), theirs.shape());
        continue;
      }
      ExpectAgrees(ours, theirs, mx::matmul(Abs32(a), Abs32(b)), 8);
    }
  }
}

TEST_F(LinearOpTest, MatmulBitsDoNotDependOnLayout) {
  const array a = Random({2, 6, 70, 33});
  const array b = Random({2, 6, 33, 50});
  const array y = Matmul(a, b);
  ExpectAgrees(y, mx::matmul(a, b), mx::matmul(Abs32(a), Abs32(b)), 33);
  const array a_strided = mx::transpose(mx::contiguous(mx::transpose(a, {0, 2, 1, 3})), {0, 2, 1, 3});
  const array b_strided = mx::swapaxes(mx::contiguous(mx::swapaxes(b, -1, -2)), -1, -2);
  ExpectSameBits(Matmul(a_strided, b_strided), y);
  for (int row = 0; row < 70; row += 23) {
    const array part = mx::slice(a, {0, 0, row, 0}, {2, 6, row + 1, 33});
    ExpectSameBits(Matmul(part, b), mx::slice(y, {0, 0, row, 0}, {2, 6, row + 1, 50}));
  }
}

TEST_F(LinearOpTest, AddmmScalesAndBroadcastsTheAddend) {
  const array a = Random({2, 3, 8});
  const array b = Random({8, 5});
  const array product = mx::matmul(a, b);
  const array magnitude = mx::matmul(Abs32(a), Abs32(b));
  for (const mx::Shape& shape : {mx::Shape{}, {1}, {5}, {3, 1}, {3, 5}, {2, 1, 1}, {2, 3, 5}}) {
    const array c = Random(shape);
    const array theirs = mx::add(mx::multiply(product, array(0.5F)), mx::multiply(c, array(-2.0F)));
    ExpectAgrees(Addmm(c, a, b, 0.5F, -2.0F), theirs, mx::add(magnitude, mx::multiply(Abs32(c), array(2.0F))), 10);
  }
  const array column = Random({3});
  const array vector = Random({8});
  const array matrix = Random({3, 8});
  ExpectAgrees(Addmm(column, matrix, vector), mx::add(mx::matmul(matrix, vector), column),
               mx::add(mx::matmul(Abs32(matrix), Abs32(vector)), Abs32(column)), 10);
}

TEST_F(LinearOpTest, QuantizedMatmulAgreesWithMlxForEveryWidth) {
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    for (const int group_size : {32, 64, 128}) {
      for (const mx::Dtype type : kTypes) {
        for (const bool transpose : {true, false}) {
          const auto parts = mx::quantize(Random({128, 256}, type), group_size, bits);
          // What the codes stand for, without the rounding to a narrow type.
          const auto wide = [](const array& a) { return mx::astype(a, mx::float32); };
          const array w = mx::dequantize(parts[0], wide(parts[1]), wide(parts[2]), group_size, bits);
          const array x = Random({2, 3, transpose ? 256 : 128}, type);
          const array y = QuantizedMatmul(x, parts[0], parts[1], parts[2], transpose, group_size, bits);
          const array right = transpose ? mx::transpose(w) : w;
          const array magnitude = mx::matmul(Abs32(x), Abs32(right));
          ExpectAgrees(wide(y), mx::matmul(wide(x), right),
                       mx::multiply(magnitude, array(static_cast<float>(Epsilon(type) / Epsilon(mx::float32)))), 4);
          ExpectAgrees(y, mx::quantized_matmul(x, parts[0], parts[1], parts[2], transpose, group_size, bits), magnitude,
                       256);
        }
      }
    }
  }
}

TEST_F(LinearOpTest, QuantizedMatmulTakesBatchesAndViews) {
  const auto parts = mx::quantize(Random({3, 64, 64}), 32, 4);
  const array x = Random({2, 1, 5, 64});
  const array y = QuantizedMatmul(x, parts[0], parts[1], parts[2], true, 32, 4);
  EXPECT_EQ(y.shape(), (mx::Shape{2, 3, 5, 64}));
  for (int i = 0; i < 3; ++i) {
    const auto one = [&](const array& a) { return mx::squeeze(mx::slice(a, {i, 0, 0}, {i + 1, 64, a.shape(2)}), 0); };
    const array part = QuantizedMatmul(x, one(parts[0]), one(parts[1]), one(parts[2]), true, 32, 4);
    ExpectSameBits(mx::squeeze(mx::slice(y, {0, i, 0, 0}, {2, i + 1, 5, 64}), 1), mx::squeeze(part, 1));
  }
  // The words of a row, the scales and the biases apart from one another.
  const auto apart = [](const array& a) { return mx::swapaxes(mx::contiguous(mx::swapaxes(a, -1, -2)), -1, -2); };
  ExpectSameBits(QuantizedMatmul(x, apart(parts[0]), apart(parts[1]), apart(parts[2]), true, 32, 4), y);
  const array vector = Random({64});
  const array row = QuantizedMatmul(vector, parts[0], parts[1], parts[2], true, 32, 4);
  EXPECT_EQ(row.shape(), (mx::Shape{3, 64}));
}

TEST_F(LinearOpTest, ARowHasTheSameBitsInEveryChunkOnAnyNumberOfThreads) {
  const array w = Random({96, 64}, mx::bfloat16);
  const auto parts = mx::quantize(w, 32, 4);
  const array x = Random({1, 37, 64}, mx::bfloat16);
  const auto both = [&](const array& rows) {
    return mx::concatenate({Linear(rows, w), QuantizedMatmul(rows, parts[0], parts[1], parts[2], true, 32, 4)}, -1);
  };
  array whole = both(x);
  whole.eval();
  for (const size_t threads : {1, 2, 3}) {
    kernels::ThreadPool::SetDefaultThreads(threads);
    for (const int chunk : {1, 2, 5, 16, 37}) {
      std::vector<array> pieces;
      for (int row = 0; row < 37; row += chunk) {
        pieces.push_back(both(mx::slice(x, {0, row, 0}, {1, std::min(row + chunk, 37), 64})));
      }
      ExpectSameBits(mx::concatenate(pieces, 1), whole);
    }
  }
  kernels::ThreadPool::SetDefaultThreads(0);
}

TEST_F(LinearOpTest, WhatHasNoKernelIsMlxsOwnOp) {
  const array a = mx::astype(mx::reshape(mx::arange(12), {3, 4}), mx::float32);
  const array integers = mx::reshape(mx::arange(8), {4, 2});
  const array y = Matmul(a, integers);
  EXPECT_EQ(y.dtype(), mx::matmul(a, integers).dtype());
  ExpectSameBits(y, mx::matmul(a, integers));
  const auto parts = mx::quantize(Random({32, 64}), 32, 4, "mxfp4");
  const array x = Random({2, 64});
  ExpectSameBits(QuantizedMatmul(x, parts[0], parts[1], std::nullopt, true, 32, 4, "mxfp4"),
                 mx::quantized_matmul(x, parts[0], parts[1], std::nullopt, true, 32, 4, "mxfp4"));
}

void ExpectRefused(const std::function<void()>& call, const std::string& part) {
  EXPECT_THAT(Refusal(ErrorCode::kInvalidArgument, call), testing::HasSubstr(part));
}

TEST_F(LinearOpTest, RefusesShapesThatDoNotFit) {
  const array x = Random({2, 8});
  const array w = Random({5, 8});
  ExpectRefused([&] { Linear(x, Random({5, 9})); }, "inner dimensions differ: 8 and 9");
  ExpectRefused([&] { Linear(x, Random({8})); }, "w must be [N, K]");
  ExpectRefused([&] { Linear(array(1.0F), w); }, "scalar");
  ExpectRefused([&] { Linear(x, w, Random({8})); }, "bias must be [5]");
  ExpectRefused([&] { Matmul(Random({2, 3, 8}), Random({2, 8})); }, "inner dimensions differ: 8 and 2");
  ExpectRefused([&] { Matmul(Random({2, 3, 8}), Random({3, 8, 2})); }, "do not broadcast");
  ExpectRefused([&] { Matmul(array(1.0F), w); }, "scalar");
  ExpectRefused([&] { Addmm(Random({4}), x, mx::transpose(w)); }, "does not broadcast");
  ExpectRefused([&] { Addmm(Random({7, 2, 5}), x, mx::transpose(w)); }, "does not broadcast");
  const auto parts = mx::quantize(Random({32, 64}), 32, 4);
  const array y = Random({2, 64});
  const auto quantized = [&](const array& a, const array& codes, const array& scales,
                             const std::optional<array>& biases, int group_size,
                             int bits) { return QuantizedMatmul(a, codes, scales, biases, true, group_size, bits); };
  ExpectRefused([&] { quantized(y, parts[0], parts[1], std::nullopt, 32, 4); }, "needs biases");
  ExpectRefused([&] { quantized(y, parts[0], parts[1], parts[2], 32, 7); }, "bits must be");
  ExpectRefused([&] { quantized(y, parts[0], parts[1], parts[2], 16, 4); }, "group size must be");
  ExpectRefused([&] { quantized(y, parts[0], parts[1], parts[2], 64, 4); }, "do not fit together");
  ExpectRefused([&] { quantized(y, parts[0], parts[1], parts[2], 32, 8); }, "do not fit together");
  ExpectRefused([&] { quantized(x, parts[0], parts[1], parts[2], 32, 4); }, "inner dimensions differ: 8 and 64");
  ExpectRefused([&] { quantized(y, mx::astype(parts[0], mx::int32), parts[1], parts[2], 32, 4); }, "must be uint32");
}

}  // namespace
}  // namespace offgraph::bytes
