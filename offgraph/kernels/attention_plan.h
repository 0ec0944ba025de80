// How one call of Attend is cut into work: which keys lie in which block, and what a query sees of a block. Integers
// only, the same on all instruction sets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "offgraph/kernels/attention.h"

namespace offgraph::kernels {

// A block of positions [first, first + 64) that holds at least one key of a segment.
struct BlockRef {
  int64_t first = 0;
  size_t run = 0;   // the first run of the segment's reads that reaches into the block
  int64_t key = 0;  // keys of the reads before that run
};

// The blocks that `reads` touch, in order of position.
void ListBlocks(std::span<const RowRun> reads, std::vector<BlockRef>& blocks);

// Where the keys of one block lie. Entries of positions that are not in `present` repeat one that is, so that each
// names a row that may be read.
struct BlockKeys {
  int64_t first = 0;
  uint64_t present = 0;
  int64_t row[kAttentionBlock];
  int64_t key[kAttentionBlock];  // index on a mask's keys axis
};
void FindKeys(std::span<const RowRun> reads, const BlockRef& block, BlockKeys& keys);

// The keys of [first, first + 64) that the causal rule, the window and the sinks show to the query at `position`.
uint64_t VisibleByPosition(int64_t first, int64_t position, const AttentionOptions& options);

// Whether any query of [first_query, last_query] sees a position of [first, first + 64).
bool BlockMatters(int64_t first, int64_t first_query, int64_t last_query, const AttentionOptions& options);

// Applies the explicit mask to the keys in `visible` for one query. Returns those that stay visible (an additive -inf
// hides), and for an additive mask writes bias [64] for them.
uint64_t ApplyMask(const MaskView& mask, int64_t head, int64_t token, const BlockKeys& keys, uint64_t visible,
                   float* bias);

}  // namespace offgraph::kernels
