// The exported functions, in C++ and in C: thin over the registry.
#include <mutex>

#include "offgraph/cache/error.h"
#include "offgraph/delegate/cache_registry.h"
#include "offgraph/delegate/caches.h"
#include "offgraph/delegate/last_error.h"
#include "offgraph/delegate/offgraph_executorch.h"
#include "offgraph/delegate/step_memory.h"

namespace offgraph::delegate {
namespace {

// Calls `use` with the group of `key`, when no step of it runs.
template <typename Use>
auto WithGroup(const std::string& key, const Use& use) {
  const std::shared_ptr<CacheGroup> group = CacheRegistry::Global().Find(key);
  const std::scoped_lock lock(group->mutex());
  return use(*group);
}

// Runs `call` for a C function named `name`. What it throws becomes -1 and the text of offgraph_error().
template <typename Call>
int64_t Guard(const char* name, const Call& call) {
  try {
    return call();
  } catch (const std::exception& error) {
    SetLastError(std::string(name) + ": " + error.what());
  } catch (...) {
    SetLastError(std::string(name) + ": an unknown exception");
  }
  return -1;
}

template <typename Pointer>
Pointer NotNull(Pointer argument, const char* name) {
  if (argument == nullptr) throw Error(ErrorCode::kInvalidArgument, std::string(name) + " is null");
  return argument;
}

}  // namespace

void DefineCache(const std::string& key, const CacheDefinition& definition) {
  CacheRegistry::Global().Define(key, definition);
}

int64_t CacheLength(const std::string& key) {
  return WithGroup(key, [](const CacheGroup& group) { return group.Length(); });
}

CacheMemory GetCacheMemory(const std::string& key) {
  return WithGroup(key, [](const CacheGroup& group) {
    const bytes::MemoryInfo memory = group.Memory();
    return CacheMemory{.in_use = memory.in_use, .reserved = memory.reserved, .peak = memory.peak};
  });
}

void RewindCache(const std::string& key, int64_t length) {
  WithGroup(key, [&](CacheGroup& group) { group.Rewind(length); });
}

void ClearCache(const std::string& key) {
  WithGroup(key, [](CacheGroup& group) { group.Clear(); });
}

void NameCache(const std::string& key) { CacheRegistry::Global().Name(key); }

void LimitStepMemory(int64_t bytes) { SetStepMemoryLimit(bytes); }

}  // namespace offgraph::delegate

using offgraph::delegate::Guard;
using offgraph::delegate::NotNull;

extern "C" {

int offgraph_define_cache(const char* key, const char* json) {
  return static_cast<int>(Guard("offgraph_define_cache", [&] {
    const auto definition = offgraph::delegate::ParseCacheDefinition(NotNull(json, "json"));
    offgraph::delegate::DefineCache(NotNull(key, "key"), definition);
    return 0;
  }));
}

int64_t offgraph_cache_length(const char* key) {
  return Guard("offgraph_cache_length", [&] { return offgraph::delegate::CacheLength(NotNull(key, "key")); });
}

int offgraph_cache_memory(const char* key, offgraph_memory* memory) {
  return static_cast<int>(Guard("offgraph_cache_memory", [&] {
    const auto found = offgraph::delegate::GetCacheMemory(NotNull(key, "key"));
    *NotNull(memory, "memory") = {found.in_use, found.reserved, found.peak};
    return 0;
  }));
}

int offgraph_cache_rewind(const char* key, int64_t length) {
  return static_cast<int>(Guard("offgraph_cache_rewind", [&] {
    offgraph::delegate::RewindCache(NotNull(key, "key"), length);
    return 0;
  }));
}

int offgraph_cache_clear(const char* key) {
  return static_cast<int>(Guard("offgraph_cache_clear", [&] {
    offgraph::delegate::ClearCache(NotNull(key, "key"));
    return 0;
  }));
}

int offgraph_name_cache(const char* key) {
  return static_cast<int>(Guard("offgraph_name_cache", [&] {
    offgraph::delegate::NameCache(NotNull(key, "key"));
    return 0;
  }));
}

int offgraph_limit_step_memory(int64_t bytes) {
  return static_cast<int>(Guard("offgraph_limit_step_memory", [&] {
    offgraph::delegate::LimitStepMemory(bytes);
    return 0;
  }));
}

const char* offgraph_error(void) { return offgraph::delegate::LastError(); }

void offgraph_clear_error(void) { offgraph::delegate::SetLastError({}); }

}  // extern "C"
