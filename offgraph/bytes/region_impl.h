// What a region is made of, for the files of regions.
#pragma once

#include <functional>
#include <vector>

#include "offgraph/bytes/region.h"

namespace offgraph::bytes {

// Where a buffer lies: those that live within one segment are computed for a tile of rows at a time and lie in the
// tile's memory, the others in the arena of the whole step.
struct RegionPlace {
  int64_t width = 0;
  int64_t offset = 0;  // floats of one row before it
  bool of_tile = false;
};

// One run of stages over rows [first_row, first_row + rows) of the step.
struct RegionRun {
  float* arena = nullptr;
  int64_t tokens = 0;  // rows of the arena's buffers
  float* tile = nullptr;
  int64_t tile_rows = 0;  // rows of the tile's buffers, of which the first is first_row
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t output_row = 0;                            // the row of the outputs that first_row becomes
  const std::vector<RegionPlace>* places = nullptr;  // by buffer
  const std::vector<mlx::core::array>* inputs = nullptr;
  std::vector<mlx::core::array>* outputs = nullptr;
  const std::vector<RegionAttend>* attends = nullptr;
  kernels::ThreadPool* threads = nullptr;
  const std::function<void()>* probe = nullptr;  // see Region::Run

  kernels::Block BlockOf(const RegionValue& value) const {
    const RegionPlace& place = (*places)[value.buffer];
    float* row =
        place.of_tile ? tile + place.offset * tile_rows : arena + place.offset * tokens + first_row * place.width;
    return {row + value.column, place.width, value.heads, value.head_stride, value.dim};
  }
};

struct RegionStage {
  std::function<void(const RegionRun& run)> run;
  std::vector<size_t> reads;  // buffers
  std::vector<size_t> writes;
  bool needs_all_rows = false;
};

// Stages [begin, end): one that needs all rows, or neighbours that do not.
struct RegionSegment {
  size_t begin = 0;
  size_t end = 0;
  bool needs_all_rows = false;
};

struct RegionOutput {
  mlx::core::Dtype type;
  int64_t heads = 1;
  int64_t dim = 0;
};

struct Region::Impl {
  std::vector<RegionStage> stages;
  std::vector<RegionSegment> segments;
  std::vector<RegionOutput> outputs;
  std::vector<RegionPlace> places;  // by buffer
  int64_t arena_width = 0;          // floats of a row
  int64_t tile_width = 0;
  size_t n_attends = 0;
  size_t tail = 0;  // the first segment after the last attention

  // Cuts the stages into segments and places the buffers: two whose lives do not meet may share memory.
  void Finish();
};

}  // namespace offgraph::bytes
