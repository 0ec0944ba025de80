#include "offgraph/bytes/kv_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mlx/device.h>
#include <mlx/fast.h>
#include <mlx/memory.h>
#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "offgraph/cache/error.h"

namespace offgraph::bytes {
namespace {

namespace mx = mlx::core;
using ::testing::HasSubstr;

constexpr int kHeads = 4;
constexpr int kKvHeads = 2;
constexpr int kKDim = 20;
constexpr int kVDim = 12;

// Arrays are made on the CPU whatever the build of MLX has beside it.
class KvStoreTest : public ::testing::Test {
 protected:
  KvStoreTest() { mx::set_default_device(mx::Device::cpu); }
};

// One token's q, k and v, a function of its position.
struct Token {
  std::vector<float> q, k, v;
};
Token TokenAt(int64_t position, int64_t layer) {
  std::mt19937 random(static_cast<uint32_t>(position * 97 + layer));
  std::normal_distribution<float> normal;
  const auto draw = [&](int count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = normal(random);
    return values;
  };
  return {draw(kHeads * kKDim), draw(kKvHeads * kKDim), draw(kKvHeads * kVDim)};
}

// [1, heads, tokens, dim] as an export makes it: a transposed view of [1, tokens, heads, dim].
mx::array Stack(const std::vector<Token>& tokens, std::vector<float> Token::*part, int heads, int dim, mx::Dtype type) {
  std::vector<float> values;
  for (const Token& token : tokens) values.insert(values.end(), (token.*part).begin(), (token.*part).end());
  const mx::array rows(values.data(), {1, static_cast<int>(tokens.size()), heads, dim}, mx::float32);
  return mx::transpose(mx::astype(rows, type), {0, 2, 1, 3});
}

struct Step {
  std::vector<Token> tokens;
  mx::Dtype type = mx::float32;
  mx::array q() const { return Stack(tokens, &Token::q, kHeads, kKDim, type); }
  mx::array k() const { return Stack(tokens, &Token::k, kKvHeads, kKDim, type); }
  mx::array v() const { return Stack(tokens, &Token::v, kKvHeads, kVDim, type); }
};
Step StepAt(int64_t position, int64_t count, int64_t layer, mx::Dtype type = mx::float32) {
  Step step{{}, type};
  for (int64_t i = 0; i < count; ++i) step.tokens.push_back(TokenAt(position + i, layer));
  return step;
}

// The caller's part where the store has no kernel.
mx::array AttendBySpec(const mx::array& q, const AttendSpec& spec, float scale) {
  switch (spec.mask_kind) {
    case MaskKind::kNone:
      return mx::fast::scaled_dot_product_attention(q, spec.k, spec.v, scale);
    case MaskKind::kCausal:
      return mx::fast::scaled_dot_product_attention(q, spec.k, spec.v, scale, "causal");
    case MaskKind::kExplicit:
      return mx::fast::scaled_dot_product_attention(q, spec.k, spec.v, scale, "", spec.mask);
  }
  ADD_FAILURE() << "a mask kind that is not known";
  return q;
}

// Runs a whole step over all layers; returns each layer's result as rows [tokens][heads * v_dim].
std::vector<std::vector<float>> RunStep(KvStore& store, int64_t count, mx::Dtype type = mx::float32) {
  const int64_t position = store.sequences().length();
  const cache::StepRequest request{0, position, count};
  store.Begin({&request, 1});
  std::vector<std::vector<float>> results;
  for (int64_t layer = 0; layer < store.sequences().n_layers(); ++layer) {
    const Step step = StepAt(position, count, layer, type);
    AttendOptions options;
    options.scale = 0.25F;
    const mx::array q = step.q();
    auto answer = store.Attend(layer, q, step.k(), step.v(), options);
    mx::array out = std::holds_alternative<mx::array>(answer) ? std::get<mx::array>(answer)
                                                              : AttendBySpec(q, std::get<AttendSpec>(answer), 0.25F);
    out = mx::contiguous(mx::transpose(mx::astype(out, mx::float32), {0, 2, 1, 3}));
    mx::eval(out);
    results.emplace_back(out.data<float>(), out.data<float>() + out.size());
  }
  store.Commit();
  return results;
}

// Attention of the query at `position` over all tokens before it, in double precision.
std::vector<double> Reference(int64_t position, int64_t layer, const cache::LayerConfig& config) {
  const Token query = TokenAt(position, layer);
  std::vector<double> out(kHeads * kVDim, 0.0);
  for (int h = 0; h < kHeads; ++h) {
    const int kv = h / (kHeads / kKvHeads);
    std::vector<std::pair<double, Token>> seen;
    double largest = -std::numeric_limits<double>::infinity();
    for (int64_t j = 0; j <= position; ++j) {
      if (config.window > 0 && j <= position - config.window && j >= config.sinks) continue;
      Token key = TokenAt(j, layer);
      double score = 0;
      for (int d = 0; d < kKDim; ++d) {
        score += static_cast<double>(query.q[static_cast<size_t>(h * kKDim + d)]) *
                 key.k[static_cast<size_t>(kv * kKDim + d)];
      }
      largest = std::max(largest, score * 0.25);
      seen.emplace_back(score * 0.25, std::move(key));
    }
    double sum = 0;
    for (const auto& [score, key] : seen) sum += std::exp(score - largest);
    for (const auto& [score, key] : seen) {
      for (int d = 0; d < kVDim; ++d) {
        out[static_cast<size_t>(h * kVDim + d)] +=
            std::exp(score - largest) / sum * key.v[static_cast<size_t>(kv * kVDim + d)];
      }
    }
  }
  return out;
}

KvStoreConfig ConfigOf(int64_t capacity, std::vector<cache::LayerConfig> layers, int64_t max_step = 7) {
  KvStoreConfig config;
  config.cache.capacity = capacity;
  config.cache.n_layers = static_cast<int64_t>(layers.size());
  config.cache.layers = std::move(layers);
  config.cache.max_step = max_step;
  config.initial_capacity = 4;
  return config;
}

const std::vector<cache::LayerConfig> kMixed = {{0, 0}, {8, 0}, {8, 3}, {5, 0}};

// Chunks that reach past three times the windows.
const std::vector<int64_t> kChunks = {5, 1, 7, 2, 3, 7, 1, 1, 6, 4, 7, 5, 1};

TEST_F(KvStoreTest, AgreesWithADenseReferenceInEveryLayoutAndPath) {
  for (const bool fused : {true, false}) {
    SCOPED_TRACE(fused ? "fused" : "by spec");
    KvStoreConfig config = ConfigOf(64, kMixed);
    config.fused = fused;
    KvStore store(config);
    for (int64_t chunk : kChunks) {
      const int64_t position = store.sequences().length();
      const auto results = RunStep(store, chunk);
      for (size_t layer = 0; layer < kMixed.size(); ++layer) {
        for (int64_t t = 0; t < chunk; ++t) {
          const auto expected = Reference(position + t, static_cast<int64_t>(layer), kMixed[layer]);
          for (size_t i = 0; i < expected.size(); ++i) {
            // Weights add up to 1 and values are below 5: fp32 leaves some tens of half steps of that.
            ASSERT_NEAR(results[layer][static_cast<size_t>(t) * expected.size() + i], expected[i], 64 * 5 * 0x1p-24)
                << "layer " << layer << ", position " << position + t << ", value " << i;
          }
        }
      }
    }
  }
}

TEST_F(KvStoreTest, ChunksRingsAndGrowthChangeNoBit) {
  const auto run = [](const std::vector<int64_t>& chunks, int64_t max_step, int64_t initial) {
    KvStoreConfig config = ConfigOf(64, kMixed, max_step);
    config.initial_capacity = initial;
    KvStore store(config);
    std::vector<std::vector<float>> rows(kMixed.size());
    for (int64_t chunk : chunks) {
      const auto results = RunStep(store, chunk);
      for (size_t l = 0; l < rows.size(); ++l) rows[l].insert(rows[l].end(), results[l].begin(), results[l].end());
    }
    return rows;
  };
  const auto whole = run({50}, 64, 64);  // rings that cover everything
  EXPECT_EQ(run(kChunks, 7, 4), whole);
  EXPECT_EQ(run(std::vector<int64_t>(50, 1), 1, 1), whole);
  EXPECT_EQ(run({9, 9, 9, 9, 9, 5}, 9, 3), whole);
}

TEST_F(KvStoreTest, RewindAndRedoGivesTheSameBits) {
  KvStore store(ConfigOf(64, kMixed, 7));
  RunStep(store, 7);
  const auto first = RunStep(store, 5);
  store.Rewind(7);
  RunStep(store, 3);
  store.Rewind(7);
  EXPECT_EQ(RunStep(store, 5), first);
}

TEST_F(KvStoreTest, WhatLiesInUnwrittenRowsNeverReachesAResult) {
  KvStore clean(ConfigOf(64, kMixed));
  KvStore poisoned(ConfigOf(64, kMixed));
  // Rows of NaN behind the length: written by a step that is abandoned.
  const cache::StepRequest request{0, 0, 7};
  poisoned.Begin({&request, 1});
  const mx::array nan(std::numeric_limits<float>::quiet_NaN());
  for (int64_t layer = 0; layer < 4; ++layer) {
    const Step step = StepAt(0, 7, layer);
    auto out = std::get<mx::array>(
        poisoned.Attend(layer, step.q(), mx::multiply(step.k(), nan), mx::multiply(step.v(), nan), {}));
    mx::eval(out);
  }
  poisoned.Abandon();
  EXPECT_EQ(poisoned.sequences().length(), 0);
  for (int64_t chunk : {2, 1, 3}) EXPECT_EQ(RunStep(poisoned, chunk), RunStep(clean, chunk));
}

TEST_F(KvStoreTest, StorageTypesRoundOnceAndSameKeepsWhatComes) {
  for (const auto& [type, storage] : {std::pair(KvType::kFloat16, mx::float16), {KvType::kBFloat16, mx::bfloat16}}) {
    KvStoreConfig config = ConfigOf(32, {{0, 0}});
    config.k_type = config.v_type = type;
    KvStore narrow(config);
    // Values that are rounded before they come give the same bits as values that the store rounds.
    KvStoreConfig same = ConfigOf(32, {{0, 0}});
    KvStore wide(same);
    for (int64_t chunk : {3, 1, 4}) {
      const int64_t position = narrow.sequences().length();
      const cache::StepRequest request{0, position, chunk};
      const Step step = StepAt(position, chunk, 0);
      const auto rounded = [&, to = storage](const mx::array& x) { return mx::astype(mx::astype(x, to), mx::float32); };
      narrow.Begin({&request, 1});
      wide.Begin({&request, 1});
      auto a = std::get<mx::array>(narrow.Attend(0, step.q(), step.k(), step.v(), {}));
      auto b = std::get<mx::array>(wide.Attend(0, step.q(), rounded(step.k()), rounded(step.v()), {}));
      mx::eval(a, b);
      narrow.Commit();
      wide.Commit();
      EXPECT_TRUE(mx::array_equal(a, b).item<bool>());
    }
    EXPECT_EQ(narrow.memory().in_use * 2, wide.memory().in_use);
  }
}

TEST_F(KvStoreTest, AValueThatTheTypeCannotHoldIsAnErrorThatNamesItsPlace) {
  for (const bool fused : {true, false}) {
    SCOPED_TRACE(fused ? "fused" : "by spec");
    KvStoreConfig config = ConfigOf(32, {{0, 0}, {8, 0}});
    config.k_type = config.v_type = KvType::kFloat16;
    config.fused = fused;
    KvStore store(config);
    RunStep(store, 5);
    const cache::StepRequest request{0, 5, 3};
    store.Begin({&request, 1});
    for (int64_t layer = 0; layer < 2; ++layer) {
      Step step = StepAt(5, 3, layer);
      if (layer == 1) step.tokens[2].v[3] = 1e5F;
      const mx::array q = step.q();
      auto answer = store.Attend(layer, q, step.k(), step.v(), {});
      mx::array out = std::holds_alternative<mx::array>(answer) ? std::get<mx::array>(answer)
                                                                : AttendBySpec(q, std::get<AttendSpec>(answer), 1.0F);
      mx::eval(out);
    }
    try {
      store.Commit();
      ADD_FAILURE() << "committed";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kOutOfRange);
      EXPECT_THAT(error.what(), HasSubstr("layer 1"));
      EXPECT_THAT(error.what(), HasSubstr("position 7"));
      EXPECT_THAT(error.what(), HasSubstr("V holds"));
      EXPECT_THAT(error.what(), HasSubstr("bf16"));
    }
    EXPECT_EQ(store.sequences().length(), 5);
    EXPECT_FALSE(store.sequences().step_open());
    RunStep(store, 3);  // the right step works
    EXPECT_EQ(store.sequences().length(), 8);
  }
}

TEST_F(KvStoreTest, MemoryGrowsWithUseAndIsGivenBack) {
  KvStoreConfig config = ConfigOf(4096, {{0, 0}, {64, 0}}, 64);
  KvStore store(config);
  EXPECT_EQ(store.memory().reserved, 0);
  const int64_t row = kKvHeads * (kKDim + kVDim) * 4;
  int64_t before = 0;
  for (int64_t length = 64; length <= 4096; length += 64) {
    RunStep(store, 64);
    const MemoryInfo info = store.memory();
    const int64_t ring_rows = std::min<int64_t>(length, 64 + 64 - 1);
    EXPECT_EQ(info.in_use, (length + ring_rows) * row);
    EXPECT_GE(info.reserved, info.in_use);
    EXPECT_LE(info.reserved, 2 * info.in_use + 4 * 4096) << "doubling, and whole pages for four pools";
    EXPECT_GE(info.reserved, before);
    EXPECT_EQ(info.peak, info.reserved) << "growing moves nothing";
    before = info.reserved;
  }
  store.Clear();
  EXPECT_EQ(store.memory().in_use, 0);
  EXPECT_EQ(store.memory().reserved, before);
  store.Release();
  EXPECT_EQ(store.memory().reserved, 0);
  const auto again = RunStep(store, 5);
  KvStore fresh(config);
  EXPECT_EQ(again, RunStep(fresh, 5));
}

TEST_F(KvStoreTest, FillingAndClearingAgainAndAgainTakesNoMore) {
  KvStore store(ConfigOf(64, kMixed));
  RunStep(store, 7);
  for (int i = 0; i < 8; ++i) RunStep(store, 7);
  const int64_t reserved = store.memory().reserved;
  for (int round = 0; round < 50; ++round) {
    store.Clear();
    for (int i = 0; i < 9; ++i) RunStep(store, 7);
    ASSERT_EQ(store.memory().reserved, reserved);
    ASSERT_EQ(store.memory().peak, reserved);
  }
}

TEST_F(KvStoreTest, AMemoryLimitIsKeptAndSaysWhatWasWanted) {
  KvStoreConfig config = ConfigOf(100000, {{0, 0}}, 64);
  config.memory_limit = 64 * 1024;
  KvStore store(config);
  try {
    for (;;) RunStep(store, 16);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_THAT(error.what(), HasSubstr("65536"));
    EXPECT_THAT(error.what(), HasSubstr("layer 0"));
  }
  store.Abandon();
  EXPECT_LE(store.memory().reserved, config.memory_limit);
  const int64_t length = store.sequences().length();
  EXPECT_GT(length, 64);  // the limit was used, not only guarded
  store.Rewind(length - 20);
  RunStep(store, 16);
}

TEST_F(KvStoreTest, RefusesWhatDoesNotFitAndWorksAfterwards) {
  KvStore store(ConfigOf(32, {{0, 0}, {8, 0}}));
  const Step step = StepAt(0, 3, 0);
  const auto expect_refused = [&](const std::function<void()>& call, const std::string& part) {
    try {
      call();
      ADD_FAILURE() << "accepted; expected a refusal that says " << part;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_THAT(error.what(), HasSubstr(part));
    }
  };
  expect_refused([&] { store.Attend(0, step.q(), step.k(), step.v(), {}); }, "no step is open");
  expect_refused([&] { store.Commit(); }, "no step is open");
  RunStep(store, 3);
  const cache::StepRequest request{0, 3, 3};
  store.Begin({&request, 1});
  for (int64_t layer : {int64_t{-1}, int64_t{2}, int64_t{1} << 40}) {
    expect_refused([&] { store.Attend(layer, step.q(), step.k(), step.v(), {}); }, "layers 0 to 1");
  }
  expect_refused([&] { store.Attend(0, step.q(), StepAt(0, 2, 0).k(), step.v(), {}); }, "does not fit the step");
  expect_refused([&] { store.Attend(0, step.q(), step.v(), step.v(), {}); }, "differ in head size");
  expect_refused([&] { store.Attend(0, step.q(), step.q(), step.v(), {}); }, "differ in heads");
  expect_refused([&] { store.Attend(0, step.k(), step.k(), step.v(), {}); }, "2 heads");
  const Step half{step.tokens, mx::float16};
  expect_refused([&] { store.Attend(0, step.q(), half.k(), half.v(), {}); }, "another type");
  store.Abandon();
  EXPECT_EQ(store.sequences().length(), 3);
  KvStore fresh(ConfigOf(32, {{0, 0}, {8, 0}}));
  RunStep(fresh, 3);
  EXPECT_EQ(RunStep(store, 4), RunStep(fresh, 4));
  EXPECT_THROW(KvStore(ConfigOf(0, {{0, 0}})), Error);
  KvStoreConfig bad = ConfigOf(8, {{0, 0}});
  bad.initial_capacity = 0;
  EXPECT_THROW((KvStore(bad)), Error);
}

TEST_F(KvStoreTest, AttentionThatIsEvaluatedAfterItsStepIsRefused) {
  KvStore store(ConfigOf(32, {{0, 0}}));
  const cache::StepRequest request{0, 0, 2};
  const Step step = StepAt(0, 2, 0);
  store.Begin({&request, 1});
  auto late = std::get<mx::array>(store.Attend(0, step.q(), step.k(), step.v(), {}));
  store.Abandon();
  EXPECT_THROW(mx::eval(late), Error);
}

TEST_F(KvStoreTest, ResultsComeInTheTypeThatIsAskedFor) {
  for (const mx::Dtype type : {mx::float32, mx::float16, mx::bfloat16, mx::int8, mx::float64, mx::bool_}) {
    KvStore store(ConfigOf(32, {{0, 0}}));
    const cache::StepRequest request{0, 0, 7};
    const Step step = StepAt(0, 7, 0);
    AttendOptions options;
    options.out_dtype = type;
    store.Begin({&request, 1});
    auto out = std::get<mx::array>(store.Attend(0, step.q(), step.k(), step.v(), options));
    auto wide = std::get<mx::array>(store.Attend(0, step.q(), step.k(), step.v(), {}));
    mx::eval(out, wide);
    store.Commit();
    EXPECT_EQ(out.dtype(), type);
    EXPECT_TRUE(mx::array_equal(out, mx::astype(wide, type)).item<bool>());
  }
}

TEST_F(KvStoreTest, AStepWhoseAttentionWasNotEvaluatedIsNotCommitted) {
  KvStore store(ConfigOf(32, {{0, 0}, {8, 0}}));
  RunStep(store, 3);
  const cache::StepRequest request{0, 3, 2};
  store.Begin({&request, 1});
  std::vector<mx::array> results;
  for (int64_t layer = 0; layer < 2; ++layer) {
    const Step step = StepAt(3, 2, layer);
    results.push_back(std::get<mx::array>(store.Attend(layer, step.q(), step.k(), step.v(), {})));
  }
  mx::eval(results[1]);
  try {
    store.Commit();
    ADD_FAILURE() << "committed without the rows of layer 0";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("not evaluated"));
  }
  EXPECT_EQ(store.sequences().length(), 3);
  KvStore fresh(ConfigOf(32, {{0, 0}, {8, 0}}));
  RunStep(fresh, 3);
  EXPECT_EQ(RunStep(store, 2), RunStep(fresh, 2));
}

// Work that is still under way when its step ends is waited for, or not begun: memory may be given back at once.
TEST_F(KvStoreTest, AStepMayBeAbandonedWhileItIsEvaluated) {
  KvStore store(ConfigOf(4096, {{0, 0}}, 4096));
  for (int round = 0; round < 20; ++round) {
    const cache::StepRequest request{0, 0, 300};
    store.Begin({&request, 1});
    const Step step = StepAt(0, 300, 0);
    auto out = std::get<mx::array>(store.Attend(0, step.q(), step.k(), step.v(), {}));
    mx::async_eval(out);
    store.Abandon();
    store.Release();
    mx::eval(out);
  }
  RunStep(store, 2);
  EXPECT_EQ(store.sequences().length(), 2);
}

TEST_F(KvStoreTest, OperandsMayHaveAnyStrides) {
  const Step step = StepAt(0, 6, 0);
  const auto run = [&](const std::function<mx::array(const mx::array&)>& lay_out) {
    KvStore store(ConfigOf(32, {{0, 0}}));
    const cache::StepRequest request{0, 0, 6};
    store.Begin({&request, 1});
    auto out = std::get<mx::array>(store.Attend(0, lay_out(step.q()), lay_out(step.k()), lay_out(step.v()), {}));
    mx::eval(out);
    store.Commit();
    return out;
  };
  const mx::array expected = run([](const mx::array& x) { return x; });
  const auto same = [&](const mx::array& out) { return mx::array_equal(out, expected).item<bool>(); };
  EXPECT_TRUE(same(run([](const mx::array& x) { return mx::contiguous(x); })));
  // The innermost axis with a stride: every second element of something wider, and a transposed copy.
  EXPECT_TRUE(same(run([](const mx::array& x) {
    const mx::array wide = mx::contiguous(mx::stack({x, mx::negative(x)}, 4));
    return mx::squeeze(mx::slice(wide, {0, 0, 0, 0, 0}, {1, x.shape(1), x.shape(2), x.shape(3), 1}), 4);
  })));
  EXPECT_TRUE(same(run([](const mx::array& x) {
    return mx::transpose(mx::contiguous(mx::transpose(x, {0, 3, 2, 1})), {0, 3, 2, 1});
  })));
}

TEST_F(KvStoreTest, ArrayPoolsAreUpdatedInPlaceAndSurviveAnAbandonedStep) {
  KvStoreConfig config = ConfigOf(4096, {{0, 0}}, 4096);
  config.fused = false;
  config.initial_capacity = 4096;
  KvStore store(config);
  RunStep(store, 5);
  const auto second = RunStep(store, 3);
  const int64_t pool = store.memory().reserved;
  mx::reset_peak_memory();
  const size_t active = mx::get_active_memory();
  RunStep(store, 1);
  EXPECT_LT(mx::get_peak_memory() - active, static_cast<size_t>(pool) / 2) << "an update copied the pool";
  // A step of which nothing was evaluated, then one that is evaluated and abandoned.
  store.Rewind(5);
  for (const bool evaluates : {false, true}) {
    const cache::StepRequest request{0, 5, 4};
    store.Begin({&request, 1});
    const Step step = StepAt(100, 4, 0);
    auto spec = std::get<AttendSpec>(store.Attend(0, step.q(), step.k(), step.v(), {}));
    if (evaluates) mx::eval(spec.k, spec.v);
    store.Abandon();
  }
  EXPECT_EQ(RunStep(store, 3), second);
}

TEST_F(KvStoreTest, SeveralNodesMayShareALayer) {
  KvStore store(ConfigOf(32, {{8, 0}}));
  const auto run = [&](int64_t count) {
    const int64_t position = store.sequences().length();
    const cache::StepRequest request{0, position, count};
    store.Begin({&request, 1});
    const Step step = StepAt(position, count, 0);
    auto first = std::get<mx::array>(store.Attend(0, step.q(), step.k(), step.v(), {}));
    auto second = std::get<mx::array>(store.Attend(0, step.q(), step.k(), step.v(), {}));
    mx::eval(first, second);
    store.Commit();
    return mx::array_equal(first, second).item<bool>();
  };
  for (int64_t chunk : {3, 7, 1, 6}) EXPECT_TRUE(run(chunk));
}

TEST_F(KvStoreTest, AnExplicitMaskHidesOnTopOfThePlan) {
  for (const bool fused : {true, false}) {
    SCOPED_TRACE(fused ? "fused" : "by spec");
    KvStoreConfig config = ConfigOf(32, {{0, 0}});
    config.fused = fused;
    KvStore store(config);
    KvStore alone(ConfigOf(32, {{1, 0}}));  // sees itself only
    for (int64_t chunk : {3, 2}) {
      const int64_t position = store.sequences().length();
      const cache::StepRequest request{0, position, chunk};
      const Step step = StepAt(position, chunk, 0);
      AttendOptions options;
      const auto keys = static_cast<int>(position + chunk);
      options.mask = mx::eye(static_cast<int>(chunk), keys, static_cast<int>(position), mx::bool_);
      store.Begin({&request, 1});
      alone.Begin({&request, 1});
      auto answer = store.Attend(0, step.q(), step.k(), step.v(), options);
      mx::array masked =
          fused ? std::get<mx::array>(answer) : AttendBySpec(step.q(), std::get<AttendSpec>(answer), 1.0F);
      mx::array expected = std::get<mx::array>(alone.Attend(0, step.q(), step.k(), step.v(), {}));
      EXPECT_TRUE(mx::allclose(masked, expected, 1e-6, 1e-6).item<bool>());
      store.Commit();
      alone.Commit();
    }
  }
}

}  // namespace
}  // namespace offgraph::bytes
