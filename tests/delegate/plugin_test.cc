// Programs in ExecuTorch's C++ runtime on the plugin: results against references, and every refusal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "et_model.h"
#include "offgraph/cache/error.h"
#include "offgraph/delegate/caches.h"

namespace offgraph::testing {
namespace {

using delegate::CacheDefinition;
using delegate::KvDtype;
using executorch::runtime::Error;
using ::testing::AllOf;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

const std::string kStories = OFFGRAPH_MODELS "/stories260K/stories260K.pte";

// What the authors of stories260K publish as its greedy output, in tokens (the first is the beginning of sequence).
const std::vector<int64_t> kStory = {1,   403, 407, 261, 378, 432, 383, 286, 261, 376, 298, 315, 421, 395, 317, 426,
                                     338, 401, 396, 267, 337, 410, 408, 419, 292, 411, 322, 265, 282, 295, 433, 426};

constexpr const char* kAnyDefinition = R"({"capacity": 512, "kv_dtype": "same", "windows": 0})";

// A definition may outlive the test that made it: each starts from none that fits by accident.
class Plugin : public ::testing::Test {
 protected:
  void SetUp() override { offgraph_clear_error(); }
};

std::vector<int64_t> Greedy(EtModel& model, size_t tokens) {
  std::vector<int64_t> ids = {1};
  while (ids.size() < tokens) {
    const Logits logits = model.Step({&ids.back(), 1}, static_cast<int64_t>(ids.size()) - 1);
    if (logits.tokens != 1) break;
    ids.push_back(logits.Best(0));
  }
  return ids;
}

TEST_F(Plugin, TellsTheStory) {
  ASSERT_EQ(offgraph_define_cache("", kAnyDefinition), 0) << offgraph_error();
  EtModel model(kStories);
  EXPECT_THAT(Greedy(model, kStory.size()), ElementsAreArray(kStory));
  EXPECT_EQ(offgraph_cache_length(""), static_cast<int64_t>(kStory.size()) - 1);
}

TEST_F(Plugin, ChunksNeverChangeABit) {
  delegate::DefineCache("", EtModel(kStories).Definition());
  EtModel model(kStories);
  const Logits whole = model.Steps(kStory, 0, 512);
  for (const int64_t chunk : {1, 2, 3, 5, 7, 16}) {
    EXPECT_EQ(model.Steps(kStory, 0, chunk).values, whole.values) << "chunks of " << chunk;
  }
}

TEST_F(Plugin, ACallAtPositionZeroStartsOver) {
  delegate::DefineCache("", EtModel(kStories).Definition());
  EtModel model(kStories);
  const Logits first = model.Step(kStory, 0);
  const std::vector<int64_t> other = {5, 6, 7, 8};
  model.Step(other, 0);
  EXPECT_EQ(delegate::CacheLength(""), 4);
  EXPECT_EQ(model.Step(kStory, 0).values, first.values);
  EXPECT_EQ(delegate::CacheLength(""), static_cast<int64_t>(kStory.size()));
}

TEST_F(Plugin, ARewindIsExact) {
  delegate::DefineCache("", EtModel(kStories).Definition());
  EtModel model(kStories);
  const Logits whole = model.Step(kStory, 0);
  const std::vector<int64_t> other = {9, 10, 11};
  model.Step(other, delegate::CacheLength(""));
  const int64_t back = 6;
  delegate::RewindCache("", back);
  EXPECT_EQ(delegate::CacheLength(""), back);
  const Logits again = model.Step(std::span(kStory).subspan(back), back);
  for (int64_t i = 0; i < again.tokens; ++i) {
    EXPECT_EQ(LargestDifference(again.row(i), whole.row(back + i)), 0) << "row " << i;
  }
  EXPECT_EQ(offgraph_cache_rewind("", 1000), -1);
  EXPECT_THAT(offgraph_error(), HasSubstr("offgraph_cache_rewind: "));
  EXPECT_EQ(offgraph_cache_rewind("", -1), -1);
  EXPECT_EQ(offgraph_cache_clear(""), 0);
  EXPECT_EQ(offgraph_cache_length(""), 0);
}

TEST_F(Plugin, MemoryIsReported) {
  CacheDefinition definition = EtModel(kStories).Definition(KvDtype::kFloat16);
  definition.initial_capacity = 16;
  delegate::DefineCache("", definition);
  EtModel model(kStories);
  ASSERT_EQ(model.Load(), Error::Ok);
  offgraph_memory memory;
  ASSERT_EQ(offgraph_cache_memory("", &memory), 0);
  EXPECT_EQ(memory.in_use, 0);
  model.Step(kStory, 0);
  ASSERT_EQ(offgraph_cache_memory("", &memory), 0);
  // 5 layers, K and V, 4 heads of 8, 2 bytes.
  EXPECT_EQ(memory.in_use, static_cast<int64_t>(kStory.size()) * 5 * 2 * 4 * 8 * 2);
  EXPECT_GE(memory.reserved, memory.in_use);
  EXPECT_GE(memory.peak, memory.reserved);
  EXPECT_EQ(offgraph_cache_memory("", nullptr), -1);
  EXPECT_THAT(offgraph_error(), HasSubstr("memory is null"));
}

TEST_F(Plugin, ACallsMemoryIsLimited) {
  ASSERT_EQ(offgraph_define_cache("", kAnyDefinition), 0) << offgraph_error();
  EtModel model(kStories);
  ASSERT_EQ(model.Load(), Error::Ok) << offgraph_error();
  ASSERT_EQ(offgraph_limit_step_memory(1000), 0);
  Error error = Error::Ok;
  model.Step(kStory, 0, &error);
  EXPECT_EQ(error, Error::MemoryAllocationFailed);
  EXPECT_THAT(offgraph_error(), HasSubstr("its limit is 1000"));
  EXPECT_EQ(offgraph_limit_step_memory(-1), -1);
  EXPECT_THAT(offgraph_error(), HasSubstr("-1 bytes; expected 0 (no limit) or more"));
  ASSERT_EQ(offgraph_limit_step_memory(0), 0);
  EXPECT_THAT(Greedy(model, kStory.size()), ElementsAreArray(kStory));
}

TEST_F(Plugin, EveryStorageTypeTellsTheStory) {
  for (const KvDtype dtype : {KvDtype::kFloat32, KvDtype::kFloat16, KvDtype::kBFloat16, KvDtype::kSame}) {
    delegate::DefineCache("", EtModel(kStories).Definition(dtype));
    EtModel model(kStories);
    EXPECT_THAT(Greedy(model, 16), ElementsAreArray(std::span(kStory).first(16))) << static_cast<int>(dtype);
  }
}

TEST_F(Plugin, AMethodWithoutDefinitionIsRefusedWithTheCallToMake) {
  EtModel model(kStories, "nobody defined this");
  EXPECT_EQ(model.Load(), Error::InvalidArgument);
  EXPECT_THAT(offgraph_error(), AllOf(HasSubstr("method 'forward' needs a KV cache of 5 layers"),
                                      HasSubstr("cache_key = \"nobody defined this\""),
                                      HasSubstr("offgraph_define_cache(\"nobody defined this\", ")));
  ASSERT_EQ(offgraph_define_cache("nobody defined this", kAnyDefinition), 0);
  EXPECT_EQ(model.Load(), Error::Ok);
}

TEST_F(Plugin, ADefinitionThatDoesNotFitIsRefused) {
  EtModel model(kStories);
  ASSERT_EQ(offgraph_define_cache("", R"({"capacity": 64, "kv_dtype": "same", "windows": [0, 0, 0]})"), 0);
  EXPECT_EQ(model.Load(), Error::InvalidArgument);
  EXPECT_THAT(offgraph_error(), AllOf(HasSubstr("layer 4"), HasSubstr("windows for 3 layers")));
  ASSERT_EQ(offgraph_define_cache("", R"({"capacity": 64, "kv_dtype": "same", "windows": [0, 0, 0, 0, 0, 0]})"), 0);
  Error error = Error::Ok;
  model.Step(kStory, 0, &error);
  EXPECT_EQ(error, Error::InvalidArgument);
  EXPECT_THAT(offgraph_error(), HasSubstr("5 caches, and windows are defined for 6"));
}

TEST_F(Plugin, BadDefinitionsSayWhy) {
  EXPECT_NE(offgraph_define_cache("", "{"), 0);
  EXPECT_THAT(offgraph_error(), HasSubstr("offgraph_define_cache: cache definition: no valid JSON"));
  EXPECT_NE(offgraph_define_cache("", R"({"capacity": 64, "kv_dtype": "same", "windows": 0, "window": 1})"), 0);
  EXPECT_THAT(offgraph_error(), HasSubstr("unknown name \"window\""));
  EXPECT_NE(offgraph_define_cache(nullptr, kAnyDefinition), 0);
  EXPECT_THAT(offgraph_error(), HasSubstr("key is null"));
  EXPECT_NE(offgraph_define_cache("", nullptr), 0);
  EXPECT_THAT(offgraph_error(), HasSubstr("json is null"));
  offgraph_clear_error();
  EXPECT_STREQ(offgraph_error(), "");
  EXPECT_EQ(offgraph_cache_length("no such cache"), -1);
  EXPECT_THAT(offgraph_error(), HasSubstr("\"no such cache\""));
  EXPECT_THROW(delegate::CacheLength("no such cache"), offgraph::Error);
}

TEST_F(Plugin, GapsAndStepsBackAreRefusedAndTheNextRightStepWorks) {
  delegate::DefineCache("", EtModel(kStories).Definition());
  EtModel model(kStories);
  const Logits whole = model.Step(kStory, 0);
  model.Step(std::span(kStory).first(8), 0);
  for (const int64_t position : {9, 7, 1, 500}) {
    Error error = Error::Ok;
    model.Step(std::span(kStory).subspan(8, 1), position, &error);
    EXPECT_EQ(error, Error::InvalidArgument) << position;
    EXPECT_THAT(offgraph_error(), HasSubstr(std::to_string(position)));
    EXPECT_EQ(delegate::CacheLength(""), 8);
  }
  const Logits next = model.Step(std::span(kStory).subspan(8, 1), 8);
  EXPECT_EQ(LargestDifference(next.row(0), whole.row(8)), 0);
}

TEST_F(Plugin, AFullCacheIsRefusedAndStaysUsable) {
  CacheDefinition definition = EtModel(kStories).Definition();
  definition.capacity = 10;
  delegate::DefineCache("", definition);
  EtModel model(kStories);
  const Logits whole = model.Step(std::span(kStory).first(10), 0);
  Error error = Error::Ok;
  model.Step(std::span(kStory).first(11), 0, &error);
  EXPECT_EQ(error, Error::OutOfResources);
  EXPECT_EQ(model.Step(std::span(kStory).first(10), 0).values, whole.values);
  model.Step(std::span(kStory).first(1), 10, &error);
  EXPECT_EQ(error, Error::OutOfResources);
  EXPECT_THAT(offgraph_error(), HasSubstr("10"));
}

TEST_F(Plugin, MethodsThatShareAKeyShareTheCache) {
  delegate::DefineCache("shared", EtModel(kStories).Definition());
  EtModel one(kStories, "shared");
  EtModel two(kStories, "shared");
  const Logits whole = one.Step(kStory, 0);
  one.Step(std::span(kStory).first(8), 0);
  const Logits rest = two.Step(std::span(kStory).subspan(8), 8);
  for (int64_t i = 0; i < rest.tokens; ++i) EXPECT_EQ(LargestDifference(rest.row(i), whole.row(8 + i)), 0);
  EXPECT_EQ(delegate::CacheLength("shared"), static_cast<int64_t>(kStory.size()));
}

TEST_F(Plugin, KeysAndMethodsWithoutKeyAreApart) {
  const CacheDefinition definition = EtModel(kStories).Definition();
  for (const char* key : {"", "one", "two"}) delegate::DefineCache(key, definition);
  std::vector<std::unique_ptr<EtModel>> models;
  for (const char* key : {"", "", "one", "two"}) models.push_back(std::make_unique<EtModel>(kStories, key));
  const Logits whole = models[0]->Step(kStory, 0);
  // All four in turn, each at its own place of the story.
  std::vector<size_t> done(models.size(), 0);
  for (size_t round = 0; round < kStory.size(); ++round) {
    for (size_t m = 0; m < models.size(); ++m) {
      if (round < m) continue;
      const Logits step = models[m]->Step({&kStory[done[m]], 1}, static_cast<int64_t>(done[m]));
      EXPECT_EQ(LargestDifference(step.row(0), whole.row(static_cast<int64_t>(done[m]))), 0);
      ++done[m];
    }
  }
  EXPECT_EQ(delegate::CacheLength("one"), static_cast<int64_t>(kStory.size()) - 2);
  EXPECT_EQ(delegate::CacheLength("two"), static_cast<int64_t>(kStory.size()) - 3);
  models.pop_back();
  EXPECT_THROW(delegate::CacheLength("two"), offgraph::Error);
}

TEST_F(Plugin, ANameOutlivesLaterLoads) {
  delegate::DefineCache("", EtModel(kStories).Definition());
  EtModel one(kStories);
  one.Step(std::span(kStory).first(3), 0);
  ASSERT_EQ(offgraph_name_cache("first"), 0) << offgraph_error();
  EtModel two(kStories);
  two.Step(std::span(kStory).first(5), 0);
  EXPECT_EQ(offgraph_cache_length("first"), 3);
  EXPECT_EQ(offgraph_cache_length(""), 5);
}

// A window that the user imposes on a model with full attention: the same until it is full, then not.
TEST_F(Plugin, AnImposedWindowForgets) {
  CacheDefinition definition = EtModel(kStories).Definition();
  delegate::DefineCache("full", definition);
  definition.windows.assign(5, 8);
  delegate::DefineCache("window", definition);
  EtModel full(kStories, "full");
  EtModel window(kStories, "window");
  const Logits expected = full.Steps(kStory, 0, 4);
  const Logits got = window.Steps(kStory, 0, 4);
  for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(LargestDifference(got.row(i), expected.row(i)), 0) << i;
  EXPECT_GT(LargestDifference(got.row(got.tokens - 1), expected.row(got.tokens - 1)), 0);
}

// A fixture's path, without extension.
class PluginFixture : public ::testing::TestWithParam<std::string> {};

// How far logits may be from the reference, as a share of the largest logit: 2e-5 in fp32; in fp16 and bf16 the
// reference rounds after every op, by up to 2^-11 or 2^-8, and 16 times that is what the square root of its some 64
// roundings in a row leaves, twice.
float Bound(const std::string& name) {
  if (name.find("bf16") != std::string::npos) return std::ldexp(16.0F, -8);
  return name.find("fp16") != std::string::npos ? std::ldexp(16.0F, -11) : 2e-5F;
}

TEST_P(PluginFixture, AgreesWithItsReferenceInChunksOfEverySize) {
  const std::string& path = GetParam();
  const Reference reference = ReadReference(path + ".safetensors");
  const CacheDefinition definition = EtModel(path + ".pte").Definition();
  delegate::DefineCache("", definition);
  EtModel model(path + ".pte");
  const Logits logits = model.Steps(reference.ids, 0, 1);
  ASSERT_EQ(logits.vocab, reference.logits.vocab);
  const auto [least, most] = std::minmax_element(reference.logits.values.begin(), reference.logits.values.end());
  const float bound = Bound(path) * std::max(-*least, *most);
  for (int64_t i = 0; i < logits.tokens; ++i) {
    ASSERT_LE(LargestDifference(logits.row(i), reference.logits.row(i)), bound) << "token " << i;
  }
  const int64_t most_tokens = std::min<int64_t>(definition.max_step, logits.tokens);
  for (int64_t chunk = 2; chunk <= most_tokens; ++chunk) {
    ASSERT_EQ(model.Steps(reference.ids, 0, chunk).values, logits.values) << "chunks of " << chunk;
  }
}

// Those of tests/data, and all others where the shared folder has them.
std::vector<std::string> Fixtures() {
  std::map<std::string, std::string> paths;
  for (const char* folder : {OFFGRAPH_SHARED "/fixtures", OFFGRAPH_TEST_DATA "/fixtures"}) {
    if (!std::filesystem::exists(folder)) continue;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      std::filesystem::path path = entry.path();
      if (path.extension() == ".pte") paths[path.stem()] = path.replace_extension();
    }
  }
  std::vector<std::string> list;
  list.reserve(paths.size());
  for (const auto& [name, path] : paths) list.push_back(path);
  return list;
}

INSTANTIATE_TEST_SUITE_P(All, PluginFixture, ::testing::ValuesIn(Fixtures()),
                         [](const auto& one) { return std::filesystem::path(one.param).filename().string(); });

}  // namespace
}  // namespace offgraph::testing
