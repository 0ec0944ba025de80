#include "offgraph/kernels/packed_weights.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "offgraph/kernels/linear_test_util.h"

namespace offgraph::kernels {
namespace {

using test::ForEachTarget;
using test::Matrix;
using test::QuantizedMatrix;

constexpr std::array<DType, 3> kTypes = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

// The result by the definition in packed_weights.h, one element at a time: exact integers, and std::fma.
class Reference {
 public:
  Reference(const Matrix& x, const QuantizedMatrix& w, int group_size, int zero)
      : x_(x), w_(w), group_size_(group_size), zero_(zero) {}

  float At(int64_t m, int64_t n, bool biases) const {
    const int64_t k_count = x_.cols();
    const int64_t piece_size = std::min(group_size_, 64);
    float total = 0;
    for (int64_t unit = 0; unit < k_count; unit += 64) {
      const int64_t unit_end = std::min<int64_t>(unit + 64, k_count);
      float largest = 0;
      for (int64_t k = unit; k < unit_end; ++k) largest = std::max(largest, std::fabs(X(m, k)));
      const bool tiny = largest < 0x1p-100F;
      const float scale = tiny ? 0 : largest / 2039.0F;
      const float inverse = tiny ? 0 : 2039.0F / largest;
      float part = 0;
      std::vector<float> bias_terms;
      for (int64_t piece = unit; piece < unit_end; piece += piece_size) {
        int64_t dot = 0;
        int64_t sum = 0;
        for (int64_t k = piece; k < piece + piece_size; ++k) {
          const auto code = static_cast<int64_t>(std::nearbyint(X(m, k) * inverse));
          dot += code * (static_cast<int64_t>(w_.Code(n, k)) - zero_);
          sum += code;
        }
        const auto group = piece / group_size_;
        part = std::fma(static_cast<float>(dot), static_cast<float>(w_.scales().Get(n, group)), part);
        bias_terms.push_back(scale * static_cast<float>(sum));
      }
      total = std::fma(part, scale, total);
      for (size_t i = 0; biases && i < bias_terms.size(); ++i) {
        const auto group = (unit + static_cast<int64_t>(i) * piece_size) / group_size_;
        total = std::fma(static_cast<float>(w_.biases().Get(n, group)), bias_terms[i], total);
      }
    }
    return total;
  }

 private:
  float X(int64_t m, int64_t k) const { return static_cast<float>(x_.Get(m, k)); }

  const Matrix& x_;
  const QuantizedMatrix& w_;
  int group_size_;
  int zero_;
};

std::string Describe(DotIsa isa, int bits, int group_size, int64_t m, int64_t n, int64_t k) {
  return std::string(DotIsaName(isa)) + " bits " + std::to_string(bits) + " group " + std::to_string(group_size) +
         " M " + std::to_string(m) + " N " + std::to_string(n) + " K " + std::to_string(k);
}

void ExpectSameBits(const Matrix& a, int64_t a_row, const Matrix& b, int64_t b_row) {
  for (int64_t j = 0; j < a.cols(); ++j) {
    ASSERT_EQ(a.Bits(a_row, j), b.Bits(b_row, j)) << "rows " << a_row << " and " << b_row << ", column " << j;
  }
}

// The strongest statement first: on every instruction set, the bits that the header promises.
TEST(PackedWeightsTest, HasTheBitsOfItsDefinitionOnEveryInstructionSet) {
  ThreadPool threads(2);
  std::mt19937 random(1);
  for (const bool symmetric : {true, false}) {
    for (const int bits : {1, 2, 3, 4, 5, 6, 8}) {
      for (const int group_size : {32, 64, 128}) {
        const auto n = static_cast<int64_t>(1 + random() % 70);
        const int64_t k = group_size * static_cast<int64_t>(1 + random() % 7);
        const int64_t m = std::array<int64_t, 7>{1, 2, 3, 5, 16, 33, 50}[random() % 7];
        const DType type = kTypes[random() % 3];
        const QuantizedMatrix w(n, k, bits, group_size, type, type, random, symmetric);
        const QuantizedRows part = {w.View(), n};
        const PackedWeights packed({&part, 1}, k, threads);
        ASSERT_EQ(packed.n(), n);
        ASSERT_EQ(packed.has_biases(), !symmetric);
        ASSERT_EQ(packed.zero(), symmetric ? 1 << (bits - 1) : 0);
        Matrix x(m, k, kTypes[random() % 3], 1);
        x.Fill(random);
        const Reference reference(x, w, group_size, packed.zero());
        Matrix expected(m, n, DType::kFloat32);
        for (int64_t i = 0; i < m; ++i) {
          for (int64_t j = 0; j < n; ++j) expected.Set(i, j, reference.At(i, j, !symmetric));
        }
        for (const DotIsa isa : AvailableDotIsas()) {
          SCOPED_TRACE(Describe(isa, bits, group_size, m, n, k) + (symmetric ? "" : " with biases"));
          Matrix y(m, n, DType::kFloat32, 3);
          PackedLinear(isa, m, x.View(), packed, y.MutableView(), {}, threads);
          for (int64_t row = 0; row < m; ++row) ExpectSameBits(y, row, expected, row);
          EXPECT_TRUE(y.GuardsIntact());
          if (HasFailure()) return;
        }
      }
    }
  }
}

// Long rows are multiplied in parts, and many of them in slabs.
TEST(PackedWeightsTest, HasTheBitsOfItsDefinitionForManyLongRows) {
  constexpr int64_t kM = 230;
  constexpr int64_t kN = 2;
  ThreadPool threads(2);
  std::mt19937 random(5);
  for (const int bits : {4, 8}) {
    for (const int group_size : {32, 128}) {
      const bool symmetric = (bits == 4) == (group_size == 32);
      const int64_t k = group_size == 32 ? 1632 : 1664;
      const QuantizedMatrix w(kN, k, bits, group_size, DType::kBFloat16, DType::kBFloat16, random, symmetric);
      const QuantizedRows part = {w.View(), kN};
      const PackedWeights packed({&part, 1}, k, threads);
      Matrix x(kM, k, DType::kBFloat16);
      x.Fill(random);
      const Reference reference(x, w, group_size, packed.zero());
      Matrix expected(kM, kN, DType::kFloat32);
      for (int64_t i = 0; i < kM; ++i) {
        for (int64_t j = 0; j < kN; ++j) expected.Set(i, j, reference.At(i, j, !symmetric));
      }
      for (const DotIsa isa : AvailableDotIsas()) {
        SCOPED_TRACE(Describe(isa, bits, group_size, kM, kN, k));
        Matrix y(kM, kN, DType::kFloat32);
        PackedLinear(isa, kM, x.View(), packed, y.MutableView(), {}, threads);
        for (int64_t row = 0; row < kM; ++row) ExpectSameBits(y, row, expected, row);
        if (HasFailure()) return;
      }
    }
  }
}

// The quantization of rows is Highway's; it must agree with itself on all targets.
TEST(PackedWeightsTest, TheActivationsCodesAreTheSameOnEveryTarget) {
  ThreadPool threads(1);
  std::mt19937 random(2);
  const QuantizedMatrix w(17, 96, 4, 32, DType::kBFloat16, DType::kBFloat16, random, false);
  const QuantizedRows part = {w.View(), 17};
  const PackedWeights packed({&part, 1}, 96, threads);
  Matrix x(40, 96, DType::kFloat32);
  x.Fill(random);
  // Codes that lie half way between two integers, with both signs.
  x.Set(0, 0, 2039.0);
  for (int64_t k = 1; k < 64; ++k) x.Set(0, k, (k % 2 == 0 ? -1.0 : 1.0) * (static_cast<double>(k) + 0.5));
  Matrix first(40, 17, DType::kFloat32);
  bool have_first = false;
  ForEachTarget([&](const std::string& target) {
    SCOPED_TRACE(target);
    Matrix y(40, 17, DType::kFloat32);
    PackedLinear(DotIsa::kPortable, 40, x.View(), packed, y.MutableView(), {}, threads);
    if (!have_first) first = y;
    have_first = true;
    for (int64_t row = 0; row < 40; ++row) ExpectSameBits(y, row, first, row);
  });
}

TEST(PackedWeightsTest, ARowHasTheSameBitsInEveryBatchOnAnyNumberOfThreads) {
  constexpr int64_t kMost = 70;
  std::mt19937 random(3);
  ThreadPool one(1);
  for (const int bits : {4, 8}) {
    const QuantizedMatrix w(90, 160, bits, 32, DType::kBFloat16, DType::kBFloat16, random, bits == 4);
    const QuantizedRows part = {w.View(), 90};
    const PackedWeights packed({&part, 1}, 160, one);
    Matrix x(kMost, 160, DType::kBFloat16);
    x.Fill(random);
    for (const DotIsa isa : AvailableDotIsas()) {
      Matrix reference(kMost, 90, DType::kFloat32);
      for (int64_t row = 0; row < kMost; ++row) {
        PackedLinear(isa, 1, x.View(row), packed, reference.MutableView(row), {}, one);
      }
      for (const size_t thread_count : {1, 2, 3}) {
        ThreadPool threads(thread_count);
        for (const int64_t rows : {1, 2, 3, 4, 5, 8, 15, 16, 17, 31, 32, 33, 63, 64, 70}) {
          SCOPED_TRACE(Describe(isa, bits, 32, rows, 90, 160));
          Matrix y(rows, 90, DType::kFloat32);
          PackedLinear(isa, rows, x.View(kMost - rows), packed, y.MutableView(), {}, threads);
          for (int64_t row = 0; row < rows; ++row) ExpectSameBits(y, row, reference, kMost - rows + row);
        }
      }
    }
  }
}

// Against the exact mode: a unit's codes are off by half a step of 1 / 2039 of its largest magnitude at most.
TEST(PackedWeightsTest, IsWithinTheQuantizationErrorOfTheExactMode) {
  ThreadPool threads(2);
  std::mt19937 random(4);
  constexpr int64_t kM = 6;
  constexpr int64_t kN = 37;
  constexpr int64_t kK = 576;
  const QuantizedMatrix w(kN, kK, 4, 32, DType::kBFloat16, DType::kBFloat16, random, false);
  const QuantizedRows part = {w.View(), kN};
  const PackedWeights packed({&part, 1}, kK, threads);
  Matrix x(kM, kK, DType::kBFloat16);
  x.Fill(random);
  x.Set(2, 70, 300.0);  // an outlier spoils its own unit alone
  Matrix bias(1, kN, DType::kBFloat16);
  bias.Fill(random);
  Epilogue epilogue;
  epilogue.addend = bias.View();
  epilogue.addend.row_stride = 0;
  Matrix exact(kM, kN, DType::kFloat32);
  QuantizedLinear(kM, kN, kK, x.View(), w.View(), exact.MutableView(), epilogue, threads);
  Matrix fast(kM, kN, DType::kFloat32);
  PackedLinear(kM, x.View(), packed, fast.MutableView(), epilogue, threads);
  double largest_error = 0;
  for (int64_t m = 0; m < kM; ++m) {
    for (int64_t n = 0; n < kN; ++n) {
      double bound = 0;
      double magnitude = 0;
      for (int64_t unit = 0; unit < kK; unit += 64) {
        double largest = 0;
        double weights = 0;
        for (int64_t k = unit; k < unit + 64; ++k) {
          largest = std::max(largest, std::fabs(x.Get(m, k)));
          weights += std::fabs(w.Get(n, k));
          magnitude += std::fabs(x.Get(m, k) * w.Get(n, k));
        }
        bound += 0.5001 * largest / 2039.0 * weights;
      }
      bound += magnitude * static_cast<double>(kK) * 0x1p-24;
      const double error = std::fabs(fast.Get(m, n) - exact.Get(m, n));
      ASSERT_LE(error, bound) << "row " << m << " column " << n;
      largest_error = std::max(largest_error, error);
    }
  }
  EXPECT_GT(largest_error, 0.0);  // it is another mode
}

TEST(PackedWeightsTest, PartsAreRowsOfOneProduct) {
  ThreadPool threads(2);
  std::mt19937 random(5);
  constexpr int64_t kK = 128;
  const std::array<int64_t, 3> rows = {19, 5, 40};
  std::vector<QuantizedMatrix> matrices;
  std::vector<QuantizedRows> parts;
  // Types differ, and one part has biases that are no multiple of its scales: the whole keeps biases, in fp32.
  for (size_t i = 0; i < rows.size(); ++i) {
    matrices.emplace_back(rows[i], kK, 4, 64, kTypes[i], kTypes[i], random, i != 1);
  }
  for (size_t i = 0; i < rows.size(); ++i) parts.push_back({matrices[i].View(), rows[i]});
  const PackedWeights together(parts, kK, threads);
  EXPECT_TRUE(together.has_biases());
  EXPECT_EQ(together.scale_type(), DType::kFloat32);
  Matrix x(3, kK, DType::kFloat16);
  x.Fill(random);
  Matrix y(3, together.n(), DType::kFloat32);
  PackedLinear(3, x.View(), together, y.MutableView(), {}, threads);
  int64_t first = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Reference reference(x, matrices[i], 64, 0);
    for (int64_t m = 0; m < 3; ++m) {
      for (int64_t n = 0; n < rows[i]; ++n) ASSERT_EQ(y.Get(m, first + n), reference.At(m, n, true));
    }
    first += rows[i];
  }
}

TEST(PackedWeightsTest, KeepsNoBiasesWhereZeroTimesScaleSaysThem) {
  ThreadPool threads(1);
  std::mt19937 random(6);
  const QuantizedMatrix symmetric(32, 64, 4, 32, DType::kBFloat16, DType::kBFloat16, random, true);
  const QuantizedMatrix other(32, 64, 4, 32, DType::kBFloat16, DType::kBFloat16, random, false);
  const QuantizedRows a = {symmetric.View(), 32};
  const QuantizedRows b = {other.View(), 32};
  EXPECT_EQ(PackedWeights({&a, 1}, 64, threads).bytes(), 32U * 64 / 2 + 32 * 2 * 2);
  EXPECT_EQ(PackedWeights({&b, 1}, 64, threads).bytes(), 32U * 64 / 2 + 32 * 2 * 4);
}

TEST(PackedWeightsTest, AGatedProductHasTheBitsOfItsTwoProducts) {
  std::mt19937 random(11);
  ThreadPool threads(2);
  for (const int64_t n : {16, 32, 48, 176}) {
    for (const int bits : {2, 4, 8}) {
      const int64_t k = 96;
      const QuantizedMatrix gate(n, k, bits, 32, DType::kBFloat16, DType::kBFloat16, random, bits == 4);
      const QuantizedMatrix up(n, k, bits, 32, DType::kBFloat16, DType::kBFloat16, random, bits == 4);
      const std::array<QuantizedRows, 2> parts = {{{gate.View(), n}, {up.View(), n}}};
      const PackedWeights apart(parts, k, threads);
      const PackedWeights in_turn(parts, k, threads, PartOrder::kBlocksInTurn);
      ASSERT_EQ(in_turn.n(), 2 * n);
      for (const int64_t m : {1, 2, 3, 7, 16, 33, 150}) {
        Matrix x(m, k, DType::kFloat32);
        x.Fill(random);
        for (const Activation activation : {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh}) {
          for (const DotIsa isa : AvailableDotIsas()) {
            SCOPED_TRACE(Describe(isa, bits, 32, m, n, k));
            std::vector<float> products(static_cast<size_t>(m * 2 * n));
            PackedLinear(isa, m, x.View(), apart, {products.data(), DType::kFloat32, 2 * n}, {}, threads);
            Matrix expected(m, n, DType::kFloat32);
            const MutableMatrixView out = expected.MutableView();
            const Block gates = {products.data(), 2 * n, 1, 0, n};
            const Block ups = {products.data() + n, 2 * n, 1, 0, n};
            Gate(m, activation, gates, ups, DType::kFloat32, {static_cast<float*>(out.data), out.row_stride, 1, 0, n},
                 threads);
            Matrix y(m, n, DType::kFloat32, 5);
            PackedGatedLinear(isa, m, x.View(), in_turn, activation, y.MutableView(), threads);
            for (int64_t row = 0; row < m; ++row) ExpectSameBits(y, row, expected, row);
            EXPECT_TRUE(y.GuardsIntact());
            if (HasFailure()) return;
          }
        }
      }
    }
  }
}

TEST(PackedWeightsTest, InfinityAndNanStayInTheirRow) {
  ThreadPool threads(2);
  std::mt19937 random(7);
  const QuantizedMatrix w(20, 128, 4, 32, DType::kFloat32, DType::kFloat32, random, true);
  const QuantizedRows part = {w.View(), 20};
  const PackedWeights packed({&part, 1}, 128, threads);
  Matrix x(20, 128, DType::kFloat32);
  x.Fill(random);
  Matrix clean(20, 20, DType::kFloat32);
  PackedLinear(20, x.View(), packed, clean.MutableView(), {}, threads);
  x.Set(3, 100, std::numeric_limits<double>::infinity());
  x.Set(7, 0, std::numeric_limits<double>::quiet_NaN());
  for (int64_t k = 0; k < 128; ++k) x.Set(11, k, k % 3 == 0 ? 1e-38 : 0.0);
  for (const DotIsa isa : AvailableDotIsas()) {
    SCOPED_TRACE(DotIsaName(isa));
    Matrix y(20, 20, DType::kFloat32);
    PackedLinear(isa, 20, x.View(), packed, y.MutableView(), {}, threads);
    for (int64_t row = 0; row < 20; ++row) {
      if (row == 3 || row == 7) {
        for (int64_t j = 0; j < 20; ++j) EXPECT_TRUE(std::isnan(y.Get(row, j)));
      } else if (row == 11) {
        for (int64_t j = 0; j < 20; ++j) EXPECT_EQ(y.Get(row, j), 0.0);
      } else {
        ExpectSameBits(y, row, clean, row);
      }
    }
  }
}

}  // namespace
}  // namespace offgraph::kernels
