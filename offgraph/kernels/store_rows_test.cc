#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "offgraph/kernels/attention.h"
#include "offgraph/kernels/attention_test_util.h"

namespace offgraph::kernels::test {
namespace {

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

AttentionSegment WriteSegment(const std::vector<RowRun>& runs, int64_t tokens, int64_t position) {
  return {.token_offset = 0, .tokens = tokens, .position = position, .writes = runs, .reads = {}};
}

void ExpectRow(const Tensor& stored, int64_t row, const Tensor& given, int64_t token, const std::string& name) {
  for (int64_t h = 0; h < given.n1(); ++h) {
    for (int64_t d = 0; d < given.n2(); ++d) {
      double expected = 0;
      std::vector<uint8_t> bits(4);
      ToBits(stored.type(), given.Get(token, h, d), bits.data());
      expected = FromBits(stored.type(), bits.data());
      ASSERT_EQ(stored.Get(row, h, d), expected) << name << " row " << row << " head " << h << " element " << d;
    }
  }
}

TEST(StoreRowsTest, EveryRowOfEveryLengthIsWritten) {
  std::mt19937 random(1);
  ThreadPool threads(2);
  const Shape shape{.n_heads = 3, .n_kv_heads = 3, .k_dim = 20, .v_dim = 33, .k_type = DType::kFloat16};
  const Sequence sequence(shape, 300, random);
  for (int64_t length = 1; length <= 300; ++length) {
    Pool pool(shape, length + 1);
    // In two runs whose rows are swapped, so that order matters.
    const int64_t half = length / 2;
    std::vector<RowRun> runs;
    if (half > 0) runs.push_back({.row = length - half, .count = half, .position = 0});
    runs.push_back({.row = 0, .count = length - half, .position = half});
    ASSERT_FALSE(
        StoreRows(pool.View(), WriteSegment(runs, length, 0), ViewFrom(sequence.k, 0), ViewFrom(sequence.v, 0), threads)
            .found);
    for (int64_t t = 0; t < length; ++t) {
      const int64_t row = t < half ? length - half + t : t - half;
      ExpectRow(pool.k(), row, sequence.k, t, "K");
      ExpectRow(pool.v(), row, sequence.v, t, "V");
    }
    EXPECT_TRUE(std::isnan(pool.k().Get(length, 0, 0))) << "a row beyond the last one was written";
    EXPECT_TRUE(std::isnan(pool.v().Get(length, 0, 0)));
  }
}

// All fp16 and bf16 values, and fp32 values at and beside every place where rounding turns.
std::vector<double> InterestingValues() {
  std::vector<double> values;
  for (const DType type : {DType::kFloat16, DType::kBFloat16}) {
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      const auto narrow = static_cast<uint16_t>(bits);
      const auto wide = static_cast<float>(FromBits(type, &narrow));
      if (!std::isfinite(wide)) continue;
      const auto half = static_cast<float>(HalfUlp(type, wide));
      for (const float center : {wide, wide + half}) {
        values.push_back(center);
        values.push_back(std::nextafter(center, std::numeric_limits<float>::infinity()));
        values.push_back(std::nextafter(center, -std::numeric_limits<float>::infinity()));
      }
    }
  }
  return values;
}

TEST(StoreRowsTest, RoundsToNearestEvenOnEveryTarget) {
  const std::vector<double> all = InterestingValues();
  ThreadPool threads(1);
  for (const DType in : kTypes) {
    for (const DType stored : kTypes) {
      const double limit = stored == DType::kFloat16 ? 65520.0 : stored == DType::kBFloat16 ? 0x1.FFp127 : HUGE_VAL;
      const Shape shape{.n_kv_heads = 1, .k_dim = 997, .v_dim = 1, .in_type = in, .k_type = stored};
      const auto rows = static_cast<int64_t>((all.size() + 996) / 997);
      Tensor k(rows, 1, 997, in);
      Tensor v(rows, 1, 1, in);
      for (int64_t i = 0; i < rows * 997; ++i) {
        double value = static_cast<size_t>(i) < all.size() ? all[static_cast<size_t>(i)] : 0.0;
        ToBits(in, value, k.At(i));
        value = FromBits(in, k.At(i));
        if (!(std::abs(value) < limit) || !std::isfinite(value)) ToBits(in, 0, k.At(i));
      }
      for (int64_t i = 0; i < rows; ++i) v.Set(i, 0, 0, 0);
      const std::vector<RowRun> runs = {{.row = 0, .count = rows, .position = 0}};
      ForEachTarget([&](const std::string& target) {
        Pool pool(shape, rows);
        ASSERT_FALSE(
            StoreRows(pool.View(), WriteSegment(runs, rows, 0), ViewFrom(k, 0), ViewFrom(v, 0), threads).found);
        for (int64_t r = 0; r < rows; ++r) ExpectRow(pool.k(), r, k, r, target);
      });
    }
  }
}

TEST(StoreRowsTest, InfinityAndNanStayWhatTheyAre) {
  ThreadPool threads(1);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const DType in : kTypes) {
    for (const DType stored : kTypes) {
      const Shape shape{.n_kv_heads = 1, .k_dim = 5, .v_dim = 5, .in_type = in, .k_type = stored, .v_type = stored};
      Tensor k(1, 1, 5, in);
      for (int64_t d = 0; d < 5; ++d) k.Set(0, 0, d, 1);
      k.Set(0, 0, 1, kInfinity);
      k.Set(0, 0, 2, -kInfinity);
      k.Set(0, 0, 4, std::numeric_limits<double>::quiet_NaN());
      const std::vector<RowRun> runs = {{.row = 0, .count = 1, .position = 0}};
      ForEachTarget([&](const std::string& target) {
        Pool pool(shape, 1);
        EXPECT_FALSE(StoreRows(pool.View(), WriteSegment(runs, 1, 0), ViewFrom(k, 0), ViewFrom(k, 0), threads).found);
        EXPECT_EQ(pool.k().Get(0, 0, 1), kInfinity) << target;
        EXPECT_EQ(pool.v().Get(0, 0, 2), -kInfinity) << target;
        EXPECT_TRUE(std::isnan(pool.v().Get(0, 0, 4))) << target;
      });
    }
  }
}

TEST(StoreRowsTest, ReportsTheFirstValueThatDoesNotFit) {
  std::mt19937 random(9);
  ThreadPool threads(3);
  for (const DType in : {DType::kFloat32, DType::kBFloat16}) {
    const Shape shape{
        .n_kv_heads = 3, .k_dim = 40, .v_dim = 50, .in_type = in, .k_type = DType::kFloat16, .v_type = DType::kFloat16};
    Sequence sequence(shape, 500, random);
    sequence.k.Set(321, 1, 39, 1e5);
    sequence.v.Set(123, 2, 49, -7e4);
    sequence.v.Set(123, 2, 48, -std::numeric_limits<double>::infinity());
    sequence.k.Set(499, 0, 0, 1e30);
    const std::vector<RowRun> runs = {{.row = 0, .count = 500, .position = 1000}};
    ForEachTarget([&](const std::string& target) {
      Pool pool(shape, 500);
      const StoreFault fault = StoreRows(pool.View(), WriteSegment(runs, 500, 1000), ViewFrom(sequence.k, 0),
                                         ViewFrom(sequence.v, 0), threads);
      EXPECT_TRUE(fault.found) << target;
      EXPECT_TRUE(fault.in_v) << target;
      EXPECT_EQ(fault.position, 1123) << target;
      EXPECT_EQ(fault.head, 2) << target;
      EXPECT_EQ(fault.value, static_cast<float>(sequence.v.Get(123, 2, 49))) << target;
    });
  }
}

TEST(StoreRowsTest, GreatestValuesOfFp16Fit) {
  ThreadPool threads(1);
  const Shape shape{.n_kv_heads = 1, .k_dim = 1, .v_dim = 1, .k_type = DType::kFloat16, .v_type = DType::kBFloat16};
  const std::vector<RowRun> runs = {{.row = 0, .count = 1, .position = 0}};
  Tensor k(1, 1, 1, DType::kFloat32);
  Tensor v(1, 1, 1, DType::kFloat32);
  ForEachTarget([&](const std::string& target) {
    Pool pool(shape, 1);
    const auto faulty = [&](double k_value, double v_value) {
      k.Set(0, 0, 0, k_value);
      v.Set(0, 0, 0, v_value);
      return StoreRows(pool.View(), WriteSegment(runs, 1, 0), ViewFrom(k, 0), ViewFrom(v, 0), threads).found;
    };
    EXPECT_FALSE(faulty(65519.996, 3.3961773e38)) << target;
    EXPECT_EQ(pool.k().Get(0, 0, 0), 65504) << target;
    EXPECT_TRUE(faulty(65520, 0)) << target;
    EXPECT_TRUE(faulty(0, 3.3961776e38)) << target;
  });
}

}  // namespace
}  // namespace offgraph::kernels::test
