#include "offgraph/delegate/cache_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "offgraph/cache/error.h"
#include "offgraph/cache/error_test_util.h"

namespace offgraph::delegate {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Layers = std::vector<program::CacheLayerInfo>;

Layers LayersFrom(int64_t first, int64_t count) {
  Layers layers;
  for (int64_t id = first; id < first + count; ++id) layers.push_back({.layer_id = id, .nodes = 1});
  return layers;
}

CacheDefinition Definition(std::vector<int64_t> windows = {0}) {
  return {.capacity = 64, .kv_dtype = KvDtype::kSame, .windows = std::move(windows), .max_step = 8};
}

template <typename Call>
std::string Refusal(const Call& call) {
  return offgraph::Refusal(ErrorCode::kInvalidArgument, call);
}

// One step of `tokens`, without K and V: the lengths are what this file is about.
void Step(bytes::KvStore& store, int64_t tokens) {
  const cache::StepRequest request = {.position = store.sequences().length(), .tokens = tokens};
  store.Begin({&request, 1});
  store.Commit();
}

TEST(CacheRegistry, WithoutDefinitionTheCallToMakeIsNamed) {
  CacheRegistry registry;
  EXPECT_THAT(Refusal([&] { registry.Acquire("", LayersFrom(0, 5), "method 'forward'"); }),
              AllOf(HasSubstr("method 'forward' needs a KV cache of 5 layers"), HasSubstr("no runtime spec cache_key"),
                    HasSubstr("offgraph_define_cache(\"\", ")));
  registry.Define("other", Definition());
  EXPECT_THAT(Refusal([&] { registry.Acquire("chat", LayersFrom(0, 5), "m"); }),
              AllOf(HasSubstr("cache_key = \"chat\""), HasSubstr("offgraph_define_cache(\"chat\", ")));
}

TEST(CacheRegistry, DefinitionsAreChecked) {
  CacheRegistry registry;
  EXPECT_THAT(Refusal([&] { registry.Define("", {}); }), HasSubstr("capacity is 0"));
  EXPECT_THAT(Refusal([&] { registry.Find(""); }), HasSubstr("no method is loaded"));
}

TEST(CacheRegistry, ADefinitionMakesTheStore) {
  CacheRegistry registry;
  CacheDefinition definition = Definition({16, 0, 16});
  definition.sinks = 4;
  definition.kv_dtype = KvDtype::kFloat16;
  definition.initial_capacity = 1000;
  definition.rewind_reserve = 3;
  registry.Define("", definition);
  const CacheLease lease = registry.Acquire("", LayersFrom(0, 3), "m");
  const bytes::KvStoreConfig& config = lease.store->config();
  EXPECT_EQ(config.cache.capacity, 64);
  EXPECT_EQ(config.cache.n_layers, 3);
  EXPECT_EQ(config.cache.max_step, 8);
  EXPECT_EQ(config.cache.rewind_reserve, 3);
  ASSERT_EQ(config.cache.layers.size(), 3);
  EXPECT_EQ(config.cache.layers[0].window, 16);
  EXPECT_EQ(config.cache.layers[0].sinks, 4);
  EXPECT_EQ(config.cache.layers[1].window, 0);
  EXPECT_EQ(config.cache.layers[1].sinks, 0);
  EXPECT_EQ(config.k_type, bytes::KvType::kFloat16);
  EXPECT_EQ(config.v_type, bytes::KvType::kFloat16);
  EXPECT_EQ(config.initial_capacity, 64);
}

TEST(CacheRegistry, MethodsWithOneKeyAndTheSameLayersShare) {
  CacheRegistry registry;
  registry.Define("chat", Definition());
  const CacheLease prefill = registry.Acquire("chat", LayersFrom(0, 4), "prefill");
  registry.Define("chat", Definition());  // the same again changes nothing
  const CacheLease decode = registry.Acquire("chat", LayersFrom(0, 4), "decode");
  EXPECT_EQ(prefill.store, decode.store);
  EXPECT_EQ(prefill.group, decode.group);
  EXPECT_THAT(Refusal([&] { registry.Acquire("chat", LayersFrom(0, 5), "m"); }),
              AllOf(HasSubstr("m: key \"chat\" is in use"), HasSubstr("another cache_key")));
  registry.Define("other", Definition());
  EXPECT_NE(registry.Acquire("other", LayersFrom(0, 4), "m").store, prefill.store);
}

TEST(CacheRegistry, WithoutKeyEachMethodHasItsOwn) {
  CacheRegistry registry;
  registry.Define("", Definition());
  const CacheLease first = registry.Acquire("", LayersFrom(0, 4), "m");
  const CacheLease second = registry.Acquire("", LayersFrom(0, 4), "m");
  EXPECT_NE(first.store, second.store);
  EXPECT_EQ(registry.Find(""), second.group);
}

TEST(CacheRegistry, ANewDefinitionMakesANewCacheAndLeavesTheOld) {
  CacheRegistry registry;
  registry.Define("chat", Definition());
  const CacheLease old = registry.Acquire("chat", LayersFrom(0, 4), "m");
  Step(*old.store, 3);
  registry.Define("chat", Definition({8, 8, 8, 0}));
  EXPECT_EQ(registry.Find("chat"), old.group);
  const CacheLease fresh = registry.Acquire("chat", LayersFrom(0, 4), "m");
  EXPECT_EQ(registry.Find("chat"), fresh.group);
  EXPECT_NE(fresh.store, old.store);
  EXPECT_EQ(old.store->sequences().length(), 3);
  EXPECT_EQ(fresh.store->config().cache.layers[0].window, 8);
}

TEST(CacheRegistry, ACacheLivesAsLongAsAMethodUsesIt) {
  CacheRegistry registry;
  registry.Define("chat", Definition());
  auto lease = std::make_unique<CacheLease>(registry.Acquire("chat", LayersFrom(0, 4), "m"));
  Step(*lease->store, 3);
  EXPECT_EQ(registry.Find("chat")->Length(), 3);
  lease.reset();
  EXPECT_THAT(Refusal([&] { registry.Find("chat"); }), HasSubstr("no method is loaded that has the cache \"chat\""));
  EXPECT_EQ(registry.Acquire("chat", LayersFrom(0, 4), "m").store->sequences().length(), 0);
}

TEST(CacheRegistry, PartsOfAMethodGoTogether) {
  for (const std::string key : {"", "chat"}) {
    CacheRegistry registry;
    registry.Define(key, Definition({8, 8, 0, 0}));
    const CacheLease front = registry.Acquire(key, LayersFrom(0, 2), "m");
    EXPECT_THAT(Refusal([&] { front.group->CheckComplete(); }),
                HasSubstr("the model has 2 caches, and windows are defined for 4"));
    const CacheLease back = registry.Acquire(key, LayersFrom(2, 2), "m");
    EXPECT_EQ(front.group, back.group);
    EXPECT_NE(front.store, back.store);
    front.group->CheckComplete();

    Step(*front.store, 5);
    EXPECT_THAT(Refusal([&] { front.group->Length(); }), HasSubstr("different lengths, 5 and 0"));
    Step(*back.store, 5);
    EXPECT_EQ(front.group->Length(), 5);
    front.group->Rewind(4);
    EXPECT_EQ(back.store->sequences().length(), 4);
    front.group->Clear();
    EXPECT_EQ(front.group->Length(), 0);
  }
}

TEST(CacheRegistry, ARewindMovesAllPartsOrNone) {
  CacheRegistry registry;
  registry.Define("", Definition({8, 8, 0, 0}));
  const CacheLease ring = registry.Acquire("", LayersFrom(0, 2), "m");
  const CacheLease flat = registry.Acquire("", LayersFrom(2, 2), "m");
  for (int i = 0; i < 5; ++i) {
    Step(*ring.store, 8);
    Step(*flat.store, 8);
  }
  EXPECT_THROW(ring.group->Rewind(3), Error);
  EXPECT_EQ(ring.store->sequences().length(), 40);
  EXPECT_EQ(flat.store->sequences().length(), 40);
  EXPECT_THROW(ring.group->Rewind(41), Error);
  ring.group->Rewind(0);
  EXPECT_EQ(ring.group->Length(), 0);
}

TEST(CacheRegistry, WindowsMustFitTheLayers) {
  CacheRegistry registry;
  registry.Define("", Definition({8, 8, 8}));
  EXPECT_THAT(Refusal([&] { registry.Acquire("", LayersFrom(0, 4), "m"); }),
              AllOf(HasSubstr("m has a cache layer 3"), HasSubstr("windows for 3 layers")));
  registry.Define("", Definition({8}));
  EXPECT_THAT(Refusal([&] { registry.Acquire("", LayersFrom(0, 4), "m"); }), HasSubstr("windows for 1 layers"));
  registry.Acquire("", LayersFrom(0, 1), "m").group->CheckComplete();
  registry.Define("", Definition({8, 8, 8, 8, 8}));
  EXPECT_THAT(Refusal([&] { registry.Acquire("", LayersFrom(0, 4), "m").group->CheckComplete(); }),
              HasSubstr("the model has 4 caches, and windows are defined for 5"));
}

TEST(CacheRegistry, LayersOutOfRangeAreRefused) {
  CacheRegistry registry;
  registry.Define("", Definition());
  EXPECT_THAT(Refusal([&] { registry.Acquire("", LayersFrom(-1, 2), "m"); }), HasSubstr("-1 to 0"));
  EXPECT_THAT(Refusal([&] { registry.Acquire("", LayersFrom(int64_t{1} << 40, 1), "m"); }), HasSubstr("at most"));
}

TEST(CacheRegistry, ANameReachesACacheAfterOthersAreLoaded) {
  CacheRegistry registry;
  EXPECT_THAT(Refusal([&] { registry.Name("one"); }), HasSubstr("no method is loaded"));
  registry.Define("", Definition());
  auto first = std::make_unique<CacheLease>(registry.Acquire("", LayersFrom(0, 4), "m"));
  registry.Name("one");
  registry.Name("one");  // it has that name already
  EXPECT_THAT(Refusal([&] { registry.Name("two"); }), HasSubstr("has the name \"one\""));
  const CacheLease second = registry.Acquire("", LayersFrom(0, 4), "m");
  EXPECT_EQ(registry.Find("one"), first->group);
  EXPECT_EQ(registry.Find(""), second.group);
  EXPECT_THAT(Refusal([&] { registry.Name("one"); }), HasSubstr("a cache named \"one\" exists"));
  EXPECT_THAT(Refusal([&] { registry.Name(""); }), HasSubstr("empty"));
  first.reset();
  registry.Name("one");
  EXPECT_EQ(registry.Find("one"), second.group);
}

TEST(CacheRegistry, ThreadsMayDefineLoadAndReadAtOnce) {
  CacheRegistry registry;
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&registry, t] {
      const std::string key = "key" + std::to_string(t % 2);
      for (int i = 0; i < 200; ++i) {
        registry.Define(key, Definition());
        const CacheLease lease = registry.Acquire(key, LayersFrom(0, 2), "m");
        const std::scoped_lock lock(lease.group->mutex());
        Step(*lease.store, 1);
        lease.group->Clear();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace offgraph::delegate
