// Refusals with their messages, transactions, rewinds worked out by hand. Long random histories are in
// sequence_cache_model_test.cc.
#include "offgraph/cache/sequence_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "offgraph/cache/error_test_util.h"

namespace offgraph::cache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();

CacheConfig Config(int64_t capacity, std::vector<LayerConfig> layers, int64_t max_step = 4, int64_t reserve = 0) {
  CacheConfig config;
  config.capacity = capacity;
  config.n_layers = static_cast<int64_t>(layers.size());
  config.layers = std::move(layers);
  config.max_step = max_step;
  config.rewind_reserve = reserve;
  return config;
}

std::shared_ptr<const StepPlan> Begin(SequenceCache& cache, int64_t position, int64_t tokens, SequenceId sequence = 0) {
  const StepRequest request{.sequence = sequence, .position = position, .tokens = tokens};
  return cache.Begin({&request, 1});
}

// Goes on to `length` in steps of at most `chunk` tokens.
void FeedTo(SequenceCache& cache, int64_t length, int64_t chunk = 1) {
  while (cache.length() < length) {
    Begin(cache, cache.length(), std::min(chunk, length - cache.length()));
    cache.Commit();
  }
}

// Expects an Error of this code whose message says all of `named`.
void ExpectRefusal(const std::function<void()>& call, ErrorCode code, const std::vector<std::string>& named) {
  const std::string message = Refusal(code, call);
  for (const std::string& name : named) EXPECT_THAT(message, HasSubstr(name));
}

TEST(SequenceCacheTest, RefusesAConfigurationOutOfRange) {
  const CacheConfig good = Config(16, {{.window = 4}, {}});
  struct Case {
    std::function<void(CacheConfig&)> spoil;
    std::vector<std::string> named;
  };
  const Case cases[] = {
      {[](CacheConfig& c) { c.capacity = 0; }, {"capacity is 0", "at least 1"}},
      {[](CacheConfig& c) { c.capacity = -7; }, {"capacity is -7", "at least 1"}},
      {[](CacheConfig& c) { c.n_layers = 0; }, {"n_layers is 0", "at least 1"}},
      {[](CacheConfig& c) { c.n_layers = kMin; }, {"n_layers is -9223372036854775808"}},
      {[](CacheConfig& c) { c.n_layers = kMaxLayers + 1; }, {"n_layers is 65537", "at most 65536"}},
      {[](CacheConfig& c) { c.n_layers = kMax; }, {"n_layers is 9223372036854775807", "at most 65536"}},
      {[](CacheConfig& c) { c.max_step = 0; }, {"max_step is 0", "at least 1"}},
      {[](CacheConfig& c) { c.rewind_reserve = -1; }, {"rewind_reserve is -1", "at least 0"}},
      {[](CacheConfig& c) { c.layers.clear(); }, {"layers has 0 entries", "expected 1", "n_layers, 2"}},
      {[](CacheConfig& c) { c.layers.resize(3); }, {"layers has 3 entries", "expected 1", "n_layers, 2"}},
      {[](CacheConfig& c) { c.layers[1].window = -1; }, {"layers[1].window is -1"}},
      {[](CacheConfig& c) { c.layers[1].sinks = 2; }, {"layers[1].sinks is 2", "window is 0"}},
      {[](CacheConfig& c) { c.layers[0].window = kMax; }, {"layers[0]", "overflows", "9223372036854775807"}},
  };
  for (const Case& c : cases) {
    CacheConfig config = good;
    c.spoil(config);
    ExpectRefusal([&] { SequenceCache cache(config); }, ErrorCode::kInvalidArgument, c.named);
  }
  EXPECT_NO_THROW(SequenceCache{good});
}

TEST(SequenceCacheTest, RefusesADefaultConfiguration) {
  CacheConfig config;
  config.capacity = 16;
  config.n_layers = 2;
  ExpectRefusal([&] { SequenceCache cache(config); }, ErrorCode::kInvalidArgument, {"layers has 0 entries", "window"});
}

TEST(SequenceCacheTest, RefusesAStepAndChangesNothing) {
  SequenceCache cache(Config(24, {{}, {.window = 6}, {.window = 5, .sinks = 1}}));
  FeedTo(cache, 22, 4);
  const int64_t bound = cache.RewindBound();
  struct Case {
    std::vector<StepRequest> requests;
    ErrorCode code;
    std::vector<std::string> named;
  };
  const auto kArgument = ErrorCode::kInvalidArgument;
  const auto kRange = ErrorCode::kOutOfRange;
  const Case cases[] = {
      {{}, kArgument, {"at least one sequence", "none"}},
      {{{0, 23, 1}}, kArgument, {"sequence 0", "expected position 22", "got 23", "gap of 1 "}},
      {{{0, kMax - 1, 1}}, kArgument, {"expected position 22", "got 9223372036854775806", "gap"}},
      {{{0, int64_t{1} << 32, 1}}, kArgument, {"expected position 22", "got 4294967296"}},
      {{{0, (int64_t{1} << 32) + 22, 1}}, kArgument, {"expected position 22", "got 4294967318"}},
      {{{0, 21, 1}}, kArgument, {"expected position 22", "got 21", "behind", "rewind"}},
      {{{0, 0, 1}}, kArgument, {"expected position 22", "got 0", "behind"}},
      {{{0, -1, 1}}, kArgument, {"expected position 22", "got -1"}},
      {{{0, kMin, 1}}, kArgument, {"expected position 22", "got -9223372036854775808"}},
      {{{0, 22, 0}}, kArgument, {"step of 0 tokens", "at least 1"}},
      {{{0, 22, -3}}, kArgument, {"step of -3 tokens", "at least 1"}},
      {{{0, 22, kMin}}, kArgument, {"-9223372036854775808 tokens", "at least 1"}},
      {{{0, 22, kMax}}, kArgument, {"9223372036854775807 tokens", "overflow"}},
      {{{0, kMax, 1}}, kArgument, {"position 9223372036854775807", "overflow"}},
      {{{0, 0, kMax}, {1, 0, 1}}, kArgument, {"sequence 1", "overflow"}},
      {{{0, 22, kMax - 22}}, kRange, {"9223372036854775785 tokens", "at most 2 ", "capacity of 24"}},
      {{{0, 22, 3}}, kRange, {"step of 3 tokens", "at most 2 ", "capacity of 24"}},
      {{{0, 22, 1}, {0, 22, 1}}, kArgument, {"sequence 0", "at most once", "twice"}},
      {{{0, 22, 1}, {0, 23, 1}}, kArgument, {"sequence 0", "at most once", "twice"}},
      {{{0, 22, 1}, {1, 0, 1}}, kArgument, {"sequence 1 does not exist", "0 to 0"}},
  };
  for (const Case& c : cases) {
    ExpectRefusal([&] { cache.Begin(c.requests); }, c.code, c.named);
    EXPECT_FALSE(cache.step_open());
    EXPECT_EQ(cache.length(), 22);
    EXPECT_EQ(cache.RewindBound(), bound);
    EXPECT_EQ(cache.LargestStep(), 2);
  }
  FeedTo(cache, 24);
  EXPECT_EQ(cache.LargestStep(), 0);
  ExpectRefusal([&] { Begin(cache, 24, 1); }, kRange, {"at most 0 ", "capacity of 24"});
}

TEST(SequenceCacheTest, RefusesAStepLongerThanTheTightestRing) {
  SequenceCache cache(Config(100, {{}, {.window = 90}, {.window = 6, .sinks = 1}}, 20));
  EXPECT_EQ(cache.LargestStep(), 20);
  ExpectRefusal([&] { Begin(cache, 0, 21); }, ErrorCode::kOutOfRange,
                {"step of 21 tokens", "at most 20 ", "layer 2 (window 6, sinks 1)", "max_step"});
  EXPECT_EQ(cache.length(), 0);
  EXPECT_NO_THROW(Begin(cache, 0, 20));
}

TEST(SequenceCacheTest, LayersThatNeverWrapTakeAnyStep) {
  SequenceCache cache(Config(100, {{}, {.window = 90}}, 20));
  EXPECT_EQ(cache.LargestStep(), 100);
  EXPECT_EQ(Begin(cache, 0, 100)->tokens(), 100);
  EXPECT_EQ(cache.LargestStep(), 0) << "a step is open";
}

TEST(SequenceCacheTest, RefusesSequencesThatDoNotExistInEveryCall) {
  SequenceCache cache(Config(16, {{}}));
  for (const SequenceId id : {SequenceId{-1}, SequenceId{1}, SequenceId{63}, SequenceId{64}, SequenceId{1} << 20,
                              SequenceId{1} << 32, SequenceId{kMin}, SequenceId{kMax}}) {
    const std::function<void()> calls[] = {
        [&] { cache.length(id); },    [&] { Begin(cache, 0, 1, id); }, [&] { cache.RewindBound(id); },
        [&] { cache.Rewind(0, id); }, [&] { cache.Clear(id); },        [&] { cache.LargestStep(id); },
    };
    for (const auto& call : calls) {
      ExpectRefusal(call, ErrorCode::kInvalidArgument, {"sequence " + std::to_string(id) + " does not exist"});
    }
  }
  EXPECT_NO_THROW(FeedTo(cache, 3)) << "the refusals left nothing behind";
}

TEST(SequenceCacheTest, RefusesLayersThatDoNotExist) {
  SequenceCache cache(Config(16, {{}, {.window = 3}}));
  EXPECT_EQ(cache.MaxRows(0), 16);
  EXPECT_EQ(cache.MaxRows(1), 6);
  for (const int64_t layer : {int64_t{-1}, int64_t{2}, int64_t{1} << 32, kMin, kMax}) {
    ExpectRefusal([&] { cache.MaxRows(layer); }, ErrorCode::kInvalidArgument,
                  {"layer " + std::to_string(layer) + " does not exist", "0 to 1"});
  }
}

TEST(SequenceCacheTest, OneStepAtATime) {
  SequenceCache cache(Config(16, {{}}));
  ExpectRefusal([&] { cache.Commit(); }, ErrorCode::kInvalidArgument, {"no step is open"});
  cache.Abandon();  // nothing to abandon
  Begin(cache, 0, 3);
  EXPECT_TRUE(cache.step_open());
  EXPECT_EQ(cache.length(), 0) << "nothing is there before the commit";
  ExpectRefusal([&] { Begin(cache, 0, 1); }, ErrorCode::kInvalidArgument, {"a step of 3 tokens is open"});
  ExpectRefusal([&] { cache.Rewind(0); }, ErrorCode::kInvalidArgument, {"to 0", "a step is open"});
  ExpectRefusal([&] { cache.Clear(); }, ErrorCode::kInvalidArgument, {"a step is open"});
  cache.Commit();
  EXPECT_FALSE(cache.step_open());
  EXPECT_EQ(cache.length(), 3);
  ExpectRefusal([&] { cache.Commit(); }, ErrorCode::kInvalidArgument, {"no step is open"});
  EXPECT_EQ(cache.length(), 3);
}

TEST(SequenceCacheTest, AbandonedStepLeavesTheLength) {
  SequenceCache cache(Config(40, {{.window = 4}}, 3));  // 6 rows
  FeedTo(cache, 10);
  EXPECT_EQ(cache.RewindBound(), 7);
  Begin(cache, 10, 3);
  cache.Abandon();
  EXPECT_EQ(cache.length(), 10);
  EXPECT_EQ(cache.RewindBound(), 10) << "the rows of 4, 5 and 6 may be overwritten";
  EXPECT_EQ(Begin(cache, 10, 3)->layer(0).segments[0].position, 10);
  cache.Commit();
  EXPECT_EQ(cache.length(), 13);
}

TEST(SequenceCacheTest, LayersOfEqualConfigurationShareAPlan) {
  SequenceCache cache(Config(64, {{.window = 4}, {}, {.window = 4}, {.window = 4, .sinks = 1}, {}}));
  const auto plan = Begin(cache, 0, 4);
  EXPECT_EQ(plan->n_layers(), 5);
  EXPECT_EQ(&plan->layer(0), &plan->layer(2));
  EXPECT_EQ(&plan->layer(1), &plan->layer(4));
  EXPECT_NE(&plan->layer(0), &plan->layer(1));
  EXPECT_NE(&plan->layer(0), &plan->layer(3));
  EXPECT_EQ(plan->layer(3).window, 4);
  EXPECT_EQ(plan->layer(3).sinks, 1);
}

TEST(SequenceCacheTest, OneEntryServesAllLayers) {
  CacheConfig config = Config(64, {{.window = 4}});
  config.n_layers = 30;
  SequenceCache cache(config);
  EXPECT_EQ(cache.n_layers(), 30);
  EXPECT_EQ(cache.MaxRows(29), 7);
  EXPECT_EQ(cache.config().capacity, 64);
  const auto plan = Begin(cache, 0, 2);
  EXPECT_EQ(plan->n_layers(), 30);
  EXPECT_EQ(&plan->layer(0), &plan->layer(29));
}

TEST(SequenceCacheTest, PlanOutlivesTheCache) {
  std::shared_ptr<const StepPlan> plan;
  {
    SequenceCache cache(Config(64, {{}}));
    plan = Begin(cache, 0, 2);
  }
  EXPECT_THAT(plan->layer(0).segments[0].writes, ElementsAre(cache::Run{0, 2, 0}));
}

TEST(SequenceCacheTest, RewindIsRefusedOutsideTheLength) {
  SequenceCache cache(Config(40, {{}, {.window = 4}}, 3));
  FeedTo(cache, 5);
  for (const int64_t length : {int64_t{-1}, int64_t{6}, kMin, kMax}) {
    ExpectRefusal([&] { cache.Rewind(length); }, ErrorCode::kInvalidArgument,
                  {"to " + std::to_string(length), "from 0 to 5"});
  }
  EXPECT_EQ(cache.length(), 5);
}

TEST(SequenceCacheTest, RewindBoundIsOfTheLayerThatKeepsLeast) {
  // Rows: 40, 15 and 5.
  SequenceCache cache(Config(40, {{}, {.window = 12}, {.window = 2}, {.window = 12}}, 4));
  FeedTo(cache, 30, 4);
  EXPECT_EQ(cache.RewindBound(), 26);
  ExpectRefusal(
      [&] { cache.Rewind(25); }, ErrorCode::kOutOfRange,
      {"to 25", "at least 26, or 0", "layer 1 (window 12)", "positions from 14", "ring of 15 rows", "up to 14"});
  EXPECT_EQ(cache.length(), 30) << "all or nothing";
  cache.Rewind(26);
  EXPECT_EQ(cache.length(), 26);
}

TEST(SequenceCacheTest, TwoRewindsAreAsExactAsOne) {
  SequenceCache cache(Config(100, {{.window = 4}}, 3, 2));  // 8 rows, 5 tokens back from the highest ever written
  FeedTo(cache, 50);
  cache.Rewind(47);
  EXPECT_EQ(cache.RewindBound(), 45);
  cache.Rewind(45);
  EXPECT_EQ(cache.RewindBound(), 45);
  ExpectRefusal([&] { cache.Rewind(44); }, ErrorCode::kOutOfRange, {"at least 45"});
  FeedTo(cache, 49);
  EXPECT_EQ(cache.RewindBound(), 45) << "49 was there before";
  FeedTo(cache, 51);
  EXPECT_EQ(cache.RewindBound(), 46);
}

TEST(SequenceCacheTest, RewindToZeroStartsAnew) {
  SequenceCache cache(Config(40, {{}, {.window = 4}}, 3));
  FeedTo(cache, 30);
  ASSERT_GT(cache.RewindBound(), 1);
  cache.Clear();
  EXPECT_EQ(cache.length(), 0);
  EXPECT_EQ(cache.RewindBound(), 0);
  EXPECT_EQ(cache.LargestStep(), 3);
  FeedTo(cache, 6);
  EXPECT_EQ(cache.RewindBound(), 0) << "nothing is overwritten yet";
  FeedTo(cache, 7);
  EXPECT_EQ(cache.RewindBound(), 4);
}

TEST(SequenceCacheTest, RewindIntoTheSinksNeedsNothingFromTheRing) {
  SequenceCache cache(Config(40, {{}, {.window = 4, .sinks = 3}}, 3));
  FeedTo(cache, 30);
  EXPECT_EQ(cache.RewindBound(), 27);
  ExpectRefusal([&] { cache.Rewind(4); }, ErrorCode::kOutOfRange, {"at least 27"});
  cache.Rewind(2);
  EXPECT_EQ(cache.RewindBound(), 0);
  FeedTo(cache, 9);
  EXPECT_EQ(cache.RewindBound(), 0) << "three sinks and six rows hold all nine";
  FeedTo(cache, 10);
  EXPECT_EQ(cache.RewindBound(), 7);
}

TEST(SequenceCacheTest, RewindNeedsEveryLayer) {
  SequenceCache cache(Config(40, {{.window = 4, .sinks = 3}, {.window = 4}}, 3));
  FeedTo(cache, 30);
  ExpectRefusal([&] { cache.Rewind(2); }, ErrorCode::kOutOfRange, {"at least 27, or 0", "layer 1 (window 4)"});
  EXPECT_EQ(cache.length(), 30);
}

TEST(SequenceCacheTest, CountsPastThirtyTwoBits) {
  SequenceCache cache(Config(kMax, {{}, {.window = 3}}, int64_t{1} << 40));
  const int64_t step = (int64_t{1} << 40) - 1;
  for (int i = 0; i < 5; ++i) FeedTo(cache, cache.length() + step, step);
  EXPECT_EQ(cache.length(), 5 * step);
  EXPECT_EQ(cache.RewindBound(), 4 * step - 1) << "one max_step back";
  cache.Rewind(4 * step - 1);
  EXPECT_EQ(Begin(cache, 4 * step - 1, 1)->layer(0).segments[0].reads.at(0).count, 4 * step);
}

}  // namespace
}  // namespace offgraph::cache
