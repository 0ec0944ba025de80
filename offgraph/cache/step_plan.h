// The integer result of planning a step: which rows of a layer's pool to write and to read, and what each query sees.
//
// Positions are logical (0 is the first token of a sequence); rows are physical (0 is the first row of a layer's pool).
// A plan is immutable once made; all layers of one step see the same object.
//
// Thread rule: immutable, so any thread may read it.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace offgraph::cache {

using SequenceId = int64_t;

// Consecutive positions [position, position + count) that lie in consecutive rows [row, row + count).
struct Run {
  int64_t row = 0;
  int64_t count = 0;
  int64_t position = 0;
  bool operator==(const Run&) const = default;
};

// One sequence's tokens in a step. They lie at [token_offset, token_offset + tokens) on the step's token axis T.
struct SegmentPlan {
  SequenceId sequence = 0;
  int64_t token_offset = 0;
  int64_t tokens = 0;    // > 0
  int64_t position = 0;  // logical position of the first token
  // Rows that receive the step's tokens, in token order; their counts add up to `tokens`.
  std::vector<Run> writes;
  // Rows that hold what the step's queries may see, this step's own tokens included: exactly the positions that at
  // least one of the queries sees, ordered by position, oldest first; positions of different runs never overlap, and
  // neighbours that could be one run are one. Positions need not be contiguous: after the sinks there may be a gap.
  // The rows are valid once `writes` were stored.
  std::vector<Run> reads;
};

// What a query at position i sees of the keys in `reads`: key j is visible iff
//   j <= i  and  (window == 0  or  j > i - window  or  j < sinks).
struct LayerPlan {
  int64_t window = 0;
  int64_t sinks = 0;
  // Rows that the layer's pool must have before the step is stored: one more than the highest row named above.
  int64_t rows_needed = 0;
  std::vector<SegmentPlan> segments;  // token offsets contiguous from 0
};

// The plan of one step for all layers. Layers with equal configuration share one LayerPlan.
class StepPlan {
 public:
  // Layer i has plan (*plan_of_layer)[i]; the list is the same in every step, so plans share it.
  StepPlan(std::vector<LayerPlan> plans, std::shared_ptr<const std::vector<int32_t>> plan_of_layer, int64_t tokens)
      : plans_(std::move(plans)), plan_of_layer_(std::move(plan_of_layer)), tokens_(tokens) {}

  int64_t n_layers() const { return static_cast<int64_t>(plan_of_layer_->size()); }
  // Tokens of all segments together: the length of the axis T.
  int64_t tokens() const { return tokens_; }
  // REQUIRES: 0 <= layer < n_layers().
  const LayerPlan& layer(int64_t layer) const {
    return plans_[static_cast<size_t>((*plan_of_layer_)[static_cast<size_t>(layer)])];
  }

 private:
  std::vector<LayerPlan> plans_;
  std::shared_ptr<const std::vector<int32_t>> plan_of_layer_;
  int64_t tokens_;
};

}  // namespace offgraph::cache
