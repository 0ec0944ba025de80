#include "offgraph/kernels/weight_arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace offgraph::kernels {
namespace {

TEST(WeightArenaTest, AllocationsAreAlignedZeroAndApart) {
  WeightArena arena(1000);
  std::vector<std::pair<std::shared_ptr<uint8_t[]>, size_t>> made;
  for (const size_t count : {size_t{1}, size_t{0}, size_t{64}, size_t{65}, size_t{700}, size_t{500}, size_t{5000}}) {
    made.emplace_back(arena.Allocate(count), count);
    uint8_t* bytes = made.back().first.get();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes) % 64, 0U);
    EXPECT_TRUE(std::all_of(bytes, bytes + count, [](uint8_t byte) { return byte == 0; })) << count;
    std::memset(bytes, static_cast<int>(made.size()), count);
  }
  for (size_t i = 0; i < made.size(); ++i) {
    const uint8_t* bytes = made[i].first.get();
    EXPECT_TRUE(std::all_of(bytes, bytes + made[i].second, [&](uint8_t byte) { return byte == i + 1; })) << i;
  }
}

TEST(WeightArenaTest, NeighboursShareAPiece) {
  WeightArena arena(4096);
  const auto first = arena.Allocate(100);
  const auto second = arena.Allocate(100);
  EXPECT_EQ(second.get() - first.get(), 128);
  WeightArena single(0);
  const auto alone = single.Allocate(100);
  single.Allocate(100);
  EXPECT_EQ(alone.use_count(), 1) << "the arena has let its piece go";
}

TEST(WeightArenaTest, MemoryOutlivesTheArena) {
  std::shared_ptr<uint8_t[]> kept;
  {
    WeightArena arena;
    arena.Allocate(10);
    kept = arena.Allocate(size_t{3} << 20);
  }
  std::memset(kept.get(), 7, size_t{3} << 20);
  EXPECT_EQ(kept[(size_t{3} << 20) - 1], 7);
}

}  // namespace
}  // namespace offgraph::kernels
