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
  // Bytes that the results of a step's instructions may take together, each counted whole and none as reused: an upper
  // bound of what the step allocates, checked before anything is. Beyond it the step ends with Error(kOutOfMemory).
  // 0: no limit.
  int64_t memory_limit = 0;
};

class Executor {
 public:
  // `store` is required where the program has cache layers (its n_layers must cover their ids), else it is null.
  // Runs the program's init chain.
  Executor(std::shared_ptr<const Program> program, std::shared_ptr<bytes::KvStore> store);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // One step. Checks count, types and shapes of the arguments against the program; throws Error with expected and
  // actual. Where it throws, the cache's lengths, the random state and the mutable buffers are as they were. One case
  // is different: where MLX itself fails while it evaluates (memory ran out), buffers that were updated in place are
  // lost, and further steps are refused until Reset.
  // Results share no memory with arguments or buffers.
  std::vector<Argument> Run(std::span<const Argument> arguments, const RunOptions& options = {});

  // The first logical position that a step with these arguments would have; absent where the program has no cache or
  // computes its position (see position.h). Throws for arguments that do not fit the program.
  std::optional<int64_t> FirstPosition(std::span<const Argument> arguments) const;

  // Mutable buffers become zero again, and the init chain runs anew. The store is not touched.
  void Reset();

  const Program& program() const;
  // Null where the program has no cache layers.
  bytes::KvStore* store() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace offgraph::program
