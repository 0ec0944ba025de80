// The caches and limits of methods that ExecuTorch runs: offgraph_executorch.h in C++, with types and exceptions.
//
// Keys, steps and the thread rule are described there. All functions throw offgraph::Error.
#pragma once

#include <cstdint>
#include <string>

#include "offgraph/delegate/cache_definition.h"
#include "offgraph/delegate/offgraph_executorch.h"

namespace offgraph::delegate {

struct CacheMemory {
  int64_t in_use = 0;    // bytes of K and V of the tokens in the cache
  int64_t reserved = 0;  // bytes that the cache holds now
  int64_t peak = 0;      // the most that it held
};

// kInvalidArgument, naming the field, for a definition that has no meaning.
OFFGRAPH_EXPORT void DefineCache(const std::string& key, const CacheDefinition& definition);

// kInvalidArgument where no loaded method has such a cache (all functions by key below).
OFFGRAPH_EXPORT int64_t CacheLength(const std::string& key);
OFFGRAPH_EXPORT CacheMemory GetCacheMemory(const std::string& key);
// kOutOfRange where a window has lost what the next token needs.
OFFGRAPH_EXPORT void RewindCache(const std::string& key, int64_t length);
OFFGRAPH_EXPORT void ClearCache(const std::string& key);
OFFGRAPH_EXPORT void NameCache(const std::string& key);

// kInvalidArgument for a negative number.
OFFGRAPH_EXPORT void LimitStepMemory(int64_t bytes);

}  // namespace offgraph::delegate
