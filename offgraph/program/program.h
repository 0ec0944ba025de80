// Program: a delegate payload, verified once and trusted afterwards. Immutable; shared by executors.
//
// A payload is untrusted bytes. Load checks every index, count, type and operand before it returns, and names an op
// that has no handler. What it cannot check without values (a shape that follows from data) is checked in the step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "offgraph/program/host_tensor.h"

namespace offgraph::program {

// Bytes of a weight, and what keeps them alive (a mapped file, a buffer of ExecuTorch's).
struct WeightBytes {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
  // Gives back the memory of bytes that will hardly be read again, since they were laid out anew; reading them is still
  // possible. Empty where that cannot be. It must not throw, and may be called from any thread.
  std::function<void(std::span<const std::byte> bytes)> evict{};
  // Copies a part of the bytes, `to` having room for it. Nothing of the file stays in the process's memory then, as
  // pages do that are read in place, with their neighbours. Empty where there is no such way. As evict in all else.
  std::function<void(std::span<const std::byte> part, std::byte* to)> read{};
};
// Finds a weight by its key in the container's named data; absent where there is none.
using WeightSource = std::function<std::optional<WeightBytes>(std::string_view key)>;

// A dimension of a declared input or output: a fixed size, or a range. Of a range only the upper end is checked: the
// exporter writes 2 as the lower end of axes that take 1 as well.
struct DimInfo {
  int64_t min = 0;
  int64_t max = -1;  // -1: no upper bound
  bool fixed() const { return min == max; }
};
struct ValueInfo {
  bool is_tensor = true;  // else a scalar (int, float, bool)
  ScalarType type = ScalarType::kFloat;
  std::vector<DimInfo> shape;
};

// An update_and_attend node's layer, as far as the program tells.
struct CacheLayerInfo {
  int64_t layer_id = 0;
  int64_t nodes = 0;  // how many nodes name this layer (more than one: layers that share a cache)
};

struct LoadOptions {
  // Run the optimizer's passes. Without them the program runs as the exporter wrote it, op by op.
  bool optimize = true;
  // Optimize without what changes values. Otherwise group-quantized linear layers round their activations to 12 bits,
  // which is several times faster, and regions with such layers do as `fp32_results` says: together nearer to the
  // weights' true result than a program of bf16 ops is (docs/PERFORMANCE.md).
  bool exact = true;
  // Keep what the ops of a region with group-quantized layers hand to each other in fp32, where the program's types
  // would round it. With `exact`, it shows what the rounding of activations alone costs.
  bool fp32_results = false;
  // Lay the weights of such layers out while loading; otherwise the first step does it.
  bool lay_out = false;
};

class Program {
 public:
  // Weights are wrapped, not copied: `weights` is asked once per constant, and each owner is kept.
  // Throws Error(kBadFile) or Error(kUnsupported); `name` (a file, a method) starts each message.
  static std::shared_ptr<const Program> Load(std::span<const std::byte> payload, const WeightSource& weights,
                                             const std::string& name, const LoadOptions& options = {});
  ~Program();

  const std::string& name() const;
  const std::vector<ValueInfo>& inputs() const;
  const std::vector<ValueInfo>& outputs() const;
  // Layers that need a cache, by layer_id; empty where the program has no update_and_attend node.
  const std::vector<CacheLayerInfo>& cache_layers() const;

  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  explicit Program(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace offgraph::program
