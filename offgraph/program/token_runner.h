// TokenRunner: runs the steps of a language model's program, forward(input_ids [1, T] int64, cache_position [T] int64)
// -> logits [1, T, vocab], and holds the cache that it runs on. Tokens in, logits out; nothing of MLX shows here.
//
// The position of a step is never an argument: it is the length of the cache, which has one owner.
//
// A program whose cache is inside the graph (mutable buffers) runs as well. Its rows cannot be seen from here, so a
// rewind to anything but 0 is refused: a ring in the graph may have lost what the next query needs.
//
// Thread rule: one thread at a time per runner; different runners may run on different threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "offgraph/cache/sequence_cache.h"
#include "offgraph/program/host_tensor.h"
#include "offgraph/program/program.h"

namespace offgraph::program {

// How a program's cache is made. For a program whose cache is inside the graph only `cache.capacity` counts.
struct CacheOptions {
  cache::CacheConfig cache;
  // Storage of K and V: "fp32", "fp16", "bf16", or "same" (as the program computes them: no value changes).
  std::string kv_type = "same";
  // Rows that each pool takes at its first use; it doubles from there. REQUIRES: > 0.
  int64_t initial_capacity = 256;
  // Bytes that all pools together may hold; 0: no limit.
  int64_t memory_limit = 0;
  // Bytes that a step may take beside them, and the program's mutable buffers and init chain before the first; 0: no
  // limit. See RunOptions and ExecutorOptions.
  int64_t step_memory_limit = 0;
};

// Bytes of K and V. All 0 where the cache is inside the graph.
struct CacheMemory {
  int64_t in_use = 0;    // rows that hold live positions
  int64_t reserved = 0;  // what the pools hold now
  int64_t peak = 0;      // the most that `reserved` was
};

struct StepOptions {
  bool all_rows = false;  // logits of all tokens, not of the last one alone
  // Asked while the step is prepared; true ends it with Error(kCancelled). May be empty.
  std::function<bool()> cancelled{};
};

class TokenRunner {
 public:
  // Throws kUnsupported where the program's inputs or outputs are others than the above, naming them, and
  // kInvalidArgument for options out of range or a kv_type that is not listed.
  TokenRunner(std::shared_ptr<const Program> program, const CacheOptions& options);
  ~TokenRunner();
  TokenRunner(const TokenRunner&) = delete;
  TokenRunner& operator=(const TokenRunner&) = delete;

  // Runs tokens at positions [length(), length() + tokens.size()) and returns the logits of the last one [vocab], or
  // of all [tokens, vocab]. The length moves only where this returns.
  // Throws kInvalidArgument for no tokens, kOutOfRange for more than LargestStep(), and what the program throws.
  std::vector<float> Step(std::span<const int64_t> tokens, const StepOptions& options = {});

  bool off_graph() const;  // false: the cache is inside the graph
  int64_t length() const;
  int64_t capacity() const;
  // The longest step that is possible now: what the cache and the program's declared shapes admit. 0: the cache is
  // full.
  int64_t LargestStep() const;
  // The lowest length that Rewind accepts now, apart from 0, which it always accepts.
  int64_t RewindBound() const;
  // Forgets positions >= length, exactly. Throws kOutOfRange below RewindBound(), kInvalidArgument above length().
  void Rewind(int64_t length);
  CacheMemory memory() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The sizes that TokenRunner expects of a program, read from its declaration. Throws as its constructor does.
struct TokenInterface {
  int64_t max_step = 0;  // largest T declared; 0: no bound
  int64_t vocab = 0;     // 0: not fixed by the declaration
  ScalarType logits_type = ScalarType::kFloat;
};
TokenInterface ReadTokenInterface(const Program& program);

}  // namespace offgraph::program
