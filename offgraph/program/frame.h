// Frame: what a running step knows. Tensor and value slots, the random state, and the way to the cache.
//
// Made by an executor and kept between its steps: constants and mutable buffers stay in their slots, everything else
// is emptied when a step ends.
//
// Thread rule: one thread at a time.
#pragma once

#include <mlx/array.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "offgraph/bytes/kv_store.h"
#include "offgraph/program/graph.h"
#include "offgraph/program/program.h"

namespace offgraph::program {

using Value = std::variant<int64_t, double, bool>;

class Interpreter;
struct PackedLayers;

// Attention over the cache, for update_and_attend.
class CacheStep {
 public:
  virtual ~CacheStep() = default;
  // The store, with this step open at the position of the node's `position` operand and `tokens` long: opened by the
  // first node, checked to be the same by the others. Throws Error(kInvalidArgument) where they differ.
  virtual bytes::KvStore& Open(const mlx::core::array& position, int64_t tokens) = 0;
  // Whether the store attends with kernels of its own.
  virtual bool fused() const = 0;
};

class Frame {
 public:
  Frame(const Graph& graph, const Interpreter& interpreter);

  // The value of a slot. Throws Error(kInvalidArgument) where nothing was written to it.
  const mlx::core::array& Get(Tid tid) const;
  const mlx::core::array* GetIf(const std::optional<Tid>& tid) const { return tid ? &Get(*tid) : nullptr; }
  std::optional<mlx::core::array> GetOptional(const std::optional<Tid>& tid) const {
    return tid ? std::optional(Get(*tid)) : std::nullopt;
  }
  std::vector<mlx::core::array> Get(const std::vector<Tid>& tids) const;
  void Set(Tid tid, mlx::core::array value) { tensors_[tid.index] = std::move(value); }
  void Drop(Tid tid) { tensors_[tid.index].reset(); }
  bool Has(Tid tid) const { return tensors_[tid.index].has_value(); }

  const Value& Get(Vid vid) const;
  void Set(Vid vid, Value value) { values_[vid.index] = value; }
  void DropValues();

  // Operands, resolved. A double or bool where an integer is asked for is converted if it is exact, else an error.
  int64_t Int(Vid vid) const;
  int64_t Int(const IntOperand& operand) const;
  Value Number(const FloatOperand& operand) const;
  // The same within int32, which is what MLX takes.
  int Int32(const IntOperand& operand) const;
  std::vector<int64_t> Ints(const std::vector<IntOperand>& operands) const;
  // Checked as dimensions; `item_size` in bytes.
  mlx::core::Shape Shape(const std::vector<IntOperand>& operands, size_t item_size) const;

  // The next key of this frame's own random sequence.
  mlx::core::array NextRandomKey();
  const mlx::core::array& random_state() const { return random_state_; }
  void set_random_state(mlx::core::array state) { random_state_ = std::move(state); }

  // Counts `bytes` that the step will take for `what`, of that shape where it has one. Throws Error(kOutOfMemory) where
  // the machine has fewer, or the step would pass its limit.
  void TakeMemory(int64_t bytes, const char* what, const mlx::core::Shape& shape = {});
  // Counts a result, and everything it will be computed from that was not counted before: the parts of an op that is
  // made of several. Throws as TakeMemory does, and Error(kInvalidArgument) for a shape whose size overflows; MLX
  // computes sizes without a check, and allocates nothing before the step is evaluated.
  void TakeMemory(const mlx::core::array& result);
  // Starts to count for a step that may take `limit` bytes; 0: no limit.
  void LimitMemory(int64_t limit);
  // Lets go of the results that were counted, so that MLX can reuse their memory. REQUIRES: nothing is counted after.
  void FinishCounting() { counted_.clear(); }

  const Interpreter& interpreter() const { return *interpreter_; }

  CacheStep* cache = nullptr;  // null where the program has no cache
  // By constant: where it lies; without bytes where that is memory of its own. Null: nothing is known.
  const std::vector<WeightBytes>* weights = nullptr;
  PackedLayers* packed = nullptr;     // layers that are laid out already (region.h); null: none
  bool fp32_results = false;          // see LoadOptions
  bool last_row_only = false;         // see RunOptions
  std::function<bool()> cancelled{};  // asked before every instruction, where set
  std::function<void()> probe{};      // see RunOptions

 private:
  const Interpreter* interpreter_;
  std::vector<std::optional<mlx::core::array>> tensors_;
  std::vector<std::optional<Value>> values_;
  mlx::core::array random_state_;
  int64_t memory_limit_ = 0;  // see RunOptions
  int64_t memory_used_ = 0;   // bytes of the step so far
  // Results that were counted, by their id. They are kept: the id of one that is gone may come back for another.
  // (MLX's destructors use an unordered map of this type. One here would lend them its code, which tests make fail.)
  std::map<std::uintptr_t, mlx::core::array> counted_;
};

// `value` as int32. Throws Error(kInvalidArgument) that starts with `what`.
int ToInt32(int64_t value, const char* what);

}  // namespace offgraph::program
