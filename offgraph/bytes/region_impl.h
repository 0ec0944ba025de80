// What a region is made of, for the files of regions.
#pragma once

#include <functional>
#include <vector>

#include "offgraph/bytes/region.h"

namespace offgraph::bytes {

// One run: the arena, the rows that stages work on, and what came from outside.
struct RegionRun {
  float* arena = nullptr;
  int64_t tokens = 0;     // rows of every buffer
  int64_t first_row = 0;  // rows [first_row, first_row + rows) are computed
  int64_t rows = 0;
  const std::vector<int64_t>* offsets = nullptr;  // by buffer: floats of one token before it
  const std::vector<int64_t>* widths = nullptr;   // by buffer
  const std::vector<mlx::core::array>* inputs = nullptr;
  std::vector<mlx::core::array>* outputs = nullptr;
  const std::vector<RegionAttend>* attends = nullptr;
  kernels::ThreadPool* threads = nullptr;

  kernels::Block BlockOf(const RegionValue& value) const {
    const int64_t width = (*widths)[value.buffer];
    float* buffer = arena + (*offsets)[value.buffer] * tokens;
    return {buffer + first_row * width + value.column, width, value.heads, value.head_stride, value.dim};
  }
};

struct RegionStage {
  std::function<void(const RegionRun& run)> run;
  std::vector<size_t> reads;  // buffers
  std::vector<size_t> writes;
};

struct RegionOutput {
  mlx::core::Dtype type;
  int64_t heads = 1;
  int64_t dim = 0;
};

struct Region::Impl {
  std::vector<RegionStage> stages;
  std::vector<RegionOutput> outputs;
  std::vector<int64_t> widths;   // by buffer
  std::vector<int64_t> offsets;  // by buffer
  int64_t arena_width = 0;
  size_t n_attends = 0;
  size_t tail = 0;  // the first stage after the last attention

  // Places the buffers: two whose lives do not meet may share memory.
  void PlaceBuffers();
};

}  // namespace offgraph::bytes
