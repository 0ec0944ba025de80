// SequenceCache against a naive model, over long random histories.
//
// The model is a list: the token at each position, as a number that no other token ever has. Beside it stand pools, one
// per layer, in which a row holds the token last stored there (and garbage after an abandoned step). Every plan is
// carried out on the pools. What its reads show must be exactly the tokens that the step's queries see, and a rewind
// must be accepted exactly where the pools still show what the next query sees.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "offgraph/cache/error.h"
#include "offgraph/cache/sequence_cache.h"

namespace offgraph::cache {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kEmptyRow = -1;

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  // Uniform over [low, high].
  int64_t Next(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(engine_() % static_cast<uint64_t>(high - low + 1));
  }
  bool OneIn(int64_t n) { return Next(1, n) == 1; }

 private:
  std::mt19937_64 engine_;  // the same numbers on every machine, unlike the standard's distributions
};

bool Sees(const LayerConfig& layer, int64_t query, int64_t key) {
  return key <= query && (layer.window == 0 || key > query - layer.window || key < layer.sinks);
}

class Model {
 public:
  explicit Model(const CacheConfig& config) : config_(config), cache_(config) {
    for (int64_t layer = 0; layer < config.n_layers; ++layer) {
      pools_.emplace_back(static_cast<size_t>(cache_.MaxRows(layer)), kEmptyRow);
    }
  }

  // One random operation, then a look at everything that can be read.
  void Operate(Random& random) {
    switch (random.Next(0, 9)) {
      case 0:
        return TryRewind(random.Next(0, length()));
      case 1:  // near the bound, where being wrong by one shows
        return TryRewind(std::clamp<int64_t>(cache_.RewindBound() + random.Next(-2, 2), 0, length()));
      case 2:
        return Refusals(random);
      case 3:
        return Step(RandomTokens(random), /*commit=*/false);
      case 4:
        if (random.OneIn(20)) return TryRewind(0);
        return Step(random.OneIn(4) ? cache_.LargestStep() : RandomTokens(random), /*commit=*/true);
      default:
        if (cache_.LargestStep() == 0) return TryRewind(random.OneIn(3) ? 0 : random.Next(0, length()));
        return Step(RandomTokens(random), /*commit=*/true);
    }
  }

  void CheckState(Random& random) {
    ASSERT_EQ(cache_.length(), length());
    ASSERT_FALSE(cache_.step_open());
    ASSERT_EQ(cache_.LargestStep(), ExpectedLargestStep());
    const int64_t bound = cache_.RewindBound();
    ASSERT_LE(bound, length());
    ASSERT_TRUE(CanGoOnAt(length()));
    ASSERT_TRUE(CanGoOnAt(bound));
    ASSERT_TRUE(CanGoOnAt(random.Next(bound, length()))) << "the bound, " << bound << ", is too low";
    ASSERT_FALSE(bound > 0 && CanGoOnAt(bound - 1)) << "the bound, " << bound << ", is too high";
  }

  int64_t steps() const { return steps_; }
  int64_t refused_rewinds() const { return refused_rewinds_; }
  int64_t wraps() const { return wraps_; }

 private:
  int64_t length() const { return static_cast<int64_t>(tokens_.size()); }
  const LayerConfig& Layer(int64_t layer) const {
    return config_.layers[config_.layers.size() == 1 ? 0 : static_cast<size_t>(layer)];
  }
  int64_t RandomTokens(Random& random) {
    const int64_t most = cache_.LargestStep();
    return most == 0 ? 0 : random.Next(1, random.OneIn(3) ? most : std::min<int64_t>(most, 3));
  }

  int64_t ExpectedLargestStep() const {
    int64_t most = config_.capacity - length();
    for (int64_t layer = 0; layer < config_.n_layers; ++layer) {
      if (cache_.MaxRows(layer) < config_.capacity) most = std::min(most, config_.max_step);
    }
    return most;
  }

  // Whether all that a query at `position` sees before itself is in every layer's pool.
  bool CanGoOnAt(int64_t position) const {
    for (int64_t layer = 0; layer < config_.n_layers; ++layer) {
      for (int64_t key = 0; key < position; ++key) {
        if (!Sees(Layer(layer), position, key)) continue;
        const int64_t token = tokens_[static_cast<size_t>(key)];
        if (Pool(layer)[RowOf(layer, token)] != token) return false;
      }
    }
    return true;
  }

  const std::vector<int64_t>& Pool(int64_t layer) const { return pools_[static_cast<size_t>(layer)]; }
  // The row where a plan stored this token.
  size_t RowOf(int64_t layer, int64_t token) const {
    return rows_of_token_[static_cast<size_t>(token * config_.n_layers + layer)];
  }

  void Step(int64_t count, bool commit) {
    if (count == 0) return;
    const int64_t position = length();
    const StepRequest request{.sequence = 0, .position = position, .tokens = count};
    const std::shared_ptr<const StepPlan> plan = cache_.Begin({&request, 1});
    ASSERT_TRUE(cache_.step_open());
    ASSERT_EQ(plan->tokens(), count);
    ASSERT_EQ(plan->n_layers(), config_.n_layers);
    const int64_t first_token = next_token_;
    for (int64_t i = 0; i < count; ++i) tokens_.push_back(next_token_++);
    rows_of_token_.resize(static_cast<size_t>(next_token_ * config_.n_layers));
    for (int64_t layer = 0; layer < config_.n_layers; ++layer) {
      ASSERT_NO_FATAL_FAILURE(CheckLayer(layer, plan->layer(layer), first_token)) << "layer " << layer;
    }
    if (commit) {
      cache_.Commit();
    } else {
      // The step may have stored any of its rows before it failed; the worst case is all of them, of no use.
      cache_.Abandon();
      tokens_.resize(static_cast<size_t>(position));
    }
    ++steps_;
  }

  void CheckLayer(int64_t layer, const LayerPlan& plan, int64_t first_token) {
    ASSERT_EQ(plan.window, Layer(layer).window);
    ASSERT_EQ(plan.sinks, Layer(layer).sinks);
    ASSERT_EQ(plan.segments.size(), 1U);
    const SegmentPlan& segment = plan.segments[0];
    const int64_t count = next_token_ - first_token;
    ASSERT_EQ(segment.sequence, 0);
    ASSERT_EQ(segment.token_offset, 0);
    ASSERT_EQ(segment.tokens, count);
    ASSERT_EQ(segment.position, length() - count);
    CheckRuns(layer, plan);

    int64_t token = first_token;
    for (const Run& run : segment.writes) {
      ASSERT_EQ(run.position, segment.position + token - first_token);
      for (int64_t i = 0; i < run.count; ++i, ++token) {
        const auto row = static_cast<size_t>(run.row + i);
        pools_[static_cast<size_t>(layer)][row] = token;
        rows_of_token_[static_cast<size_t>(token * config_.n_layers + layer)] = row;
      }
    }
    ASSERT_EQ(token, next_token_);

    std::vector<int64_t> seen;
    for (int64_t key = 0; key < length(); ++key) {
      for (int64_t query = std::max(key, segment.position); query < length(); ++query) {
        if (!Sees(Layer(layer), query, key)) continue;
        seen.push_back(tokens_[static_cast<size_t>(key)]);
        break;
      }
    }
    std::vector<int64_t> read;
    for (const Run& run : segment.reads) {
      for (int64_t i = 0; i < run.count; ++i) {
        read.push_back(Pool(layer)[static_cast<size_t>(run.row + i)]);
        ASSERT_EQ(read.back(), tokens_[static_cast<size_t>(run.position + i)]) << "position " << run.position + i;
      }
    }
    ASSERT_EQ(read, seen);
    if (segment.reads.back().row < segment.reads.front().row) ++wraps_;
  }

  // Runs lie in the pool, follow each other, and no two neighbours could be one.
  void CheckRuns(int64_t layer, const LayerPlan& plan) {
    int64_t highest = 0;
    for (const std::vector<Run>* runs : {&plan.segments[0].writes, &plan.segments[0].reads}) {
      int64_t row = -1;
      int64_t position = -1;
      for (const Run& run : *runs) {
        ASSERT_GT(run.count, 0);
        ASSERT_GE(run.row, 0);
        ASSERT_GE(run.position, position);
        ASSERT_FALSE(run.row == row && run.position == position);
        row = run.row + run.count;
        position = run.position + run.count;
        highest = std::max(highest, row);
      }
    }
    ASSERT_EQ(plan.rows_needed, highest);
    ASSERT_LE(highest, cache_.MaxRows(layer));
  }

  void TryRewind(int64_t to) {
    bool accepted = true;
    try {
      cache_.Rewind(to);
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kOutOfRange) << error.what();
      accepted = false;
      ++refused_rewinds_;
    }
    ASSERT_EQ(accepted, CanGoOnAt(to)) << "rewind from " << length() << " to " << to;
    if (accepted) tokens_.resize(static_cast<size_t>(to));
  }

  template <typename Call>
  void Refused(Random& random, const Call& call) {
    ASSERT_THROW(call(), Error);
    ASSERT_NO_FATAL_FAILURE(CheckState(random));
  }

  // Calls that mean nothing; each leaves everything as it was.
  void Refusals(Random& random) {
    const auto begin = [&](std::vector<StepRequest> requests) { Refused(random, [&] { cache_.Begin(requests); }); };
    switch (random.Next(0, 7)) {
      case 0:
        return begin({{0, length() + random.Next(1, 5), 1}});
      case 1:
        return begin({{0, length() - random.Next(1, 5), 1}});
      case 2:
        return begin({{0, length(), -random.Next(0, 2)}});
      case 3:
        return begin({{0, length(), cache_.LargestStep() + random.Next(1, 3)}});
      case 4:
        return begin({{0, length(), kMax - random.Next(0, length() + 1)}});
      case 5:
        return begin({{0, length(), 1}, {random.Next(0, 1), length(), 1}});
      case 6:
        return Refused(random,
                       [&] { cache_.Rewind(random.OneIn(2) ? length() + random.Next(1, 9) : -random.Next(1, 9)); });
      default:
        return Refused(random, [&] { cache_.Commit(); });
    }
  }

  CacheConfig config_;
  SequenceCache cache_;
  std::vector<int64_t> tokens_;  // by position
  int64_t next_token_ = 0;
  std::vector<std::vector<int64_t>> pools_;  // [layer][row]
  std::vector<size_t> rows_of_token_;        // [token * n_layers + layer]
  int64_t steps_ = 0;
  int64_t refused_rewinds_ = 0;
  int64_t wraps_ = 0;
};

CacheConfig RandomConfig(Random& random) {
  CacheConfig config;
  config.capacity = random.Next(1, random.OneIn(4) ? 12 : 60);
  config.n_layers = random.Next(1, 4);
  config.layers.resize(random.OneIn(3) ? 1 : static_cast<size_t>(config.n_layers));
  for (LayerConfig& layer : config.layers) {
    if (random.OneIn(4)) continue;  // full attention
    layer.window = random.Next(1, random.OneIn(6) ? 80 : 10);
    if (random.OneIn(2)) layer.sinks = random.Next(0, random.OneIn(6) ? 80 : 5);
  }
  config.max_step = random.Next(1, random.OneIn(3) ? 20 : 5);
  if (random.OneIn(2)) config.rewind_reserve = random.Next(0, 6);
  return config;
}

std::string Describe(const CacheConfig& config) {
  std::ostringstream text;
  text << "capacity " << config.capacity << ", max_step " << config.max_step << ", reserve " << config.rewind_reserve
       << ", layers (window/sinks)";
  for (const LayerConfig& layer : config.layers) text << " " << layer.window << "/" << layer.sinks;
  return text.str();
}

TEST(SequenceCacheModelTest, RandomHistoriesOverRandomConfigurations) {
  constexpr int kConfigs = 600;
  constexpr int kOperations = 250;
  int64_t steps = 0;
  int64_t refused_rewinds = 0;
  int64_t wraps = 0;
  for (int i = 0; i < kConfigs; ++i) {
    Random random(static_cast<uint32_t>(i));
    const CacheConfig config = RandomConfig(random);
    SCOPED_TRACE("seed " + std::to_string(i) + ": " + Describe(config));
    Model model(config);
    for (int operation = 0; operation < kOperations; ++operation) {
      ASSERT_NO_FATAL_FAILURE(model.Operate(random)) << "operation " << operation;
      ASSERT_NO_FATAL_FAILURE(model.CheckState(random)) << "after operation " << operation;
    }
    steps += model.steps();
    refused_rewinds += model.refused_rewinds();
    wraps += model.wraps();
  }
  // The histories must go where faults would be: through wrapped rings, and against the bound.
  EXPECT_GT(steps, 40000);
  EXPECT_GT(wraps, 10000);
  EXPECT_GT(refused_rewinds, 1000);
}

}  // namespace
}  // namespace offgraph::cache
