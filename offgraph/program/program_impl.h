// What a program holds, for the files of this room.
#pragma once

#include <mlx/array.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "offgraph/program/graph.h"
#include "offgraph/program/interpreter.h"
#include "offgraph/program/position.h"
#include "offgraph/program/program.h"

namespace offgraph::program {

struct Program::Impl {
  std::string name;
  Graph graph;
  std::unique_ptr<Interpreter> interpreter;
  std::vector<mlx::core::array> constants;   // by slot; memory of the weight source
  std::vector<std::function<void()>> evict;  // by slot: WeightBytes::evict for that constant; may be empty
  std::vector<ValueInfo> inputs;
  std::vector<ValueInfo> outputs;
  std::vector<CacheLayerInfo> cache_layers;
  std::optional<PositionSource> position;
};

// MLX graphs are built and evaluated by one thread at a time: everything in this room that touches MLX holds this.
std::mutex& MlxMutex();

}  // namespace offgraph::program
