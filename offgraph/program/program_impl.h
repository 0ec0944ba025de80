// What a program holds, for the files of this room.
#pragma once

#include <mlx/array.h>

#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "offgraph/bytes/evaluation.h"
#include "offgraph/program/graph.h"
#include "offgraph/program/interpreter.h"
#include "offgraph/program/position.h"
#include "offgraph/program/program.h"
#include "offgraph/program/region.h"

namespace offgraph::program {

struct Program::Impl {
  std::string name;
  Graph graph;
  std::unique_ptr<Interpreter> interpreter;
  std::vector<mlx::core::array> constants;  // by slot: those of the file, then computed ones
  std::vector<WeightBytes> weights;         // by slot; no bytes where the constant does not lie in them
  // Layers that were laid out at load, until the region that they belong to is lowered. Guarded by MlxMutex.
  mutable PackedLayers packed;
  bool fp32_results = false;  // see LoadOptions
  std::vector<ValueInfo> inputs;
  std::vector<ValueInfo> outputs;
  std::vector<CacheLayerInfo> cache_layers;
  std::optional<PositionSource> position;
};

// MLX graphs are built and evaluated by one thread at a time: everything in this room that touches MLX holds this.
std::mutex& MlxMutex();

// Holds MlxMutex. Where an exception leaves its scope, nothing of MLX runs any more afterwards.
class MlxLock {
 public:
  MlxLock() : lock_(MlxMutex()), exceptions_(std::uncaught_exceptions()) {}
  ~MlxLock() {
    if (std::uncaught_exceptions() > exceptions_) bytes::WaitForEvaluation();
  }
  MlxLock(const MlxLock&) = delete;
  MlxLock& operator=(const MlxLock&) = delete;

 private:
  std::lock_guard<std::mutex> lock_;
  int exceptions_;
};

}  // namespace offgraph::program
