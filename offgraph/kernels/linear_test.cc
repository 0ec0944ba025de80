#include "offgraph/kernels/linear.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <memory>
#include <vector>

#include "offgraph/kernels/linear_parts.h"
#include "offgraph/kernels/linear_test_util.h"

namespace offgraph::kernels {
namespace {

using test::ForEachTarget;
using test::HalfUlp;
using test::Matrix;
using test::QuantizedMatrix;

constexpr double kEpsilon = std::numeric_limits<float>::epsilon() / 2;
constexpr std::array<DType, 3> kTypes = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
constexpr std::array<int64_t, 8> kRows = {1, 2, 3, 4, 7, 16, 33, 70};

// The two products under one signature, with w [N, K] or [K, N].
struct Product {
  const char* name;
  bool transposed;  // w is [N, K]
  void (*dense)(int64_t, int64_t, int64_t, const MatrixView&, const MatrixView&, const MutableMatrixView&,
                const Epilogue&, ThreadPool&);
  void (*quantized)(int64_t, int64_t, int64_t, const MatrixView&, const QuantizedView&, const MutableMatrixView&,
                    const Epilogue&, ThreadPool&);
};
constexpr std::array<Product, 2> kProducts = {
    {{"Linear", true, Linear, QuantizedLinear}, {"MatMul", false, MatMul, QuantizedMatMul}}};

// The largest error of a sum of k products in fp32 with any order of additions, a few operations for the epilogue,
// and one rounding to the result's type. `magnitude` is the sum of the absolute values of all terms.
double Bound(int64_t k, double magnitude, double expected, DType type) {
  const double sum_error = static_cast<double>(k + 8) * kEpsilon * magnitude;
  return sum_error + HalfUlp(type, std::fabs(expected) + sum_error);
}

// Compares y with alpha * (x w) + beta * addend. `weight(k, n)` gives the weight in double precision.
template <class Weight>
void ExpectProduct(const Matrix& x, const Weight& weight, const Matrix& y, const Epilogue& e, const Matrix* addend) {
  const int64_t k_count = x.cols();
  for (int64_t m = 0; m < y.rows(); ++m) {
    for (int64_t n = 0; n < y.cols(); ++n) {
      double sum = 0;
      double magnitude = 0;
      for (int64_t k = 0; k < k_count; ++k) {
        const double product = x.Get(m, k) * weight(k, n);
        sum += product;
        magnitude += std::fabs(product);
      }
      sum *= e.alpha;
      magnitude *= std::fabs(e.alpha);
      if (addend != nullptr) {
        const double term = e.beta * addend->Get(addend->rows() == 1 ? 0 : m, n);
        sum += term;
        magnitude += std::fabs(term);
      }
      ASSERT_NEAR(y.Get(m, n), sum, Bound(k_count, magnitude, sum, y.type())) << "row " << m << " column " << n;
    }
  }
}

void ExpectSameRow(const Matrix& a, int64_t a_row, const Matrix& b, int64_t b_row, int64_t cols) {
  for (int64_t j = 0; j < cols; ++j) {
    ASSERT_EQ(a.Bits(a_row, j), b.Bits(b_row, j)) << "rows " << a_row << " and " << b_row << ", column " << j;
  }
}

TEST(LinearTest, AgreesWithDoublePrecisionAtOddSizesOnEveryTarget) {
  ThreadPool threads(2);
  ForEachTarget([&](const std::string& target) {
    std::mt19937 random(1);
    const auto pick = [&](const auto& list) { return list[random() % list.size()]; };
    constexpr std::array<int64_t, 8> kColumns = {1, 3, 6, 13, 32, 96, 101, 193};
    constexpr std::array<int64_t, 8> kInner = {1, 5, 16, 31, 64, 97, 160, 577};
    for (int trial = 0; trial < 80; ++trial) {
      const Product& product = kProducts[trial % 2];
      const int64_t m = pick(kRows);
      const int64_t n = pick(kColumns);
      const int64_t k = pick(kInner);
      SCOPED_TRACE(target + " " + product.name + " M " + std::to_string(m) + " N " + std::to_string(n) + " K " +
                   std::to_string(k));
      Matrix x(m, k, pick(kTypes), static_cast<int64_t>(random() % 3), 1 + static_cast<int64_t>(random() % 2));
      Matrix w(product.transposed ? n : k, product.transposed ? k : n, pick(kTypes), static_cast<int64_t>(random() % 3),
               1 + static_cast<int64_t>(random() % 2));
      Matrix y(m, n, pick(kTypes), static_cast<int64_t>(random() % 3));
      Matrix addend(random() % 2 == 0 ? 1 : m, n, pick(kTypes), 2);
      x.Fill(random);
      w.Fill(random);
      addend.Fill(random);
      const bool add = random() % 2 == 0;
      Epilogue epilogue;
      if (random() % 2 == 0) epilogue = {.alpha = -0.75F, .beta = 1.5F, .addend = {}};
      if (add) {
        epilogue.addend = addend.View();
        if (addend.rows() == 1) epilogue.addend.row_stride = 0;
      }
      product.dense(m, n, k, x.View(), w.View(), y.MutableView(), epilogue, threads);
      ExpectProduct(
          x, [&](int64_t kk, int64_t nn) { return product.transposed ? w.Get(nn, kk) : w.Get(kk, nn); }, y, epilogue,
          add ? &addend : nullptr);
      EXPECT_TRUE(y.GuardsIntact());
      if (HasFatalFailure() || HasFailure()) return;
    }
  });
}

TEST(LinearTest, ARowHasTheSameBitsInEveryBatchOnAnyNumberOfThreads) {
  constexpr int64_t kMost = 70;
  constexpr int64_t kN = 67;
  constexpr int64_t kK = 192;
  ThreadPool one(1);
  ForEachTarget([&](const std::string& target) {
    std::mt19937 random(2);
    for (const Product& product : kProducts) {
      for (const DType type : kTypes) {
        SCOPED_TRACE(target + " " + product.name + " type " + std::to_string(static_cast<int>(type)));
        Matrix x(kMost, kK, type);
        Matrix w(product.transposed ? kN : kK, product.transposed ? kK : kN, type);
        x.Fill(random);
        w.Fill(random);
        Matrix reference(kMost, kN, DType::kFloat32);
        for (int64_t row = 0; row < kMost; ++row) {
          product.dense(1, kN, kK, x.View(row), w.View(), reference.MutableView(row), {}, one);
        }
        for (const size_t thread_count : {1, 2, 3}) {
          ThreadPool threads(thread_count);
          for (const int64_t rows : kRows) {
            for (const int64_t first : {int64_t{0}, kMost - rows}) {
              Matrix y(rows, kN, DType::kFloat32, 5);
              product.dense(rows, kN, kK, x.View(first), w.View(), y.MutableView(), {}, threads);
              for (int64_t row = 0; row < rows; ++row) ExpectSameRow(y, row, reference, first + row, kN);
            }
          }
        }
      }
    }
  });
}

// The last column of the result must not care whether more columns follow, and strides must not matter.
TEST(LinearTest, BitsDoNotDependOnTheNumberOfColumnsOrOnStrides) {
  ThreadPool threads(2);
  ForEachTarget([&](const std::string& target) {
    std::mt19937 random(3);
    for (const Product& product : kProducts) {
      SCOPED_TRACE(target + " " + product.name);
      constexpr int64_t kM = 5;
      constexpr int64_t kN = 100;
      constexpr int64_t kK = 64;
      Matrix x(kM, kK, DType::kFloat32);
      x.Fill(random);
      Matrix strided_x(kM, kK, DType::kFloat32, 3, 2);
      Matrix w(product.transposed ? kN : kK, product.transposed ? kK : kN, DType::kFloat32);
      w.Fill(random);
      Matrix strided_w(w.rows(), w.cols(), DType::kFloat32, 1, 3);
      for (int64_t i = 0; i < w.rows(); ++i) {
        for (int64_t j = 0; j < w.cols(); ++j) strided_w.Set(i, j, w.Get(i, j));
      }
      for (int64_t i = 0; i < kM; ++i) {
        for (int64_t j = 0; j < kK; ++j) strided_x.Set(i, j, x.Get(i, j));
      }
      Matrix all(kM, kN, DType::kFloat32);
      product.dense(kM, kN, kK, x.View(), w.View(), all.MutableView(), {}, threads);
      for (const int64_t n : {1, 2, 5, 6, 7, 15, 16, 17, 95, 96, 97, 100}) {
        Matrix some(kM, n, DType::kFloat32);
        product.dense(kM, n, kK, strided_x.View(), strided_w.View(), some.MutableView(), {}, threads);
        for (int64_t row = 0; row < kM; ++row) ExpectSameRow(some, row, all, row, n);
      }
    }
  });
}

TEST(LinearTest, RoundsOnceToNearestEvenAndKeepsInfinityAndNan) {
  ThreadPool threads(1);
  // K = 1 and a weight of 1: the result is x itself, rounded. Ties and values around the limits of the formats.
  const std::vector<double> values = {0.0,
                                      -0.0,
                                      1.0 + 0x1p-8,
                                      1.0 + 0x1.8p-7,
                                      1.0 + 0x1p-11,
                                      1.0 + 0x1.8p-10,
                                      65504.0,
                                      65519.0,
                                      65520.0,
                                      -1e38,
                                      3.4e38,
                                      0x1p-14,
                                      0x1p-24,
                                      0x1p-25,
                                      0x1.8p-25,
                                      0x1.004p-15,
                                      -0x1.FFFp-15,
                                      std::numeric_limits<double>::infinity(),
                                      -std::numeric_limits<double>::infinity(),
                                      std::numeric_limits<double>::quiet_NaN()};
  const auto rows = static_cast<int64_t>(values.size());
  ForEachTarget([&](const std::string& target) {
    for (const DType x_type : kTypes) {
      for (const DType y_type : kTypes) {
        SCOPED_TRACE(target);
        Matrix x(rows, 1, x_type);
        Matrix w(1, 1, DType::kFloat32);
        w.Set(0, 0, 1.0);
        Matrix y(rows, 1, y_type);
        Matrix expected(rows, 1, y_type);
        for (int64_t i = 0; i < rows; ++i) {
          x.Set(i, 0, values[i]);
          // A sum starts at +0, so that -0 becomes +0.
          expected.Set(i, 0, x.Get(i, 0) == 0 ? 0.0 : x.Get(i, 0));
        }
        for (const Product& product : kProducts) {
          product.dense(rows, 1, 1, x.View(), w.View(), y.MutableView(), {}, threads);
          for (int64_t i = 0; i < rows; ++i) {
            if (std::isnan(expected.Get(i, 0))) {
              EXPECT_TRUE(std::isnan(y.Get(i, 0))) << values[i];
            } else {
              EXPECT_EQ(y.Bits(i, 0), expected.Bits(i, 0)) << values[i] << " became " << y.Get(i, 0);
            }
          }
        }
      }
    }
  });
}

// Long rows: x does not fit the kernels' buffers at once, nor do its rows fill the last of them.
TEST(LinearTest, ARowHasTheSameBitsInEveryPieceOfALongProduct) {
  ThreadPool threads(2);
  ForEachTarget([&](const std::string& target) {
    std::mt19937 random(6);
    for (const DType w_type : kTypes) {
      for (const DType x_type : kTypes) {
        SCOPED_TRACE(target + " types " + std::to_string(static_cast<int>(w_type)) + " " +
                     std::to_string(static_cast<int>(x_type)));
        constexpr int64_t kM = 85;
        constexpr int64_t kN = 37;
        constexpr int64_t kK = 8192;
        Matrix x(kM, kK, x_type);
        Matrix w(kN, kK, w_type);
        x.Fill(random);
        w.Fill(random);
        Matrix all(kM, kN, DType::kFloat32);
        Linear(kM, kN, kK, x.View(), w.View(), all.MutableView(), {}, threads);
        for (const int64_t row : {0, 15, 16, 31, 32, 63, 64, 84}) {
          Matrix y(1, kN, DType::kFloat32);
          Linear(1, kN, kK, x.View(row), w.View(), y.MutableView(), {}, threads);
          ExpectSameRow(y, 0, all, row, kN);
        }
      }
    }
  });
}

TEST(LinearTest, PartsHaveTheBitsTheyHaveAlone) {
  ThreadPool threads(2);
  ForEachTarget([&](const std::string& target) {
    std::mt19937 random(7);
    constexpr int64_t kK = 96;
    const auto check = [&](std::initializer_list<DType> types, int64_t m) {
      SCOPED_TRACE(target + " M " + std::to_string(m));
      constexpr std::array<int64_t, 4> kWidths = {33, 5, 80, 1};
      Matrix x(m, kK, DType::kFloat32);
      x.Fill(random);
      std::vector<Matrix> weights;
      std::vector<Matrix> biases;
      int64_t total = 0;
      for (const DType type : types) {
        const int64_t n = kWidths[weights.size()];
        weights.emplace_back(n, kK, type).Fill(random);
        biases.emplace_back(1, n, type).Fill(random);
        total += n;
      }
      std::vector<LinearPart> parts;
      for (size_t i = 0; i < weights.size(); ++i) {
        parts.push_back({weights[i].View(), weights[i].rows(), {.alpha = 0.5F, .addend = {}}, DType::kFloat32});
        if (i % 2 == 0) continue;
        parts[i].epilogue.addend = biases[i].View();
        parts[i].epilogue.addend.row_stride = 0;
      }
      Matrix y(m, total, DType::kFloat16, 3);
      Linear(m, kK, x.View(), DType::kFloat32, parts, y.MutableView(), threads);
      EXPECT_TRUE(y.GuardsIntact());
      int64_t column = 0;
      for (const LinearPart& part : parts) {
        Matrix alone(m, part.n, DType::kFloat16);
        Linear(m, part.n, kK, x.View(), part.w, alone.MutableView(), part.epilogue, threads);
        for (int64_t row = 0; row < m; ++row) {
          for (int64_t j = 0; j < part.n; ++j) ASSERT_EQ(y.Bits(row, column + j), alone.Bits(row, j));
        }
        column += part.n;
      }
    };
    for (const int64_t m : {1, 2, 17, 40}) {
      check({DType::kBFloat16, DType::kFloat32, DType::kFloat16, DType::kBFloat16}, m);
      check({DType::kBFloat16, DType::kBFloat16, DType::kFloat16}, m);
    }
  });
}

TEST(LinearTest, ResultsAreRoundedWhereTheCallerWantsFewerBitsThanTheyAreStoredIn) {
  ThreadPool threads(2);
  ForEachTarget([&](const std::string& target) {
    std::mt19937 random(8);
    constexpr int64_t kM = 19;
    constexpr int64_t kN = 41;
    constexpr int64_t kK = 70;
    for (const DType w_type : kTypes) {
      for (const DType round : kTypes) {
        SCOPED_TRACE(target);
        Matrix x(kM, kK, DType::kFloat32);
        Matrix w(kN, kK, w_type);
        x.Fill(random);
        w.Fill(random);
        Matrix rounded(kM, kN, round);
        Linear(kM, kN, kK, x.View(), w.View(), rounded.MutableView(), {}, threads);
        Matrix y(kM, kN, DType::kFloat32);
        const LinearPart part = {w.View(), kN, {}, round};
        Linear(kM, kK, x.View(), DType::kFloat32, {&part, 1}, y.MutableView(), threads);
        for (int64_t i = 0; i < kM; ++i) {
          for (int64_t j = 0; j < kN; ++j) ASSERT_EQ(y.Get(i, j), rounded.Get(i, j));
        }
      }
    }
  });
}

TEST(LinearTest, ValuesOfFewerBitsThanTheirTypeGiveTheSameBits) {
  ThreadPool threads(2);
  ForEachTarget([&](const std::string& target) {
    std::mt19937 random(9);
    constexpr int64_t kN = 41;
    constexpr int64_t kK = 70;
    for (const int64_t m : {1, 3, 35}) {
      for (const DType values : kTypes) {
        for (const DType w_type : kTypes) {
          SCOPED_TRACE(target + " M " + std::to_string(m));
          Matrix narrow(m, kK, values);
          narrow.Fill(random);
          Matrix x(m, kK, DType::kFloat32);
          for (int64_t i = 0; i < m; ++i) {
            for (int64_t j = 0; j < kK; ++j) x.Set(i, j, narrow.Get(i, j));
          }
          Matrix w(kN, kK, w_type);
          w.Fill(random);
          const LinearPart part = {w.View(), kN, {}, DType::kFloat32};
          Matrix expected(m, kN, DType::kFloat32);
          Linear(m, kN, kK, x.View(), w.View(), expected.MutableView(), {}, threads);
          Matrix told(m, kN, DType::kFloat32);
          Linear(m, kK, x.View(), values, {&part, 1}, told.MutableView(), threads);
          Matrix stored(m, kN, DType::kFloat32);
          Linear(m, kN, kK, narrow.View(), w.View(), stored.MutableView(), {}, threads);
          for (int64_t i = 0; i < m; ++i) {
            ExpectSameRow(told, i, expected, i, kN);
            ExpectSameRow(stored, i, expected, i, kN);
          }
        }
      }
    }
  });
}

// A row with infinity or NaN spoils itself alone, and does so however its numbers are cut.
TEST(LinearTest, WhatIsNotFiniteStaysInItsRow) {
  ThreadPool threads(2);
  ForEachTarget([&](const std::string& target) {
    std::mt19937 random(10);
    constexpr int64_t kM = 20;
    constexpr int64_t kN = 35;
    constexpr int64_t kK = 45;
    constexpr int64_t kInfinite = 3;
    constexpr int64_t kNan = 17;
    for (const DType x_type : kTypes) {
      for (const DType w_type : kTypes) {
        SCOPED_TRACE(target + " types " + std::to_string(static_cast<int>(x_type)) + " " +
                     std::to_string(static_cast<int>(w_type)));
        Matrix x(kM, kK, x_type);
        Matrix w(kN, kK, w_type);
        x.Fill(random);
        w.Fill(random);
        Matrix expected(kM, kN, DType::kFloat32);
        Linear(kM, kN, kK, x.View(), w.View(), expected.MutableView(), {}, threads);
        x.Set(kInfinite, kK - 1, std::numeric_limits<double>::infinity());
        x.Set(kNan, 0, std::numeric_limits<double>::quiet_NaN());
        Matrix y(kM, kN, DType::kFloat32);
        Linear(kM, kN, kK, x.View(), w.View(), y.MutableView(), {}, threads);
        for (int64_t i = 0; i < kM; ++i) {
          if (i != kInfinite && i != kNan) {
            ExpectSameRow(y, i, expected, i, kN);
            continue;
          }
          for (int64_t j = 0; j < kN; ++j) EXPECT_FALSE(std::isfinite(y.Get(i, j)));
        }
      }
    }
  });
}

TEST(LinearTest, ASumOverNothingIsZeroAndNothingIsWrittenForNoRowsOrColumns) {
  ThreadPool threads(2);
  Matrix x(3, 0, DType::kFloat32, 4);
  Matrix bias(1, 2, DType::kFloat32);
  bias.Set(0, 0, 5.0);
  bias.Set(0, 1, -1.0);
  for (int trial = 0; trial < 4; ++trial) {
    const Product& product = kProducts[trial % 2];
    Matrix w(2, 0, trial < 2 ? DType::kFloat32 : DType::kBFloat16, 4);
    Matrix y(3, 2, DType::kFloat32, 1);
    Epilogue epilogue;
    epilogue.addend = bias.View();
    epilogue.addend.row_stride = 0;
    product.dense(3, 2, 0, x.View(), w.View(), y.MutableView(), epilogue, threads);
    EXPECT_EQ(y.Get(0, 0), 5.0);
    EXPECT_EQ(y.Get(2, 1), -1.0);
    Matrix untouched(3, 2, DType::kFloat32, 1);
    product.dense(0, 2, 4, x.View(), w.View(), untouched.MutableView(), {}, threads);
    product.dense(3, 0, 0, x.View(), w.View(), untouched.MutableView(), {}, threads);
    EXPECT_EQ(untouched.Bits(0, 0), 0x7E7E7E7EU);
  }
}

TEST(QuantizedTest, AgreesWithDoublePrecisionForEveryLayoutOnEveryTarget) {
  ThreadPool threads(2);
  ForEachTarget([&](const std::string& target) {
    std::mt19937 random(4);
    for (const Product& product : kProducts) {
      for (const int bits : {1, 2, 3, 4, 5, 6, 8}) {
        for (const int group_size : {32, 64, 128}) {
          const int64_t m = kRows[random() % kRows.size()];
          const int64_t grouped = group_size * static_cast<int64_t>(1 + random() % 5);
          const auto other = static_cast<int64_t>(1 + random() % 120);
          const int64_t n = product.transposed ? other : grouped;
          const int64_t k = product.transposed ? grouped : other;
          SCOPED_TRACE(target + " " + product.name + " bits " + std::to_string(bits) + " group " +
                       std::to_string(group_size) + " M " + std::to_string(m) + " N " + std::to_string(n) + " K " +
                       std::to_string(k));
          QuantizedMatrix w(other, grouped, bits, group_size, kTypes[random() % 3], kTypes[random() % 3], random);
          Matrix x(m, k, kTypes[random() % 3], 1);
          x.Fill(random);
          Matrix y(m, n, kTypes[random() % 3], 1);
          product.quantized(m, n, k, x.View(), w.View(), y.MutableView(), {}, threads);
          // The weight itself is rounded to fp32 once, or twice without fused operations: two more of the bound's k.
          ExpectProduct(
              x, [&](int64_t kk, int64_t nn) { return product.transposed ? w.Get(nn, kk) : w.Get(kk, nn); }, y, {},
              nullptr);
          EXPECT_TRUE(y.GuardsIntact());
          if (HasFailure()) return;
        }
      }
    }
  });
}

// The exact mode by its definition: dequantize to fp32, then the dense product.
TEST(QuantizedTest, HasTheBitsOfTheDenseProductWithDequantizedWeights) {
  ThreadPool threads(2);
  ForEachTarget([&](const std::string& target) {
    std::mt19937 random(5);
    const bool fuses = target != "Scalar" && target != "Emu128";
    for (const Product& product : kProducts) {
      for (const int bits : {1, 2, 3, 4, 5, 6, 8}) {
        SCOPED_TRACE(target + " " + product.name + " bits " + std::to_string(bits));
        constexpr int64_t kM = 9;
        constexpr int64_t kOther = 45;
        constexpr int64_t kGrouped = 192;
        QuantizedMatrix q(kOther, kGrouped, bits, 64, DType::kBFloat16, DType::kFloat32, random);
        Matrix w(kOther, kGrouped, DType::kFloat32);
        for (int64_t i = 0; i < kOther; ++i) {
          for (int64_t j = 0; j < kGrouped; ++j) {
            const auto scale = static_cast<float>(q.scales().Get(i, j / 64));
            const auto bias = static_cast<float>(q.biases().Get(i, j / 64));
            const auto code = static_cast<float>(q.Code(i, j));
            w.Set(i, j, fuses ? std::fma(scale, code, bias) : scale * code + bias);
          }
        }
        const int64_t n = product.transposed ? kOther : kGrouped;
        const int64_t k = product.transposed ? kGrouped : kOther;
        Matrix x(kM, k, DType::kBFloat16);
        x.Fill(random);
        Matrix expected(kM, n, DType::kFloat32);
        product.dense(kM, n, k, x.View(), w.View(), expected.MutableView(), {}, threads);
        for (const int64_t rows : {int64_t{1}, kM}) {
          Matrix y(rows, n, DType::kFloat32);
          product.quantized(rows, n, k, x.View(), q.View(), y.MutableView(), {}, threads);
          for (int64_t row = 0; row < rows; ++row) ExpectSameRow(y, row, expected, row, n);
        }
      }
    }
  });
}

}  // namespace
}  // namespace offgraph::kernels
