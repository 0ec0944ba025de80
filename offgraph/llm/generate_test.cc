#include "offgraph/llm/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "offgraph/cache/error.h"

namespace offgraph::llm {
namespace {

using ::testing::EndsWith;
using ::testing::StartsWith;

const std::string kModel = std::string(OFFGRAPH_MODELS) + "/stories260K";
SamplerOptions WithTemperature(double temperature) {
  SamplerOptions options;
  options.temperature = temperature;
  return options;
}
const SamplerOptions kGreedy = WithTemperature(0);

std::shared_ptr<const Model> Stories() {
  static const std::shared_ptr<const Model> model = Model::Open(kModel);
  return model;
}

std::string Story() {
  std::ifstream file(kModel + "/story.txt");
  return {std::istreambuf_iterator<char>(file), {}};
}

// A session that holds the beginning-of-sequence token alone.
std::unique_ptr<Session> Start(const CacheOptions& options = {}) {
  auto session = std::make_unique<Session>(Stories(), options);
  session->Append(Stories()->EncodePrompt(""));
  return session;
}

TEST(GenerateTest, TellsTheStoryThatItsAuthorsPublish) {
  std::string streamed;
  const Reply reply =
      Generate(*Start(), {.sampler = kGreedy, .max_tokens = 255}, [&](std::string_view text) { streamed += text; });
  EXPECT_EQ(reply.text + "\n", Story());
  EXPECT_EQ(streamed, reply.text);
}

TEST(GenerateTest, GoesOnWhereItWasLeft) {
  const auto session = Start({.capacity = 300, .window = 32, .max_step = 8});
  const auto whole = Start({.capacity = 300, .window = 32, .max_step = 8});
  const Reply reference = Generate(*whole, {.sampler = kGreedy, .max_tokens = 60});
  std::vector<TokenId> tokens;
  std::string text;
  for (const int64_t limit : {1, 2, 30, 27}) {
    const Reply reply = Generate(*session, {.sampler = kGreedy, .max_tokens = limit});
    EXPECT_EQ(reply.reason, StopReason::kTokenLimit);
    tokens.insert(tokens.end(), reply.tokens.begin(), reply.tokens.end());
    text += reply.text;
  }
  EXPECT_EQ(tokens, reference.tokens);
  EXPECT_EQ(text, reference.text);
  EXPECT_EQ(session->tokens(), whole->tokens());
}

// A reply is written as what follows its prompt: the decoder drops a space at the beginning of a text, and of that
// only.
TEST(GenerateTest, TheReplyContinuesThePromptsText) {
  Session session(Stories());
  session.Append(Stories()->EncodePrompt("Once upon a"));
  const Reply reply = Generate(session, {.sampler = kGreedy, .max_tokens = 3});
  EXPECT_THAT(reply.text, StartsWith(" time"));
}

TEST(GenerateTest, StopStringsAlsoAcrossTokens) {
  for (const std::string stop : {"big, red", "g, r", "y. She lo", "a"}) {
    const Reply reply = Generate(*Start(), {.sampler = kGreedy, .max_tokens = 255, .stop = {"zzz", stop}});
    const std::string story = Story();
    EXPECT_EQ(reply.reason, StopReason::kStopString);
    EXPECT_EQ(reply.text, story.substr(0, story.find(stop))) << stop;
  }
  // What only begins a stop string is text.
  const Reply reply = Generate(*Start(), {.sampler = kGreedy, .max_tokens = 255, .stop = {"help you."}});
  EXPECT_EQ(reply.reason, StopReason::kTokenLimit);
  EXPECT_THAT(reply.text, EndsWith("help you"));
}

TEST(GenerateTest, AFullCacheEndsTheReply) {
  const auto session = Start({.capacity = 40});
  const Reply reply = Generate(*session, {.sampler = kGreedy});
  EXPECT_EQ(reply.reason, StopReason::kCacheFull);
  EXPECT_EQ(session->tokens().size(), 40U);
  EXPECT_EQ(reply.tokens.size(), 39U);
  EXPECT_THAT(Story(), StartsWith(reply.text));
  // Asked again there is nothing to add; after an undo there is.
  EXPECT_TRUE(Generate(*session, {.sampler = kGreedy}).tokens.empty());
  session->Truncate(30);
  EXPECT_EQ(Generate(*session, {.sampler = kGreedy}).tokens,
            std::vector<TokenId>(reply.tokens.begin() + 29, reply.tokens.end()));
}

TEST(GenerateTest, EndTokensEndUnlessTheyAreIgnored) {
  // The demo's end token never comes out on its own: a bias makes it the only one.
  const SamplerOptions only_end = {.temperature = 0, .logit_bias = {{2, 1e6F}}};
  ASSERT_THAT(Stories()->end_tokens(), ::testing::ElementsAre(2));
  const auto session = Start();
  const Reply reply = Generate(*session, {.sampler = only_end, .max_tokens = 5});
  EXPECT_EQ(reply.reason, StopReason::kEndToken);
  EXPECT_TRUE(reply.tokens.empty());
  EXPECT_EQ(session->tokens().size(), 1U);
  const Reply ignored = Generate(*session, {.sampler = only_end, .max_tokens = 5, .ignore_end = true});
  EXPECT_EQ(ignored.reason, StopReason::kTokenLimit);
  EXPECT_THAT(ignored.tokens, ::testing::ElementsAre(2, 2, 2, 2, 2));
  EXPECT_EQ(ignored.text, "");  // special tokens are not shown
}

TEST(GenerateTest, CancelKeepsWhatWasSaid) {
  const auto session = Start();
  int64_t steps = 0;
  std::string streamed;
  // Asked more than once a token: the count of tokens is what decides.
  const StepControl control = {.stop = [&] { return static_cast<int64_t>(session->tokens().size()) > 10; },
                               .progress = [&](int64_t, int64_t) { ++steps; }};
  const Reply reply = Generate(
      *session, {.sampler = kGreedy}, [&](std::string_view text) { streamed += text; }, control);
  EXPECT_EQ(reply.reason, StopReason::kCancelled);
  EXPECT_EQ(reply.tokens.size(), 10U);
  EXPECT_EQ(session->tokens().size(), 11U);
  EXPECT_EQ(streamed, reply.text);
  EXPECT_THAT(Story(), StartsWith(reply.text));
  EXPECT_GT(steps, 0);
  const Reply rest = Generate(*session, {.sampler = kGreedy, .max_tokens = 245});
  EXPECT_EQ(reply.text + rest.text + "\n", Story());
}

TEST(GenerateTest, SeedsRepeatAndDiffer) {
  const auto tokens = [](uint64_t seed) {
    return Generate(*Start(), {.sampler = WithTemperature(1), .seed = seed, .max_tokens = 30}).tokens;
  };
  EXPECT_EQ(tokens(1), tokens(1));
  EXPECT_NE(tokens(1), tokens(2));
}

TEST(GenerateTest, RefusesOptionsBeforeItComputes) {
  const auto session = Start();
  const int64_t computed = session->stats().computed;
  for (const GenerateOptions& options : {GenerateOptions{.sampler = WithTemperature(-1)},
                                         GenerateOptions{.max_tokens = -1}, GenerateOptions{.stop = {""}}}) {
    EXPECT_THROW(Generate(*session, options), Error);
  }
  EXPECT_EQ(session->stats().computed, computed);
  EXPECT_EQ(session->tokens().size(), 1U);
  Session empty(Stories());
  EXPECT_THROW(Generate(empty, {}), Error);
}

}  // namespace
}  // namespace offgraph::llm
