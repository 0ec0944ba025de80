#include "offgraph/delegate/cache_registry.h"

#include <algorithm>
#include <numeric>

#include "offgraph/cache/config.h"
#include "offgraph/cache/error.h"

namespace offgraph::delegate {
namespace {

Error Invalid(const std::string& what) { return {ErrorCode::kInvalidArgument, what}; }

std::string Quoted(const std::string& text) { return "\"" + text + "\""; }

bytes::KvType StorageType(KvDtype dtype) {
  switch (dtype) {
    case KvDtype::kFloat32:
      return bytes::KvType::kFloat32;
    case KvDtype::kFloat16:
      return bytes::KvType::kFloat16;
    case KvDtype::kBFloat16:
      return bytes::KvType::kBFloat16;
    case KvDtype::kSame:
      return bytes::KvType::kSame;
  }
  throw Error(ErrorCode::kInternal, "cache definition: a kv_dtype without storage type");
}

// REQUIRES: the definition is checked, and has a window for every layer or one for all.
bytes::KvStoreConfig StoreConfig(const CacheDefinition& definition, int64_t n_layers) {
  bytes::KvStoreConfig config;
  config.cache.capacity = definition.capacity;
  config.cache.n_layers = n_layers;
  config.cache.max_step = definition.max_step;
  config.cache.rewind_reserve = definition.rewind_reserve;
  config.cache.layers.clear();
  const size_t n_windows = definition.windows.size() == 1 ? 1 : static_cast<size_t>(n_layers);
  for (size_t i = 0; i < n_windows; ++i) {
    const int64_t window = definition.windows[i];
    config.cache.layers.push_back({.window = window, .sinks = window > 0 ? definition.sinks : 0});
  }
  config.k_type = config.v_type = StorageType(definition.kv_dtype.value());
  config.initial_capacity = std::min(definition.initial_capacity, definition.capacity);
  return config;
}

std::string CallToMake(const std::string& key) {
  return "offgraph_define_cache(" + Quoted(key) +
         R"(, "{\"capacity\": TOKENS, \"kv_dtype\": \"same\", \"windows\": WINDOWS}"))";
}

}  // namespace

CacheGroup::Fit CacheGroup::FitOf(const std::set<int64_t>& layers) const {
  Fit fit = Fit::kDisjoint;
  for (const Member& member : members_) {
    if (member.layers == layers) return Fit::kSame;
    const bool shared = std::any_of(layers.begin(), layers.end(), [&](int64_t l) { return member.layers.contains(l); });
    if (shared) fit = Fit::kOverlap;
  }
  return fit;
}

std::shared_ptr<bytes::KvStore> CacheGroup::StoreFor(const std::set<int64_t>& layers) {
  for (const Member& member : members_) {
    if (member.layers == layers) return member.store;
  }
  const int64_t n_layers = *layers.rbegin() + 1;
  members_.push_back({layers, std::make_shared<bytes::KvStore>(StoreConfig(definition_, n_layers))});
  return members_.back().store;
}

void CacheGroup::CheckComplete() const {
  const size_t windows = definition_.windows.size();
  const size_t layers = std::accumulate(members_.begin(), members_.end(), size_t{0},
                                        [](size_t sum, const Member& member) { return sum + member.layers.size(); });
  if (windows == 1 ? definition_.windows[0] == 0 || layers == 1 : layers == windows) return;
  throw Invalid("the model has " + std::to_string(layers) + " caches, and windows are defined for " +
                std::to_string(windows) + ": define one for each, or 0 where all attention is full");
}

int64_t CacheGroup::Length() const {
  const int64_t length = members_.front().store->sequences().length();
  for (const Member& member : members_) {
    if (member.store->sequences().length() != length) {
      throw Invalid("the parts of this model are at different lengths, " + std::to_string(length) + " and " +
                    std::to_string(member.store->sequences().length()) +
                    ": a call failed in between; clear the cache and start over");
    }
  }
  return length;
}

bytes::MemoryInfo CacheGroup::Memory() const {
  bytes::MemoryInfo sum;
  for (const Member& member : members_) {
    const bytes::MemoryInfo memory = member.store->memory();
    sum.in_use += memory.in_use;
    sum.reserved += memory.reserved;
    sum.peak += memory.peak;
  }
  return sum;
}

void CacheGroup::Rewind(int64_t length) {
  const auto last_bound = std::max_element(members_.begin(), members_.end(), [](const Member& a, const Member& b) {
    return a.store->sequences().RewindBound() < b.store->sequences().RewindBound();
  });
  // The one that can go back least decides: where it refuses, no other has moved yet.
  last_bound->store->Rewind(length);
  for (const Member& member : members_) {
    if (member.store != last_bound->store) member.store->Rewind(length);
  }
}

void CacheGroup::Clear() {
  for (const Member& member : members_) member.store->Clear();
}

void CacheRegistry::Define(const std::string& key, const CacheDefinition& definition) {
  Check(definition);
  const std::scoped_lock lock(mutex_);
  entries_[key].definition = definition;
}

const CacheDefinition& CacheRegistry::DefinitionFor(const std::string& key, const std::set<int64_t>& layers,
                                                    const std::string& method) const {
  const int64_t first = *layers.begin();
  const int64_t last = *layers.rbegin();
  if (first < 0 || last >= cache::kMaxLayers) {
    throw Invalid(method + ": cache layers " + std::to_string(first) + " to " + std::to_string(last) +
                  ", expected 0 to " + std::to_string(cache::kMaxLayers - 1) + " at most");
  }
  const auto entry = entries_.find(key);
  if (entry == entries_.end() || !entry->second.definition) {
    const std::string spec = key.empty() ? "no runtime spec cache_key" : "the runtime spec cache_key = " + Quoted(key);
    throw Invalid(method + " needs a KV cache of " + std::to_string(layers.size()) +
                  " layers, and none is defined: it "
                  "is loaded with " +
                  spec + ". Before it is loaded, call " + CallToMake(key) +
                  ", where WINDOWS is what the program's method get_windows says, or 0 where all are 0");
  }
  const CacheDefinition& definition = *entry->second.definition;
  const auto n_windows = static_cast<int64_t>(definition.windows.size());
  const bool one_for_all = n_windows == 1 && definition.windows[0] == 0;
  if (!one_for_all && last >= n_windows) {
    throw Invalid(method + " has a cache layer " + std::to_string(last) + ", and the definition of key " + Quoted(key) +
                  " has windows for " + std::to_string(n_windows) +
                  " layers. Define one window for each: " + CallToMake(key));
  }
  return definition;
}

CacheLease CacheRegistry::Acquire(const std::string& key, const std::vector<program::CacheLayerInfo>& layers,
                                  const std::string& method) {
  std::set<int64_t> ids;
  for (const program::CacheLayerInfo& layer : layers) ids.insert(layer.layer_id);

  const std::scoped_lock lock(mutex_);
  const CacheDefinition& definition = DefinitionFor(key, ids, method);
  Entry& entry = entries_[key];
  std::shared_ptr<CacheGroup> group = entry.group.lock();
  if (group != nullptr && !(group->definition() == definition)) group = nullptr;
  if (group != nullptr) {
    const std::scoped_lock group_lock(group->mutex());
    const CacheGroup::Fit fit = group->FitOf(ids);
    // Without a key nobody said that two methods share a cache; only parts of one method go together.
    const bool own = key.empty() && fit != CacheGroup::Fit::kDisjoint;
    if (!own && fit == CacheGroup::Fit::kOverlap) {
      throw Invalid(method + ": key " + Quoted(key) +
                    " is in use by a method that has some of this method's cache "
                    "layers and not the same ones. Load it with another cache_key");
    }
    if (!own) return {group, group->StoreFor(ids)};
  }
  group = std::make_shared<CacheGroup>(definition);
  CacheLease lease{group, group->StoreFor(ids)};
  entry.group = group;
  return lease;
}

std::shared_ptr<CacheGroup> CacheRegistry::Find(const std::string& key) const {
  const std::scoped_lock lock(mutex_);
  const auto entry = entries_.find(key);
  if (entry != entries_.end()) {
    if (auto group = entry->second.group.lock()) return group;
  }
  throw Invalid(key.empty() ? std::string("no method is loaded that has a cache and no cache_key")
                            : "no method is loaded that has the cache " + Quoted(key));
}

void CacheRegistry::Name(const std::string& key) {
  if (key.empty()) throw Invalid("the name of a cache is empty");
  const std::shared_ptr<CacheGroup> group = Find("");
  const std::scoped_lock lock(mutex_);
  Entry& entry = entries_[key];
  const auto present = entry.group.lock();
  if (present != nullptr && present != group) throw Invalid("a cache named " + Quoted(key) + " exists");
  if (!group->name.empty() && group->name != key) {
    throw Invalid("the cache of the method that was loaded last has the name " + Quoted(group->name));
  }
  group->name = key;
  entry.group = group;
}

CacheRegistry& CacheRegistry::Global() {
  // Never destroyed: methods may be destroyed by static destructors that run later.
  static CacheRegistry& registry = *new CacheRegistry;
  return registry;
}

}  // namespace offgraph::delegate
