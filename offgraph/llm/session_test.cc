#include "offgraph/llm/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <thread>

#include "offgraph/cache/error.h"

namespace offgraph::llm {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<const Model> Stories() {
  static const std::shared_ptr<const Model> model = Model::Open(std::string(OFFGRAPH_MODELS) + "/stories260K");
  return model;
}

std::vector<TokenId> RandomTokens(std::mt19937& random, size_t count) {
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(3 + (random() % 509));
  return tokens;
}

std::vector<float> Copy(std::span<const float> values) { return {values.begin(), values.end()}; }

// What a session that never did anything else computes, token by token.
std::vector<float> Fresh(const std::vector<TokenId>& tokens, CacheOptions options) {
  options.rewind_reserve = 0;
  Session session(Stories(), options);
  for (const TokenId token : tokens) {
    session.Push(token);
    session.Logits();
  }
  return Copy(session.Logits());
}

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

template <typename Body>
Error Thrown(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return {ErrorCode::kInternal, ""};
}

struct Setup {
  const char* name;
  CacheOptions options;
};
// A capacity that is a multiple of nothing, rings that wrap many times, sinks, tiny steps.
std::vector<Setup> Setups() {
  return {
      {"flat", {.capacity = 130}},
      {"flat_grown", {.capacity = 130, .initial_capacity = 1, .max_step = 7}},
      {"fp16", {.capacity = 130, .kv_type = "fp16"}},
      {"ring", {.capacity = 130, .window = 16, .max_step = 5}},
      {"ring_sinks", {.capacity = 130, .window = 9, .sinks = 3, .max_step = 13}},
      {"ring_reserve", {.capacity = 130, .window = 16, .max_step = 8, .rewind_reserve = 10}},
  };
}

class SessionSetups : public ::testing::TestWithParam<Setup> {};

INSTANTIATE_TEST_SUITE_P(All, SessionSetups, ::testing::ValuesIn(Setups()),
                         [](const auto& setup) { return setup.param.name; });

// Any history of calls, refused and cancelled ones among them, ends in the logits of its tokens alone.
TEST_P(SessionSetups, LogitsDependOnTheTokensAlone) {
  const CacheOptions& options = GetParam().options;
  std::mt19937 random(20260101);
  Session session(Stories(), options);
  std::vector<TokenId> expected;
  for (int op = 0; op < 60; ++op) {
    SCOPED_TRACE(op);
    switch (random() % 6) {
      case 0: {
        const auto added = RandomTokens(random, 1 + (random() % 40));
        if (expected.size() + added.size() > 130) {
          EXPECT_EQ(Thrown([&] { session.Append(added); }).code(), ErrorCode::kOutOfRange);
        } else {
          session.Append(added);
          expected.insert(expected.end(), added.begin(), added.end());
        }
        break;
      }
      case 1:
        if (expected.size() == 130) break;
        expected.push_back(RandomTokens(random, 1).front());
        session.Push(expected.back());
        break;
      case 2:
        expected.resize(expected.size() - std::min<size_t>(expected.size(), random() % 12));
        session.Truncate(static_cast<int64_t>(expected.size()));
        break;
      case 3: {
        std::vector<TokenId> prompt(expected.begin(),
                                    expected.begin() + static_cast<int64_t>(random() % (expected.size() + 1)));
        const auto tail = RandomTokens(random, 1 + (random() % 20));
        prompt.insert(prompt.end(), tail.begin(), tail.end());
        prompt.resize(std::min<size_t>(prompt.size(), 130));
        session.SetTokens(prompt);
        expected = prompt;
        break;
      }
      case 4: {
        int steps = static_cast<int>(random() % 3);
        const StepControl cancel = {.stop = [&] { return steps-- == 0; }};
        const auto prompt = RandomTokens(random, 60);
        try {
          session.SetTokens(prompt, cancel);
          expected = prompt;
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::kCancelled);
        }
        break;
      }
      default:
        if (!expected.empty()) session.Logits();
    }
    ASSERT_EQ(session.tokens(), expected);
    ASSERT_LE(session.cached(), static_cast<int64_t>(expected.size()));
    if (op % 4 == 3 && !expected.empty()) {
      ASSERT_TRUE(SameBits(session.Logits(), Fresh(expected, options)));
    }
  }
}

TEST(SessionTest, ChunksOfEverySizeGiveTheSameBits) {
  std::mt19937 random(7);
  const auto tokens = RandomTokens(random, 67);
  const auto expected = Fresh(tokens, {});
  for (const int64_t chunk : {1, 2, 3, 15, 16, 17, 64, 66, 67, 512}) {
    Session session(Stories(), {.max_step = chunk});
    session.Append(tokens);
    EXPECT_TRUE(SameBits(session.Logits(), expected)) << chunk;
    EXPECT_EQ(session.stats().computed, 67);
  }
}

// In steps of any size, and the last row is what Logits gives.
TEST(SessionTest, EachRowHasTheLogitsOfItsToken) {
  std::mt19937 random(3);
  const std::vector<TokenId> tokens = RandomTokens(random, 20);
  Session one_by_one(Stories());
  std::vector<std::vector<float>> expected;
  for (const TokenId token : tokens) {
    one_by_one.Push(token);
    expected.push_back(Copy(one_by_one.Logits()));
  }
  for (const int64_t step : {1, 7, 20}) {
    Session session(Stories(), {.max_step = step});
    std::vector<std::vector<float>> rows;
    session.Append(tokens, {.each_row = [&](std::span<const float> row) { rows.push_back(Copy(row)); }});
    ASSERT_EQ(rows.size(), tokens.size());
    for (size_t i = 0; i < rows.size(); ++i) EXPECT_TRUE(SameBits(rows[i], expected[i])) << step << ", row " << i;
    EXPECT_TRUE(SameBits(session.Logits(), expected.back())) << step;
  }
}

TEST(SessionTest, AWindowChangesWhatIsComputedAndOnlyPastIt) {
  std::mt19937 random(8);
  const auto tokens = RandomTokens(random, 60);
  const std::vector<TokenId> start(tokens.begin(), tokens.begin() + 16);
  EXPECT_TRUE(SameBits(Fresh(start, {}), Fresh(start, {.window = 16})));
  EXPECT_FALSE(SameBits(Fresh(tokens, {}), Fresh(tokens, {.window = 16})));
  EXPECT_FALSE(SameBits(Fresh(tokens, {.window = 16}), Fresh(tokens, {.window = 16, .sinks = 2})));
  EXPECT_TRUE(SameBits(Fresh(tokens, {}), Fresh(tokens, {.window = 60})));
}

TEST(SessionTest, ReusesTheTrueCommonPrefixAndNoMore) {
  std::mt19937 random(9);
  const auto tokens = RandomTokens(random, 40);
  Session session(Stories());
  EXPECT_EQ(session.SetTokens(tokens), 0);
  EXPECT_EQ(session.SetTokens(tokens), 40);  // logits are there already

  auto changed = tokens;
  changed[25] = changed[25] == 3 ? 4 : 3;  // the tail is the same again: it must not count
  EXPECT_EQ(session.SetTokens(changed), 25);
  EXPECT_TRUE(SameBits(session.Logits(), Fresh(changed, {})));

  const std::vector<TokenId> shorter(changed.begin(), changed.begin() + 30);
  EXPECT_EQ(session.SetTokens(shorter), 29);  // the last token's logits are wanted
  EXPECT_TRUE(SameBits(session.Logits(), Fresh(shorter, {})));
  EXPECT_EQ(session.stats().reused, 40 + 25 + 29);
}

TEST(SessionTest, ARingThatLostItsRowsComputesAgain) {
  std::mt19937 random(10);
  const auto tokens = RandomTokens(random, 100);
  const CacheOptions options = {.window = 8, .max_step = 4};
  Session session(Stories(), options);
  session.Append(tokens);
  session.Truncate(50);
  EXPECT_EQ(session.cached(), 0);
  const std::vector<TokenId> kept(tokens.begin(), tokens.begin() + 50);
  EXPECT_TRUE(SameBits(session.Logits(), Fresh(kept, options)));

  Session reserve(Stories(), {.window = 8, .max_step = 4, .rewind_reserve = 50});
  reserve.Append(tokens);
  reserve.Truncate(51);
  EXPECT_EQ(reserve.cached(), 51);
}

TEST(SessionTest, CancelKeepsTheSequenceAndWhatWasComputedForIt) {
  std::mt19937 random(11);
  const auto first = RandomTokens(random, 20);
  const auto more = RandomTokens(random, 90);
  Session session(Stories(), {.max_step = 16});
  session.Append(first);
  const auto before = Copy(session.Logits());
  for (int steps = 0; steps < 6; ++steps) {
    int left = steps;
    const Error error = Thrown([&] { session.Append(more, {.stop = [&] { return left-- == 0; }}); });
    EXPECT_EQ(error.code(), ErrorCode::kCancelled);
    EXPECT_EQ(session.tokens(), first);
    EXPECT_EQ(session.cached(), 20);
    EXPECT_TRUE(SameBits(session.Logits(), before));
  }
  session.Append(more);
  auto all = first;
  all.insert(all.end(), more.begin(), more.end());
  EXPECT_TRUE(SameBits(session.Logits(), Fresh(all, {})));
}

TEST(SessionTest, ProgressCountsTheTokensThatAreComputed) {
  std::mt19937 random(12);
  Session session(Stories(), {.max_step = 16});
  session.Append(RandomTokens(random, 5));
  std::vector<std::pair<int64_t, int64_t>> calls;
  session.Append(RandomTokens(random, 40),
                 {.stop = {}, .progress = [&](int64_t done, int64_t total) { calls.emplace_back(done, total); }});
  EXPECT_THAT(calls, ::testing::ElementsAre(std::pair(16, 40), std::pair(32, 40), std::pair(40, 40)));
}

TEST(SessionTest, RefusesWhatDoesNotFitBeforeComputing) {
  Session session(Stories(), {.capacity = 8});
  const std::vector<TokenId> nine(9, 5);
  const Error error = Thrown([&] { session.Append(nine); });
  EXPECT_EQ(error.code(), ErrorCode::kOutOfRange);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("9 tokens"), HasSubstr("holds 8")));
  EXPECT_EQ(session.stats().computed, 0);
  session.Append(std::span(nine).first(8));
  EXPECT_EQ(Thrown([&] { session.Push(5); }).code(), ErrorCode::kOutOfRange);
  EXPECT_EQ(session.Logits().size(), 512U);
}

TEST(SessionTest, RefusesTokensOutsideTheVocabulary) {
  Session session(Stories());
  const std::vector<TokenId> start = {1, 2, 3};
  session.Append(start);
  for (const TokenId bad : {-1, 512, 1 << 30}) {
    const std::vector<TokenId> tokens = {4, bad, 5};
    EXPECT_EQ(Thrown([&] { session.Append(tokens); }).code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(Thrown([&] { session.SetTokens(tokens); }).code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(Thrown([&] { session.Push(bad); }).code(), ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(session.tokens(), start);
}

TEST(SessionTest, RefusesOptionsThatMeanNothing) {
  const std::vector<std::pair<CacheOptions, std::string>> cases = {
      {{.capacity = -1}, "capacity"}, {{.kv_type = "fp7"}, "fp7"},           {{.window = -3}, "window"},
      {{.sinks = 4}, "window"},       {{.window = 8, .sinks = -1}, "sinks"}, {{.initial_capacity = 0}, "0"},
      {{.max_step = -2}, "step"},
  };
  for (const auto& [options, part] : cases) {
    const CacheOptions& copy = options;
    const Error error = Thrown([&] { Session session(Stories(), copy); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << part;
    EXPECT_THAT(error.what(), HasSubstr(part));
  }
}

TEST(SessionTest, AnEmptySequenceHasNoLogits) {
  Session session(Stories());
  EXPECT_EQ(Thrown([&] { session.Logits(); }).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(Thrown([&] { session.SetTokens({}); }).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(Thrown([&] { session.Truncate(1); }).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(Thrown([&] { session.Truncate(-1); }).code(), ErrorCode::kInvalidArgument);
  session.Append({});
  EXPECT_TRUE(session.tokens().empty());
}

TEST(SessionTest, MemoryDoesNotGrowOverResets) {
  std::mt19937 random(13);
  Session session(Stories(), {.initial_capacity = 8});
  int64_t reserved = 0;
  for (int i = 0; i < 20; ++i) {
    session.Append(RandomTokens(random, 100));
    if (i == 0) reserved = session.memory().reserved;
    EXPECT_EQ(session.memory().reserved, reserved);
    session.Reset();
    EXPECT_EQ(session.cached(), 0);
  }
  EXPECT_GT(reserved, 0);
}

// A model with windows of its own beside full attention: whatever was taken back, its next logits are those of a fresh
// session, and an imposed window never widens one of the model's.
TEST(SessionTest, AModelWithWindowsOfItsOwn) {
  const std::string file = std::string(OFFGRAPH_SHARED) + "/fixtures/gemma3_text_fp32.pte";
  if (!std::filesystem::exists(file)) GTEST_SKIP() << file << " is not there";
  const auto model = Model::Open(file);
  ASSERT_THAT(model->info().windows, ::testing::ElementsAre(8, 8, 8, 0));
  std::mt19937 random(15);
  std::vector<TokenId> tokens(60);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random() % 320);
  const auto fresh = [&](size_t count, const CacheOptions& options) {
    Session session(model, options);
    session.Append(std::span(tokens).first(count));
    return Copy(session.Logits());
  };
  Session session(model, {.max_step = 3});
  session.Append(tokens);
  for (const int64_t length : {59, 40, 9, 8, 1}) {
    session.Truncate(length);
    EXPECT_TRUE(SameBits(session.Logits(), fresh(static_cast<size_t>(length), {.max_step = 7}))) << length;
  }
  EXPECT_TRUE(SameBits(fresh(60, {}), fresh(60, {.window = 60})));
  EXPECT_FALSE(SameBits(fresh(60, {}), fresh(60, {.window = 0})));
  EXPECT_FALSE(SameBits(fresh(60, {}), fresh(60, {.window = 16})));
}

// Of one model and of two, with a cache beside the graph and in it.
TEST(SessionTest, SessionsOnSeveralThreadsDoNotMeet) {
  const auto in_graph = Model::Open(OFFGRAPH_TEST_DATA "/programs/ring_in_graph.pte", {.with_text = false});
  const std::vector<TokenId> tokens = {1, 30, 7, 26, 8, 2, 3, 6, 1, 6, 29, 5};
  const auto run = [&tokens](Session& session) {
    std::vector<float> logits;
    for (int round = 0; round < 4; ++round) {
      session.Truncate(0);
      for (const TokenId token : tokens) {
        session.Push(token);
        logits = Copy(session.Logits());
      }
    }
    return logits;
  };
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<std::vector<float>> expected;
  for (const auto& model : {Stories(), Stories(), in_graph, in_graph}) {
    sessions.push_back(std::make_unique<Session>(model));
    Session alone(model);
    expected.push_back(run(alone));
  }
  std::vector<std::thread> threads;
  std::vector<int> same(sessions.size(), 0);
  for (size_t i = 0; i < sessions.size(); ++i) {
    threads.emplace_back([&, i] {
      same[i] = SameBits(run(*sessions[i]), expected[i]) ? 1 : 0;
      sessions[i].reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(same, ::testing::Each(1));
}

// Numbers of a file that no cache has.
TEST(SizeOfCacheTest, RefusesWhatCannotBeCounted) {
  ModelInfo info;
  info.name = "some.pte";
  info.n_caches = 2;
  info.windows = {0, 0};
  info.kv_heads = {2, int64_t{1} << 40};
  info.head_dims = {4, int64_t{1} << 40};
  info.max_context = 8;
  info.prefill_chunk = 8;
  info.logits_type = "fp32";
  try {
    SizeOfCache(info, {});
    FAIL() << "was counted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadFile);
    EXPECT_NE(std::string(error.what()).find("some.pte: cache 1 of 8 rows"), std::string::npos) << error.what();
  }
  info.kv_heads[1] = info.head_dims[1] = 1;
  EXPECT_EQ(SizeOfCache(info, {}).bytes, 2 * 8 * 4 * (2 * 4 + 1));
}

}  // namespace
}  // namespace offgraph::llm
