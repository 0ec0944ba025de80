// What a user decides about the cache of a method.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace offgraph::delegate {

enum class KvDtype : uint8_t { kFloat32, kFloat16, kBFloat16, kSame };

struct CacheDefinition {
  // Tokens that a sequence may hold. REQUIRES: > 0.
  int64_t capacity = 0;
  // Storage type of K and V; kSame stores them as the model computes them. REQUIRES: set. There is no default, since
  // it decides both memory and accuracy.
  std::optional<KvDtype> kv_dtype;
  // One number per cache of the model, 0 for full attention; or {0}: full attention in all of them. REQUIRES: set.
  // There is no default, since the model's windows are known to nobody else.
  std::vector<int64_t> windows;
  // Rows that each cache takes at first; they double from there, up to the capacity. REQUIRES: > 0.
  int64_t initial_capacity = 256;
  // First tokens that stay visible for ever, in caches with a window. REQUIRES: >= 0, and 0 where no window is set.
  int64_t sinks = 0;
  // The longest step, in tokens, that caches with a window admit. REQUIRES: > 0.
  int64_t max_step = 512;
  // Rewinds by up to so many tokens are exact in caches with a window. REQUIRES: >= 0.
  int64_t rewind_reserve = 0;

  bool operator==(const CacheDefinition&) const = default;
};

// Throws Error(kInvalidArgument) that names the field, its value, and what it must be.
void Check(const CacheDefinition& definition);

// Reads the JSON that offgraph_define_cache takes, and checks it. Throws Error(kInvalidArgument): no JSON, no object,
// a name that is unknown, given twice or missing, a value of another type or out of range.
CacheDefinition ParseCacheDefinition(const std::string& json);

}  // namespace offgraph::delegate
