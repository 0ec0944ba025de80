#include <gtest/gtest.h>
#include <mlx/ops.h>
#include <mlx/random.h>
#include <mlx/transforms.h>

#include <array>
#include <atomic>
#include <cstring>
#include <vector>

#include "offgraph/kernels/thread_pool.h"
#include "offgraph/program/region.h"

namespace offgraph::program {
namespace {

namespace mx = mlx::core;

constexpr int kTableRows = 300;
constexpr int kColumns = 64;

// Where nothing lies in place: zeros in the array, and a way to read the values.
TableMatrix Elsewhere(const mx::array& values, std::atomic<int>* reads) {
  mx::array zeros = mx::zeros(values.shape(), values.dtype());
  mx::eval(zeros);
  return {zeros, [zeros, values, reads](std::span<const std::byte> part, std::byte* to) {
            std::memcpy(to, values.data<std::byte>() + (part.data() - zeros.data<std::byte>()), part.size());
            ++*reads;
          }};
}

std::vector<float> LookUp(const bytes::RegionLookup& lookup, const std::vector<int64_t>& index) {
  std::vector<float> out(index.size() * kColumns);
  lookup(static_cast<int64_t>(index.size()), index.data(), {out.data(), kColumns, 1, kColumns, kColumns},
         kernels::ThreadPool::Default());
  return out;
}

std::vector<int64_t> Indices(size_t count) {
  std::vector<int64_t> index(count);
  for (size_t i = 0; i < count; ++i) index[i] = static_cast<int64_t>(i * 197 % kTableRows);
  return index;
}

class RegionLookupTest : public ::testing::TestWithParam<size_t> {};

TEST_P(RegionLookupTest, RowsOfADenseTableAreTheSameInPlaceAndRead) {
  mx::array table = mx::random::normal({kTableRows, kColumns}, mx::bfloat16, 0.0F, 1.0F, mx::random::key(1));
  mx::eval(table);
  std::atomic<int> reads = 0;
  const std::vector<int64_t> index = Indices(GetParam());
  const std::vector<float> in_place = LookUp(DenseLookup({table, nullptr}), index);
  EXPECT_EQ(LookUp(DenseLookup(Elsewhere(table, &reads)), index), in_place);
  EXPECT_EQ(static_cast<size_t>(reads), index.size());
  EXPECT_NE(in_place, std::vector<float>(in_place.size()));
}

TEST_P(RegionLookupTest, RowsOfAQuantizedTableAreTheSameInPlaceAndRead) {
  const mx::array table = mx::random::normal({kTableRows, kColumns}, mx::float32, 0.0F, 1.0F, mx::random::key(2));
  std::vector<mx::array> parts = mx::quantize(table, 32, 4);
  mx::eval(parts);
  std::atomic<int> reads = 0;
  const std::vector<int64_t> index = Indices(GetParam());
  const auto look_up = [&](std::array<TableMatrix, 3> of) {
    return LookUp(QuantizedLookup(std::move(of), 4, 32, kernels::DType::kFloat32), index);
  };
  const TableMatrix biases = {parts[2], nullptr};  // computed: in memory whatever the others are
  const std::vector<float> in_place = look_up({TableMatrix{parts[0], nullptr}, TableMatrix{parts[1], nullptr}, biases});
  EXPECT_EQ(look_up({Elsewhere(parts[0], &reads), Elsewhere(parts[1], &reads), biases}), in_place);
  EXPECT_EQ(static_cast<size_t>(reads), 2 * index.size());
  EXPECT_NE(in_place, std::vector<float>(in_place.size()));
}

// Around the number of rows that are copied at once.
INSTANTIATE_TEST_SUITE_P(Rows, RegionLookupTest, ::testing::Values(1, 63, 64, 65, 200));

}  // namespace
}  // namespace offgraph::program
