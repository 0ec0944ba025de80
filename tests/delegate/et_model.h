// A language model in ExecuTorch's runtime, and what its authors' reference says, for tests.
#pragma once

#include <executorch/extension/module/module.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "offgraph/delegate/caches.h"

namespace offgraph::testing {

// Logits of a step, [tokens, vocab], as float whatever the model's type.
struct Logits {
  int64_t tokens = 0;
  int64_t vocab = 0;
  std::vector<float> values;

  std::span<const float> row(int64_t token) const {
    return std::span(values).subspan(static_cast<size_t>(token * vocab), static_cast<size_t>(vocab));
  }
  int64_t Best(int64_t token) const;
};

class EtModel {
 public:
  // Opens the program; the method is loaded with the first step, or by Load. `cache_key` becomes the runtime spec of
  // that name; empty: none.
  explicit EtModel(const std::string& path, const std::string& cache_key = "");

  executorch::runtime::Error Load() { return module_.load_method("forward"); }

  // One call of the method with tokens at positions [position, position + tokens). The error in `error`, where it is
  // not null; else any error is a failure of the test.
  Logits Step(std::span<const int64_t> tokens, int64_t position, executorch::runtime::Error* error = nullptr);
  // The same in steps of at most `chunk` tokens; the logits of all of them.
  Logits Steps(std::span<const int64_t> tokens, int64_t position, int64_t chunk);

  // The numbers that a constant method returns.
  std::vector<int64_t> Constant(const std::string& method);
  // The cache that the program's constant methods describe.
  delegate::CacheDefinition Definition(delegate::KvDtype kv_dtype = delegate::KvDtype::kSame);

  executorch::extension::Module& module() { return module_; }

 private:
  executorch::extension::Module module_;
};

// A fixture's tokens, and logits [tokens, vocab] that were computed with no cache at all.
struct Reference {
  std::vector<int64_t> ids;
  Logits logits;
};
// Reads FILE.safetensors. Throws std::runtime_error where it is not what a fixture is.
Reference ReadReference(const std::string& path);

// The largest difference between two rows.
float LargestDifference(std::span<const float> a, std::span<const float> b);

}  // namespace offgraph::testing
