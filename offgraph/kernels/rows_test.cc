#include "offgraph/kernels/rows.h"

#include "offgraph/kernels/isa.h"
// Highway reads what isa.h defines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace offgraph::kernels {
namespace {

// fp32 rounds to 24 bits. A result that goes through a sum of n terms and a few more operations is within a few n half
// steps of the exact one; relative to the largest term that is n * 2^-24.
constexpr double kEpsilon = 0x1p-24;

// Widths around the vector lengths, heads, and rows enough to be divided among threads.
struct Shape {
  int64_t rows;
  int64_t heads;
  int64_t dim;
};
constexpr Shape kShapes[] = {{1, 1, 1}, {1, 1, 15}, {3, 1, 16}, {2, 3, 17}, {1, 9, 64}, {5, 2, 100}, {70, 1, 576}};

// Every instruction set that this machine has, one at a time.
void ForEachTarget(const std::function<void()>& body) {
  const int64_t supported = hwy::SupportedTargets() & HWY_TARGETS;
  for (int64_t targets = supported; targets != 0; targets &= targets - 1) {
    const int64_t target = targets & -targets;
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

double RoundTo(DType type, double value) {
  const auto single = static_cast<float>(value);
  if (type == DType::kFloat32) return single;
  if (type == DType::kBFloat16) {
    const auto bits = std::bit_cast<uint32_t>(single);
    return std::bit_cast<float>((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000);
  }
  // fp16: 11 bits above 2^-14, steps of 2^-24 below.
  const int exponent = std::max(std::ilogb(single == 0 ? 1.0F : single), -14);
  const double step = std::ldexp(1.0, exponent - 10);
  return std::nearbyint(single / step) * step;
}

// Half a step of the type, relative.
double UnitOf(DType type) { return type == DType::kFloat32 ? kEpsilon : type == DType::kFloat16 ? 0x1p-11 : 0x1p-8; }

// A block in memory of its own, with gaps between heads and rows that nothing may touch.
class Rows {
 public:
  Rows(const Shape& shape, uint32_t seed, DType type = DType::kFloat32) : shape_(shape) {
    head_stride_ = shape.dim + 3;
    row_stride_ = shape.heads * head_stride_ + 5;
    values_.assign(static_cast<size_t>(shape.rows * row_stride_), kGap);
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0F, 2.0F);
    for (int64_t r = 0; r < shape.rows; ++r) {
      for (int64_t h = 0; h < shape.heads; ++h) {
        for (int64_t i = 0; i < shape.dim; ++i) at(r, h, i) = static_cast<float>(RoundTo(type, normal(random)));
      }
    }
  }
  float& at(int64_t r, int64_t h, int64_t i) {
    return values_[static_cast<size_t>(r * row_stride_ + h * head_stride_ + i)];
  }
  Block block() { return {values_.data(), row_stride_, shape_.heads, head_stride_, shape_.dim}; }
  // Calls f(row, head, i) for all elements.
  template <class F>
  void ForEach(const F& f) const {
    for (int64_t r = 0; r < shape_.rows; ++r) {
      for (int64_t h = 0; h < shape_.heads; ++h) {
        for (int64_t i = 0; i < shape_.dim; ++i) f(r, h, i);
      }
    }
  }
  void ExpectGapsUntouched() {
    size_t gaps = 0;
    for (float value : values_) gaps += value == kGap ? 1 : 0;
    EXPECT_EQ(gaps, values_.size() - static_cast<size_t>(shape_.rows * shape_.heads * shape_.dim));
  }
  bool operator==(const Rows& other) const {
    return std::memcmp(values_.data(), other.values_.data(), values_.size() * sizeof(float)) == 0;
  }

 private:
  static constexpr float kGap = 12345.678F;
  Shape shape_;
  int64_t head_stride_;
  int64_t row_stride_;
  std::vector<float> values_;
};

std::vector<float> RandomVector(int64_t count, uint32_t seed, DType type) {
  Rows rows({1, 1, count}, seed, type);
  std::vector<float> result;
  rows.ForEach([&](int64_t, int64_t, int64_t i) { result.push_back(rows.at(0, 0, i)); });
  return result;
}

// Runs body(shape, type, threads) over instruction sets, shapes and types.
void Sweep(const std::function<void(const Shape&, DType, ThreadPool&)>& body) {
  ThreadPool threads(2);
  ForEachTarget([&] {
    for (const Shape& shape : kShapes) {
      for (DType type : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
        SCOPED_TRACE(testing::Message() << "rows " << shape.rows << ", heads " << shape.heads << ", dim " << shape.dim
                                        << ", type " << static_cast<int>(type));
        body(shape, type, threads);
      }
    }
  });
}

TEST(RowsTest, NormsAgreeWithDoublePrecision) {
  Sweep([](const Shape& shape, DType type, ThreadPool& threads) {
    Rows x(shape, 1, type);
    const std::vector<float> weight = RandomVector(shape.dim, 2, type);
    const std::vector<float> bias = RandomVector(shape.dim, 3, type);
    constexpr double kEps = 1e-5;
    for (bool center : {false, true}) {
      Rows out(shape, 4);
      if (center) {
        LayerNorm(shape.rows, x.block(), weight.data(), bias.data(), kEps, type, out.block(), threads);
      } else {
        RmsNorm(shape.rows, x.block(), weight.data(), kEps, type, out.block(), threads);
      }
      for (int64_t r = 0; r < shape.rows; ++r) {
        for (int64_t h = 0; h < shape.heads; ++h) {
          double mean = 0;
          double square = 0;
          for (int64_t i = 0; i < shape.dim; ++i) mean += x.at(r, h, i) / static_cast<double>(shape.dim);
          if (!center) mean = 0;
          for (int64_t i = 0; i < shape.dim; ++i) square += std::pow(x.at(r, h, i) - mean, 2);
          const double scale = 1.0 / std::sqrt(square / static_cast<double>(shape.dim) + kEps);
          for (int64_t i = 0; i < shape.dim; ++i) {
            const double w = weight[static_cast<size_t>(i)];
            const double b = center ? bias[static_cast<size_t>(i)] : 0;
            const double normal = (x.at(r, h, i) - mean) * scale;
            // The mean's error is a share of the largest element, which the scale may blow up.
            const double terms = static_cast<double>(shape.dim) + 8;
            const double loss = terms * kEpsilon * (std::abs(normal) + 8 * scale) + UnitOf(type) * std::abs(normal);
            const double bound = 2 * std::abs(w) * loss + 4 * UnitOf(type) * (std::abs(normal * w) + std::abs(b));
            ASSERT_NEAR(out.at(r, h, i), normal * w + b, bound + 1e-7) << "row " << r << " head " << h << " at " << i;
          }
        }
      }
      out.ExpectGapsUntouched();
    }
  });
}

TEST(RowsTest, NormsWorkWithoutWeights) {
  ThreadPool threads(1);
  const Shape shape{2, 1, 40};
  Rows x(shape, 1);
  Rows with(shape, 2);
  Rows without(shape, 2);
  const std::vector<float> ones(40, 1.0F);
  RmsNorm(2, x.block(), ones.data(), 1e-6F, DType::kFloat32, with.block(), threads);
  RmsNorm(2, x.block(), nullptr, 1e-6F, DType::kFloat32, without.block(), threads);
  EXPECT_TRUE(with == without);
}

TEST(RowsTest, RotaryRoundsWhereTheChainOfOpsRounds) {
  Sweep([](Shape shape, DType type, ThreadPool& threads) {
    shape.dim *= 2;
    Rows x(shape, 1, type);
    Rows out(shape, 2);
    const std::vector<float> cos = RandomVector(shape.rows * shape.dim, 3, type);
    const std::vector<float> sin = RandomVector(shape.rows * shape.dim, 4, type);
    Rotary(shape.rows, x.block(), cos.data(), sin.data(), type, out.block(), threads);
    const int64_t half = shape.dim / 2;
    out.ForEach([&](int64_t r, int64_t h, int64_t i) {
      const auto angle = static_cast<size_t>(r * shape.dim + i);
      const double rotated = i < half ? -x.at(r, h, i + half) : x.at(r, h, i - half);
      const double expected = RoundTo(
          type, RoundTo(type, static_cast<double>(x.at(r, h, i)) * cos[angle]) + RoundTo(type, rotated * sin[angle]));
      ASSERT_EQ(out.at(r, h, i), static_cast<float>(expected));
    });
    out.ExpectGapsUntouched();
    // In place.
    Rotary(shape.rows, x.block(), cos.data(), sin.data(), type, x.block(), threads);
    EXPECT_TRUE([&] {
      bool same = true;
      out.ForEach([&](int64_t r, int64_t h, int64_t i) { same = same && x.at(r, h, i) == out.at(r, h, i); });
      return same;
    }());
  });
}

double Reference(Activation activation, double x) {
  switch (activation) {
    case Activation::kCopy:
      return x;
    case Activation::kNegate:
      return -x;
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kGelu:
      return x * (1 + std::erf(x / std::sqrt(2.0))) / 2;
    case Activation::kGeluTanh:
      return x * (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x))) / 2;
    case Activation::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case Activation::kTanh:
      return std::tanh(x);
  }
  return 0;
}

TEST(RowsTest, ActivationsAndGatesAgreeWithDoublePrecision) {
  for (Activation activation : {Activation::kCopy, Activation::kNegate, Activation::kSilu, Activation::kGelu,
                                Activation::kGeluTanh, Activation::kSigmoid, Activation::kTanh}) {
    SCOPED_TRACE(static_cast<int>(activation));
    Sweep([&](const Shape& shape, DType type, ThreadPool& threads) {
      Rows gate(shape, 1, type);
      Rows up(shape, 2, type);
      gate.at(0, 0, 0) = 2000.0F;  // where exp overflows
      if (shape.dim > 1) gate.at(0, 0, 1) = -2000.0F;
      Rows alone(shape, 3);
      Rows gated(shape, 3);
      Activate(shape.rows, activation, gate.block(), type, alone.block(), threads);
      Gate(shape.rows, activation, gate.block(), up.block(), type, gated.block(), threads);
      alone.ForEach([&](int64_t r, int64_t h, int64_t i) {
        const double x = gate.at(r, h, i);
        const double expected = Reference(activation, x);
        // 1 + tanh and 1 + erf cancel for negative x: what is left has the rounding of numbers near 1.
        const double bound =
            16 * kEpsilon * std::max(std::abs(expected), std::abs(x)) + UnitOf(type) * std::abs(expected);
        ASSERT_NEAR(alone.at(r, h, i), expected, bound + 1e-7) << "of " << x;
        ASSERT_EQ(gated.at(r, h, i),
                  static_cast<float>(RoundTo(type, static_cast<double>(alone.at(r, h, i)) * up.at(r, h, i))));
      });
      gated.ExpectGapsUntouched();
    });
  }
}

TEST(RowsTest, CombineBroadcastsRowsAndHeads) {
  Sweep([](const Shape& shape, DType type, ThreadPool& threads) {
    Rows a(shape, 1, type);
    std::vector<float> vector = RandomVector(shape.dim, 2, type);
    const Block b{vector.data(), 0, shape.heads, 0, shape.dim};
    for (Arithmetic op : {Arithmetic::kAdd, Arithmetic::kSubtract, Arithmetic::kMultiply, Arithmetic::kDivide}) {
      Rows out(shape, 3);
      Combine(shape.rows, op, a.block(), b, type, out.block(), threads);
      out.ForEach([&](int64_t r, int64_t h, int64_t i) {
        const double x = a.at(r, h, i);
        const double y = vector[static_cast<size_t>(i)];
        const double exact = op == Arithmetic::kAdd        ? x + y
                             : op == Arithmetic::kSubtract ? x - y
                             : op == Arithmetic::kMultiply ? x * y
                                                           : x / y;
        ASSERT_EQ(out.at(r, h, i), static_cast<float>(RoundTo(type, static_cast<float>(exact))));
      });
      out.ExpectGapsUntouched();
    }
  });
}

TEST(RowsTest, RowsOfAnyTypeGoInAndOut) {
  Sweep([](const Shape& shape, DType type, ThreadPool& threads) {
    Rows x(shape, 1, type);
    Rows back(shape, 2);
    const auto width = static_cast<size_t>(shape.heads * shape.dim);
    std::vector<uint8_t> bytes(static_cast<size_t>(shape.rows) * width * SizeOf(type) + 1, 0xAB);
    SaveRows(shape.rows, x.block(), bytes.data(), type, threads);
    EXPECT_EQ(bytes.back(), 0xAB);
    LoadRows(shape.rows, bytes.data(), type, back.block(), threads);
    x.ForEach([&](int64_t r, int64_t h, int64_t i) { ASSERT_EQ(back.at(r, h, i), x.at(r, h, i)); });
    back.ExpectGapsUntouched();
  });
}

TEST(RowsTest, EmbeddingsAreRowsOfTheTable) {
  ThreadPool threads(2);
  constexpr int64_t kRows = 6;
  constexpr int64_t kDim = 96;
  constexpr int64_t kGroup = 32;
  const std::vector<int64_t> index = {5, 0, 3, 3, 1};
  ForEachTarget([&] {
    for (int bits : {2, 3, 4, 5, 6, 8}) {
      std::mt19937 random(static_cast<uint32_t>(bits));
      std::vector<uint32_t> words(static_cast<size_t>(kRows * kDim * bits / 32));
      for (uint32_t& word : words) word = random();
      std::vector<float> scales = RandomVector(kRows * kDim / kGroup, 1, DType::kBFloat16);
      std::vector<float> biases = RandomVector(kRows * kDim / kGroup, 2, DType::kBFloat16);
      const MatrixView scale_view{scales.data(), DType::kFloat32, kDim / kGroup, 1};
      const MatrixView bias_view{biases.data(), DType::kFloat32, kDim / kGroup, 1};
      const QuantizedView table{words.data(), kDim * bits / 32, scale_view, bias_view, bits, kGroup};
      Rows out({static_cast<int64_t>(index.size()), 1, kDim}, 3);
      EmbedQuantized(static_cast<int64_t>(index.size()), index.data(), table, DType::kBFloat16, out.block(), threads);
      out.ForEach([&](int64_t r, int64_t, int64_t i) {
        const int64_t row = index[static_cast<size_t>(r)];
        // The code, bit by bit.
        uint32_t code = 0;
        for (int b = 0; b < bits; ++b) {
          const int64_t bit = row * kDim * bits + i * bits + b;
          code |= (words[static_cast<size_t>(bit / 32)] >> (bit % 32) & 1) << b;
        }
        const auto group = static_cast<size_t>(row * kDim / kGroup + i / kGroup);
        const double product = RoundTo(DType::kBFloat16, static_cast<double>(scales[group]) * code);
        ASSERT_EQ(out.at(r, 0, i), static_cast<float>(RoundTo(DType::kBFloat16, product + biases[group])));
      });
    }
    std::vector<float> table = RandomVector(kRows * kDim, 4, DType::kFloat32);
    Rows out({static_cast<int64_t>(index.size()), 1, kDim}, 3);
    EmbedDense(static_cast<int64_t>(index.size()), index.data(), {table.data(), DType::kFloat32, kDim, 1}, out.block(),
               threads);
    out.ForEach([&](int64_t r, int64_t, int64_t i) {
      ASSERT_EQ(out.at(r, 0, i), table[static_cast<size_t>(index[static_cast<size_t>(r)] * kDim + i)]);
    });
  });
}

TEST(RowsTest, ThreadsAndNeighboursChangeNoBit) {
  const Shape shape{70, 2, 288};
  ThreadPool one(1);
  ThreadPool three(3);
  Rows x(shape, 1);
  const std::vector<float> weight = RandomVector(shape.dim, 2, DType::kFloat32);
  Rows expected(shape, 3);
  Rows out(shape, 3);
  RmsNorm(shape.rows, x.block(), weight.data(), 1e-6F, DType::kFloat32, expected.block(), one);
  RmsNorm(shape.rows, x.block(), weight.data(), 1e-6F, DType::kFloat32, out.block(), three);
  EXPECT_TRUE(out == expected);
  for (int64_t r = 0; r < shape.rows; ++r) {
    Block from = x.block();
    Block to = out.block();
    from.data += r * from.row_stride;
    to.data += r * to.row_stride;
    RmsNorm(1, from, weight.data(), 1e-6F, DType::kFloat32, to, one);
  }
  EXPECT_TRUE(out == expected);
}

}  // namespace
}  // namespace offgraph::kernels
