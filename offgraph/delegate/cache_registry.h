// Which caches exist, and which method runs on which. The functions of offgraph_executorch.h are thin over this.
//
// Thread rule: a registry may be used from any thread. A group's stores may be used only while its mutex is held.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "offgraph/bytes/kv_store.h"
#include "offgraph/delegate/cache_definition.h"
#include "offgraph/program/program.h"

namespace offgraph::delegate {

// The caches that belong together: those of one model. A program that ExecuTorch delegated as a whole has one; one
// that it delegated in parts has a cache for each part, with layers that the others do not have.
class CacheGroup {
 public:
  explicit CacheGroup(CacheDefinition definition) : definition_(std::move(definition)) {}

  const CacheDefinition& definition() const { return definition_; }

  // Given by CacheRegistry::Name, which guards it; empty where there is none.
  std::string name;

  enum class Fit : uint8_t {
    kSame,      // the group has a cache of exactly these layers
    kDisjoint,  // no cache of the group has any of these layers
    kOverlap    // a cache of the group has some of them
  };
  Fit FitOf(const std::set<int64_t>& layers) const;

  // The store of the cache with these layers; makes it where it does not exist. REQUIRES: not kOverlap.
  std::shared_ptr<bytes::KvStore> StoreFor(const std::set<int64_t>& layers);

  // Throws Error(kInvalidArgument) where windows are defined for layers that no part of the model has. To be asked
  // once all parts are loaded, that is, with the first step.
  void CheckComplete() const;

  // Throws Error(kInvalidArgument) where the parts of the model are at different lengths.
  int64_t Length() const;
  bytes::MemoryInfo Memory() const;
  // Rewinds all caches or none.
  void Rewind(int64_t length);
  void Clear();

  // Held by a step, and by whoever calls the methods above.
  std::mutex& mutex() const { return mutex_; }

 private:
  struct Member {
    std::set<int64_t> layers;
    std::shared_ptr<bytes::KvStore> store;
  };

  const CacheDefinition definition_;
  std::vector<Member> members_;
  mutable std::mutex mutex_;
};

// What a method holds while it is loaded.
struct CacheLease {
  std::shared_ptr<CacheGroup> group;
  std::shared_ptr<bytes::KvStore> store;
};

class CacheRegistry {
 public:
  // Throws what Check does.
  void Define(const std::string& key, const CacheDefinition& definition);

  // The cache of a method with these layers that is loaded with `key`. `method` is its name, for messages.
  // Throws Error(kInvalidArgument) where nothing is defined for the key (the message shows the call to make), where
  // the definition does not fit the layers, or the key is in use by a model with other layers.
  // REQUIRES: layers is not empty.
  CacheLease Acquire(const std::string& key, const std::vector<program::CacheLayerInfo>& layers,
                     const std::string& method);

  // The group that the functions by key mean. Throws Error(kInvalidArgument) where no method is loaded that uses it.
  std::shared_ptr<CacheGroup> Find(const std::string& key) const;

  // Names the group of the empty key. Throws Error(kInvalidArgument) where it does not exist or has another name, or
  // where `key` is empty or names a cache that exists.
  void Name(const std::string& key);

  // The registry of the process.
  static CacheRegistry& Global();

 private:
  struct Entry {
    std::optional<CacheDefinition> definition;
    std::weak_ptr<CacheGroup> group;
  };

  const CacheDefinition& DefinitionFor(const std::string& key, const std::set<int64_t>& layers,
                                       const std::string& method) const;

  mutable std::mutex mutex_;
  std::map<std::string, Entry> entries_;
};

}  // namespace offgraph::delegate
