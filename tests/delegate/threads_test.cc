// The plugin from several threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "et_model.h"

namespace offgraph::testing {
namespace {

const std::string kStories = OFFGRAPH_MODELS "/stories260K/stories260K.pte";
const std::vector<int64_t> kTokens = {1, 403, 407, 261, 378, 432, 383, 286, 261, 376};

void OnThread(const std::function<void()>& work) { std::thread(work).join(); }

TEST(PluginThreads, LoadRunAndDestroyOnDifferentThreads) {
  delegate::DefineCache("", EtModel(kStories).Definition());
  EtModel here(kStories);
  const Logits expected = here.Step(kTokens, 0);
  std::unique_ptr<EtModel> model;
  OnThread([&] {
    model = std::make_unique<EtModel>(kStories);
    EXPECT_EQ(model->Load(), executorch::runtime::Error::Ok);
  });
  for (int i = 0; i < 3; ++i) OnThread([&] { EXPECT_EQ(model->Step(kTokens, 0).values, expected.values); });
  OnThread([&] { model.reset(); });
}

TEST(PluginThreads, ModelsRunInParallel) {
  const delegate::CacheDefinition definition = EtModel(kStories).Definition();
  delegate::DefineCache("", definition);
  EtModel here(kStories);
  const Logits expected = here.Step(kTokens, 0);
  std::vector<std::thread> threads;
  threads.reserve(3);
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      // Two of them without a key, one with its own.
      const std::string key = t == 0 ? "parallel" : "";
      delegate::DefineCache(key, definition);
      EtModel model(kStories, key);
      for (int i = 0; i < 5; ++i) EXPECT_EQ(model.Steps(kTokens, 0, t + 1).values, expected.values);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(PluginThreads, TheErrorBelongsToItsThread) {
  offgraph_clear_error();
  OnThread([] {
    EXPECT_EQ(offgraph_cache_length("nobody has this"), -1);
    EXPECT_STRNE(offgraph_error(), "");
  });
  EXPECT_STREQ(offgraph_error(), "");
}

TEST(PluginThreads, ACacheMayBeReadWhileItsModelRuns) {
  delegate::DefineCache("watched", EtModel(kStories).Definition());
  EtModel model(kStories, "watched");
  ASSERT_EQ(model.Load(), executorch::runtime::Error::Ok);
  std::thread runner([&] {
    for (int i = 0; i < 10; ++i) model.Steps(kTokens, 0, 2);
  });
  for (int i = 0; i < 100; ++i) {
    EXPECT_LE(offgraph_cache_length("watched"), static_cast<int64_t>(kTokens.size()));
    offgraph_memory memory;
    EXPECT_EQ(offgraph_cache_memory("watched", &memory), 0);
  }
  runner.join();
}

}  // namespace
}  // namespace offgraph::testing
