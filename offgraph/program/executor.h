// Executor: runs a program's steps. It owns the program's mutable buffers and random state, and drives a KV store.
//
// Thread rule: one step at a time per executor; different executors may run on different threads, and an executor may
// be made on one thread, run on another and destroyed on a third. MLX work of a process runs one step at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "offgraph/bytes/kv_store.h"
#include "offgraph/program/host_tensor.h"
#include "offgraph/program/program.h"

namespace offgraph::program {

// An argument: a tensor in host memory, or a scalar.
using Argument = std::variant<HostTensor, int64_t, double, bool>;

struct RunOptions {
  // Only the last position of the first output's token axis (axis 1 of [1, T, n]) is wanted: the result has one row.
  bool last_row_only = false;
  // Asked before every instruction; true ends the step with Error(kCancelled). It is not asked while MLX evaluates.
  std::function<bool()> cancelled{};
  // Bytes that a step may take beside constants, mutable buffers and the cache; 0: no limit. Everything that its
  // instructions compute counts, whole and never as reused, and so does what describes it: an upper bound of what the
  // step allocates, checked before anything is. Beyond it the step ends with Error(kOutOfMemory).
  int64_t memory_limit = 0;
  // A step whose first position is 0 starts over: what the cache holds is cleared when the step opens. Else such a step
  // is refused where the cache is not empty.
  bool restart_at_zero = false;
  // Called with the results before the cache's step is committed; what it throws fails the step like anything else.
  std::function<void(const std::vector<Argument>& results)> accept{};
  // For tests: called before every instruction, and, on a thread of MLX's, before every kernel call of a region. What
  // it throws fails the step.
  std::function<void()> probe{};
};

struct ExecutorOptions {
  // Bytes that the mutable buffers may take, and that the init chain may take beside them, counted as a step's; 0: no
  // limit. A program that needs more is refused with Error(kOutOfMemory).
  int64_t memory_limit = 0;
};

class Executor {
 public:
  // `store` is required where the program has cache layers (its n_layers must cover their ids), else it is null.
  // Makes the program's mutable buffers and runs its init chain; one of more than a million instructions is refused.
  Executor(std::shared_ptr<const Program> program, std::shared_ptr<bytes::KvStore> store,
           const ExecutorOptions& options = {});
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // One step. Checks count, types and shapes of the arguments against the program; throws Error with expected and
  // actual. Where it throws, for whatever reason, the cache's lengths (apart from what restart_at_zero cleared), the
  // random state and the mutable buffers are as they were. Results share no memory with arguments or buffers.
  std::vector<Argument> Run(std::span<const Argument> arguments, const RunOptions& options = {});

  // Mutable buffers become zero again, and the init chain runs anew. The store is not touched. Where it throws, nothing
  // changed.
  void Reset();

  const Program& program() const;
  // Null where the program has no cache layers.
  bytes::KvStore* store() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace offgraph::program
