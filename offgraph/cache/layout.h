// LayoutPolicy: where the positions of one kind of layer lie in its pool, what a step writes and reads there, and what
// is still there to go on from.
//
// There are three layouts, and they differ in numbers only:
//   flat             position p lies in row p, and no row is ever written twice without a rewind;
//   ring             position p lies in row p % ring_rows;
//   ring with sinks  position p < sinks lies in row p, any other in row sinks + (p - sinks) % ring_rows.
// A ring whose rows cover the capacity never wraps, and is flat. Window and sinks say in all of them what a query sees.
//
// What has become of a ring's rows is one number per sequence, `kept_from`: the row of every position in
// [kept_from, length) still holds that position. It is 0 until the ring wraps, then the highest position ever written
// minus ring_rows; a rewind to where nothing of the ring is needed starts it anew there. The caller keeps it, so that
// one policy serves any number of sequences.
//
// Thread rule: immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "offgraph/cache/config.h"
#include "offgraph/cache/step_plan.h"

namespace offgraph::cache {

class LayoutPolicy {
 public:
  // The layout for config.layers[entry].
  // Throws Error(kInvalidArgument) naming entry and field, for a window or sinks out of range, or a sum that overflows.
  // REQUIRES: the other fields of `config` are in range.
  LayoutPolicy(const CacheConfig& config, size_t entry);

  int64_t window() const { return layer_.window; }
  int64_t sinks() const { return layer_.sinks; }
  // False: flat.
  bool is_ring() const { return ring_rows_ > 0; }
  // Rows of the pool when it is full, sinks included.
  int64_t rows() const { return rows_; }
  // Rows that are used again and again; 0 where the layout is flat.
  int64_t ring_rows() const { return ring_rows_; }
  // Tokens that one step may have at most, wherever it starts.
  int64_t largest_step() const { return largest_step_; }

  // Appends to `plan` the segment of one sequence, and raises plan.rows_needed to what it needs.
  // REQUIRES: 0 <= position, 0 < tokens <= largest_step(), position + tokens <= capacity.
  void AddSegment(SequenceId sequence, int64_t token_offset, int64_t position, int64_t tokens, LayerPlan& plan) const;

  // `kept_from` after positions up to `end` (not included) were written.
  int64_t KeptFrom(int64_t kept_from, int64_t end) const;
  // The first position that a query at `length` sees beside the sinks; `length` where that is none before it.
  int64_t FirstNeeded(int64_t length) const;
  // Whether all that a query at `length` sees before itself is there.
  bool CanGoOnAt(int64_t length, int64_t kept_from) const;
  // The lowest bound from which on CanGoOnAt() holds for every length.
  int64_t RewindBound(int64_t kept_from) const;

 private:
  // Appends the rows of positions [begin, end), as few runs as possible.
  void AppendRuns(int64_t begin, int64_t end, std::vector<Run>& runs) const;

  LayerConfig layer_;
  int64_t ring_rows_ = 0;
  int64_t rows_ = 0;
  int64_t largest_step_ = 0;
};

}  // namespace offgraph::cache
