#include "offgraph/cache/layout.h"

#include <algorithm>
#include <string>
#include <utility>

#include "offgraph/cache/error.h"

namespace offgraph::cache {
namespace {

[[noreturn]] void Refuse(size_t entry, const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, "cache config: layers[" + std::to_string(entry) + "]" + message);
}

// min(capacity, window + max_step - 1 + rewind_reserve).
int64_t RingRows(const CacheConfig& config, size_t entry) {
  const int64_t window = config.layers[entry].window;
  int64_t rows = 0;
  if (__builtin_add_overflow(window - 1, config.max_step, &rows) ||
      __builtin_add_overflow(rows, config.rewind_reserve, &rows)) {
    Refuse(entry, ": window + max_step - 1 + rewind_reserve overflows with window " + std::to_string(window) +
                      ", max_step " + std::to_string(config.max_step) + ", rewind_reserve " +
                      std::to_string(config.rewind_reserve) + "; a sum beyond the capacity, " +
                      std::to_string(config.capacity) + ", brings nothing more");
  }
  return std::min(config.capacity, rows);
}

}  // namespace

LayoutPolicy::LayoutPolicy(const CacheConfig& config, size_t entry)
    : layer_(config.layers[entry]), rows_(config.capacity), largest_step_(config.capacity) {
  if (layer_.window < 0) {
    Refuse(entry, ".window is " + std::to_string(layer_.window) + "; expected at least 1, or 0 for full attention");
  }
  if (layer_.sinks < 0) {
    Refuse(entry, ".sinks is " + std::to_string(layer_.sinks) + "; expected at least 0");
  }
  if (layer_.window == 0) {
    if (layer_.sinks > 0) {
      Refuse(entry, ".sinks is " + std::to_string(layer_.sinks) +
                        " and its window is 0; expected no sinks, since full attention sees every position");
    }
    return;
  }
  const int64_t ring_rows = RingRows(config, entry);
  if (layer_.sinks < config.capacity - ring_rows) {
    ring_rows_ = ring_rows;
    rows_ = layer_.sinks + ring_rows;
    largest_step_ = config.max_step;
  }
}

void LayoutPolicy::AppendRuns(int64_t begin, int64_t end, std::vector<Run>& runs) const {
  while (begin < end) {
    // Up to position rows_ a ring lies as a flat layout does, sinks and all; after that, each turn of it is a run.
    const int64_t turned = begin < rows_ ? begin : layer_.sinks + (begin - layer_.sinks) % ring_rows_;
    const int64_t count = std::min(end - begin, rows_ - turned);
    runs.push_back({.row = turned, .count = count, .position = begin});
    begin += count;
  }
}

void LayoutPolicy::AddSegment(SequenceId sequence, int64_t token_offset, int64_t position, int64_t tokens,
                              LayerPlan& plan) const {
  const int64_t end = position + tokens;
  SegmentPlan segment{.sequence = sequence,
                      .token_offset = token_offset,
                      .tokens = tokens,
                      .position = position,
                      .writes = {},
                      .reads = {}};
  AppendRuns(position, end, segment.writes);
  // The first query looks back furthest; the last one sees the most sinks, and every position in between is some
  // query's own.
  const int64_t oldest = layer_.window == 0 ? 0 : std::max<int64_t>(0, position - layer_.window + 1);
  if (oldest > layer_.sinks) {
    AppendRuns(0, layer_.sinks, segment.reads);
    AppendRuns(oldest, end, segment.reads);
  } else {
    AppendRuns(0, end, segment.reads);
  }
  for (const std::vector<Run>* runs : {&segment.writes, &segment.reads}) {
    for (const Run& run : *runs) plan.rows_needed = std::max(plan.rows_needed, run.row + run.count);
  }
  plan.segments.push_back(std::move(segment));
}

int64_t LayoutPolicy::KeptFrom(int64_t kept_from, int64_t end) const {
  return is_ring() ? std::max(kept_from, end - ring_rows_) : 0;
}

int64_t LayoutPolicy::FirstNeeded(int64_t length) const {
  const int64_t oldest = layer_.window == 0 ? 0 : length - layer_.window + 1;
  return std::min(length, std::max(oldest, layer_.sinks));
}

bool LayoutPolicy::CanGoOnAt(int64_t length, int64_t kept_from) const {
  const int64_t first = FirstNeeded(length);
  return first == length || first >= kept_from;
}

int64_t LayoutPolicy::RewindBound(int64_t kept_from) const {
  // A window of 1 sees nothing but the query itself; sinks are never overwritten.
  if (layer_.window == 1 || kept_from <= layer_.sinks) return 0;
  return kept_from + layer_.window - 1;
}

}  // namespace offgraph::cache
