#include "offgraph/bytes/region.h"

#include <gtest/gtest.h>
#include <mlx/ops.h>
#include <mlx/random.h>
#include <mlx/transforms.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "offgraph/kernels/thread_pool.h"

namespace offgraph::bytes {
namespace {

namespace mx = mlx::core;
using kernels::Block;
using kernels::DType;

constexpr int64_t kWidth = 48;

// y[n] = x[n] + 2 x[(n + 1) mod kWidth]: a linear layer whose sums have two terms.
RegionLinear Neighbours(int64_t width) {
  return [width](int64_t rows, const Block& x, const Block& y, kernels::ThreadPool& threads) {
    threads.ParallelFor(static_cast<size_t>(rows), 3, [&](size_t begin, size_t end) {
      for (auto r = static_cast<int64_t>(begin); r < static_cast<int64_t>(end); ++r) {
        const float* from = x.data + r * x.row_stride;
        for (int64_t n = 0; n < width; ++n) {
          y.data[r * y.row_stride + n] = from[n % x.dim] + 2 * from[(n + 1) % x.dim];
        }
      }
    });
  };
}

// Stands for attention: a row of the result is the sum of the rows of v so far, plus its own row of q.
RegionAttend SumSoFar(int64_t tokens) {
  return [tokens](const kernels::HeadsView& q, const kernels::HeadsView& /*k*/, const kernels::HeadsView& v,
                  const kernels::MutableHeadsView& out) {
    const auto at = [](const auto& view, int64_t t, int64_t i) {
      return static_cast<const float*>(view.data)[t * view.token_stride + i];
    };
    for (int64_t i = 0; i < kWidth; ++i) {
      float sum = 0;
      for (int64_t t = 0; t < tokens; ++t) {
        sum += at(v, t, i);
        static_cast<float*>(out.data)[t * out.token_stride + i] = sum + at(q, t, i);
      }
    }
  };
}

// Two layers: norm, linear, attention, residual, gate. Saves the results of both. The second linear layer is wider, so
// that its place in memory meets those of the first layer's values.
std::shared_ptr<const Region> TwoLayers() {
  RegionBuilder builder;
  RegionValue x = builder.Load(0, 1, kWidth);
  for (int layer = 0; layer < 2; ++layer) {
    const RegionValue normal = builder.Norm(x, false, {}, {}, 1e-5F, DType::kFloat32);
    const int64_t width = (3 + 2 * layer) * kWidth;
    const RegionValue qkv = builder.Linear(normal, width, Neighbours(width));
    const auto part = [&](int64_t i) {
      RegionValue value = qkv;
      value.column = i * kWidth;
      value.dim = kWidth;
      return value;
    };
    const RegionValue attended = builder.Attend(part(0), part(1), part(2), DType::kFloat32);
    x = builder.Combine(x, attended, kernels::Arithmetic::kAdd, DType::kFloat32);
    const RegionValue up = builder.Linear(x, kWidth, Neighbours(kWidth));
    const RegionValue gated = builder.Gate(x, up, kernels::Activation::kSilu, DType::kBFloat16);
    x = builder.Combine(x, gated, kernels::Arithmetic::kMultiply, DType::kFloat32);
    builder.Save(x, layer == 0 ? mx::float16 : mx::float32);
  }
  return builder.Build();
}

std::vector<mx::array> RunWith(size_t threads, const std::shared_ptr<const Region>& region, const mx::array& x,
                               bool last_row_only) {
  kernels::ThreadPool::SetDefaultThreads(threads);
  const int64_t tokens = x.shape(1);
  std::vector<mx::array> results =
      Region::Run(region, tokens, {x}, {SumSoFar(tokens), SumSoFar(tokens)}, last_row_only);
  mx::eval(results);
  return results;
}

std::string BytesOf(const mx::array& array) { return {array.data<char>(), array.nbytes()}; }

TEST(RegionTest, TilesAndThreadsChangeNothing) {
  const std::shared_ptr<const Region> region = TwoLayers();
  for (const int tokens : {1, 2, 63, 64, 65, 127, 200, 257, 600}) {
    const mx::array x = mx::random::normal({1, tokens, static_cast<int>(kWidth)}, mx::float32);
    mx::eval(x);
    const std::vector<mx::array> alone = RunWith(1, region, x, false);
    ASSERT_EQ(alone[0].shape(), (mx::Shape{1, tokens, static_cast<int>(kWidth)}));
    for (const size_t threads : {2, 3, 5}) {
      const std::vector<mx::array> together = RunWith(threads, region, x, false);
      for (size_t i = 0; i < alone.size(); ++i) {
        EXPECT_EQ(BytesOf(together[i]), BytesOf(alone[i])) << tokens << " tokens, " << threads << " threads";
      }
    }
  }
  kernels::ThreadPool::SetDefaultThreads(0);
}

// The rows of the first layer's result do not depend on later rows: a step of one token less gives the same.
TEST(RegionTest, ATileComputesItsOwnRows) {
  const std::shared_ptr<const Region> region = TwoLayers();
  constexpr int kTokens = 300;
  const mx::array x = mx::random::normal({1, kTokens, static_cast<int>(kWidth)}, mx::float32);
  mx::eval(x);
  const std::vector<mx::array> whole = RunWith(3, region, x, false);
  for (const int tokens : {1, 31, 130, 299}) {
    const mx::array head = mx::contiguous(mx::slice(x, {0, 0, 0}, {1, tokens, static_cast<int>(kWidth)}));
    const std::vector<mx::array> part = RunWith(2, region, head, false);
    for (size_t i = 0; i < part.size(); ++i) {
      EXPECT_EQ(std::memcmp(part[i].data<char>(), whole[i].data<char>(), part[i].nbytes()), 0)
          << "output " << i << " of " << tokens << " tokens";
    }
  }
  kernels::ThreadPool::SetDefaultThreads(0);
}

TEST(RegionTest, TheLastRowAlone) {
  RegionBuilder builder;
  const RegionValue x = builder.Load(0, 1, kWidth);
  const RegionValue attended = builder.Attend(x, x, x, DType::kFloat32);
  builder.Save(builder.Linear(builder.Combine(x, attended, kernels::Arithmetic::kAdd, DType::kFloat32), kWidth,
                              Neighbours(kWidth)),
               mx::float32);
  const std::shared_ptr<const Region> region = builder.Build();
  for (const int tokens : {1, 40, 200}) {
    const mx::array input = mx::random::normal({1, tokens, static_cast<int>(kWidth)}, mx::float32);
    mx::eval(input);
    const mx::array all = RunWith(2, region, input, false)[0];
    const mx::array last = RunWith(2, region, input, true)[0];
    ASSERT_EQ(last.shape(), (mx::Shape{1, 1, static_cast<int>(kWidth)}));
    EXPECT_EQ(std::memcmp(last.data<float>(), all.data<float>() + (tokens - 1) * kWidth, last.nbytes()), 0);
  }
  kernels::ThreadPool::SetDefaultThreads(0);
}

}  // namespace
}  // namespace offgraph::bytes
