// The mapping from positions to rows, case by case. Long random histories are in sequence_cache_model_test.cc.
#include "offgraph/cache/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "offgraph/cache/error.h"

namespace offgraph::cache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

CacheConfig Config(int64_t capacity, LayerConfig layer, int64_t max_step, int64_t reserve = 0) {
  CacheConfig config;
  config.capacity = capacity;
  config.n_layers = 1;
  config.layers = {layer};
  config.max_step = max_step;
  config.rewind_reserve = reserve;
  return config;
}

LayoutPolicy Make(int64_t capacity, LayerConfig layer, int64_t max_step, int64_t reserve = 0) {
  return LayoutPolicy(Config(capacity, layer, max_step, reserve), 0);
}

SegmentPlan Plan(const LayoutPolicy& layout, int64_t position, int64_t tokens) {
  LayerPlan plan;
  layout.AddSegment(0, 0, position, tokens, plan);
  return plan.segments.at(0);
}

TEST(LayoutTest, FlatIsOneRunFromTheFirstPosition) {
  const LayoutPolicy layout = Make(100, {}, 4);
  EXPECT_FALSE(layout.is_ring());
  EXPECT_EQ(layout.rows(), 100);
  EXPECT_EQ(layout.largest_step(), 100) << "max_step is for rings";
  const SegmentPlan plan = Plan(layout, 60, 40);
  EXPECT_THAT(plan.writes, ElementsAre(cache::Run{60, 40, 60}));
  EXPECT_THAT(plan.reads, ElementsAre(cache::Run{0, 100, 0}));
}

TEST(LayoutTest, RingHasRoomForTheWindowOfEveryQueryOfTheLongestStep) {
  EXPECT_EQ(Make(100, {.window = 8}, 1).rows(), 8);
  EXPECT_EQ(Make(100, {.window = 8}, 5).rows(), 12);
  EXPECT_EQ(Make(100, {.window = 8}, 5, 3).rows(), 15);
  EXPECT_EQ(Make(100, {.window = 1}, 1).rows(), 1);
  EXPECT_EQ(Make(100, {.window = 8, .sinks = 4}, 5, 3).rows(), 19);
  EXPECT_EQ(Make(100, {.window = 8}, 5).largest_step(), 5);
}

TEST(LayoutTest, RingThatCoversTheCapacityIsFlat) {
  for (const LayerConfig layer : {LayerConfig{.window = 6}, LayerConfig{.window = 4, .sinks = 2},
                                  LayerConfig{.window = 1, .sinks = 50}, LayerConfig{.window = 50}}) {
    const LayoutPolicy layout = Make(10, layer, 5);
    EXPECT_FALSE(layout.is_ring()) << layer.window << " " << layer.sinks;
    EXPECT_EQ(layout.rows(), 10);
    EXPECT_EQ(layout.largest_step(), 10);
    EXPECT_EQ(layout.KeptFrom(0, 10), 0);
    EXPECT_THAT(Plan(layout, 8, 2).writes, ElementsAre(cache::Run{8, 2, 8}));
  }
  EXPECT_TRUE(Make(11, {.window = 6}, 5).is_ring());
}

TEST(LayoutTest, FlatWindowReadsOnlyWhatItSees) {
  const LayoutPolicy layout = Make(100, {.window = 90, .sinks = 2}, 30);
  ASSERT_FALSE(layout.is_ring());
  EXPECT_THAT(Plan(layout, 95, 3).reads, ElementsAre(cache::Run{0, 2, 0}, cache::Run{6, 92, 6}));
  EXPECT_THAT(Plan(layout, 91, 3).reads, ElementsAre(cache::Run{0, 94, 0})) << "window and sinks touch";
}

TEST(LayoutTest, RingBeforeItWrapsLiesLikeAFlatOne) {
  const LayoutPolicy layout = Make(100, {.window = 4}, 3);  // 6 rows
  EXPECT_THAT(Plan(layout, 0, 3).reads, ElementsAre(cache::Run{0, 3, 0}));
  const SegmentPlan plan = Plan(layout, 3, 3);
  EXPECT_THAT(plan.writes, ElementsAre(cache::Run{3, 3, 3}));
  EXPECT_THAT(plan.reads, ElementsAre(cache::Run{0, 6, 0}));
}

TEST(LayoutTest, WrappedRingReadsOldestFirstInTwoRuns) {
  const LayoutPolicy layout = Make(100, {.window = 4}, 3);  // 6 rows
  const SegmentPlan plan = Plan(layout, 10, 3);             // rows 4, 5, 0
  EXPECT_THAT(plan.writes, ElementsAre(cache::Run{4, 2, 10}, cache::Run{0, 1, 12}));
  EXPECT_THAT(plan.reads, ElementsAre(cache::Run{1, 5, 7}, cache::Run{0, 1, 12})) << "every row of the ring, once";
  EXPECT_THAT(Plan(layout, 12, 1).reads, ElementsAre(cache::Run{3, 3, 9}, cache::Run{0, 1, 12}));
  EXPECT_THAT(Plan(layout, 15, 3).reads, ElementsAre(cache::Run{0, 6, 12})) << "aligned: one run";
}

TEST(LayoutTest, SinksHaveRowsOfTheirOwnBeforeTheRing) {
  const LayoutPolicy layout = Make(100, {.window = 3, .sinks = 2}, 2);  // rows: 2 sinks, then 4
  EXPECT_EQ(layout.ring_rows(), 4);
  EXPECT_THAT(Plan(layout, 0, 1).reads, ElementsAre(cache::Run{0, 1, 0}));
  EXPECT_THAT(Plan(layout, 1, 2).writes, ElementsAre(cache::Run{1, 2, 1})) << "from the sinks into the ring";
  EXPECT_THAT(Plan(layout, 4, 2).reads, ElementsAre(cache::Run{0, 6, 0})) << "sinks and window touch";
  const SegmentPlan plan = Plan(layout, 9, 2);  // rows 5, 2
  EXPECT_THAT(plan.writes, ElementsAre(cache::Run{5, 1, 9}, cache::Run{2, 1, 10}));
  EXPECT_THAT(plan.reads, ElementsAre(cache::Run{0, 2, 0}, cache::Run{3, 3, 7}, cache::Run{2, 1, 10}));
}

TEST(LayoutTest, WindowOfOneReadsItsOwnTokensOnly) {
  const LayoutPolicy layout = Make(100, {.window = 1}, 1);
  EXPECT_THAT(Plan(layout, 42, 1).reads, ElementsAre(cache::Run{0, 1, 42}));
  EXPECT_EQ(layout.RewindBound(99), 0) << "the next query needs nothing";
  EXPECT_TRUE(layout.CanGoOnAt(5, 99));
}

TEST(LayoutTest, RowsNeededGrowWithTheSequenceUpToTheRing) {
  const LayoutPolicy layout = Make(100, {.window = 3, .sinks = 2}, 2);
  const auto needed = [&](int64_t position, int64_t tokens) {
    LayerPlan plan;
    layout.AddSegment(0, 0, position, tokens, plan);
    return plan.rows_needed;
  };
  EXPECT_EQ(needed(0, 1), 1);
  EXPECT_EQ(needed(0, 2), 2);
  EXPECT_EQ(needed(3, 2), 5);
  EXPECT_EQ(needed(5, 1), 6);
  EXPECT_EQ(needed(6, 1), 6);
  EXPECT_EQ(needed(95, 2), 6);
}

TEST(LayoutTest, RewindBoundFollowsFromWhatIsKept) {
  const LayoutPolicy layout = Make(100, {.window = 4, .sinks = 2}, 3);  // 2 sinks, then 6
  EXPECT_EQ(layout.KeptFrom(0, 6), 0);
  EXPECT_EQ(layout.KeptFrom(0, 20), 14);
  EXPECT_EQ(layout.KeptFrom(14, 18), 14) << "writing less far brings nothing back";
  EXPECT_EQ(layout.RewindBound(14), 17);
  EXPECT_TRUE(layout.CanGoOnAt(17, 14)) << "needs 14, 15, 16";
  EXPECT_FALSE(layout.CanGoOnAt(16, 14)) << "needs 13, which is gone";
  EXPECT_FALSE(layout.CanGoOnAt(3, 14)) << "needs 2, which is gone";
  EXPECT_TRUE(layout.CanGoOnAt(2, 14)) << "needs sinks only";
  EXPECT_EQ(layout.RewindBound(2), 0) << "nothing but sinks lies before 2";
}

TEST(LayoutTest, SizesNearTheLargestInteger) {
  const LayoutPolicy flat = Make(kMax, {}, 1);
  EXPECT_THAT(Plan(flat, kMax - 5, 5).reads, ElementsAre(cache::Run{0, kMax, 0}));
  EXPECT_THAT(Plan(flat, 0, kMax).writes, ElementsAre(cache::Run{0, kMax, 0}));

  const LayoutPolicy ring = Make(kMax, {.window = 4, .sinks = 1}, 3);
  const int64_t position = kMax - 3;
  const int64_t row = 1 + (position - 1) % 6;
  EXPECT_EQ(Plan(ring, position, 3).writes.front(), (cache::Run{row, std::min<int64_t>(3, 7 - row), position}));
  EXPECT_EQ(ring.RewindBound(ring.KeptFrom(0, kMax)), kMax - 3);

  const LayoutPolicy wide = Make(kMax, {.window = kMax - 2, .sinks = kMax}, 3);  // the sum is kMax exactly
  EXPECT_FALSE(wide.is_ring());
  EXPECT_THAT(Plan(wide, kMax - 2, 2).reads, ElementsAre(cache::Run{0, kMax, 0}));
  EXPECT_TRUE(Make(kMax, {.window = kMax - 3, .sinks = 0}, 3).is_ring());
}

TEST(LayoutTest, RefusesAnEntryThatMakesNoSense) {
  struct Case {
    CacheConfig config;
    std::vector<std::string> named;
  };
  const Case cases[] = {
      {Config(8, {.window = -1}, 1), {"layers[0].window is -1", "at least 1, or 0"}},
      {Config(8, {.window = std::numeric_limits<int64_t>::min()}, 1), {"window is -9223372036854775808"}},
      {Config(8, {.window = 2, .sinks = -3}, 1), {"layers[0].sinks is -3", "at least 0"}},
      {Config(8, {.window = 0, .sinks = 4}, 1), {"layers[0].sinks is 4", "window is 0", "no sinks"}},
      {Config(8, {.window = kMax}, 2), {"layers[0]", "overflows", "window 9223372036854775807", "max_step 2"}},
      {Config(8, {.window = 2}, kMax), {"overflows", "max_step 9223372036854775807", "capacity, 8"}},
      {Config(8, {.window = 2}, 2, kMax - 2), {"overflows", "rewind_reserve 9223372036854775805"}},
  };
  for (const Case& c : cases) {
    try {
      const LayoutPolicy layout(c.config, 0);
      ADD_FAILURE() << "accepted; expected a refusal that says " << c.named[0];
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      for (const std::string& name : c.named) EXPECT_THAT(error.what(), HasSubstr(name));
    }
  }
  EXPECT_EQ(Make(8, {.window = 2}, 2, kMax - 3).rows(), 8) << "the sum just fits";
}

}  // namespace
}  // namespace offgraph::cache
