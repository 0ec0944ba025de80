// How one call of Attend is cut into work: which keys lie in which block, what a query sees of a block, and the tasks
// that threads take. Integers only, the same on all instruction sets. The cut has no influence on results.
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

// The most queries that share a pass over a block.
inline constexpr size_t kMaxTileRows = 384;

// Queries of one segment and one kv head: rows [first_row, first_row + rows), where row r is token r / group of the
// segment and head r % group of the group.
struct Queries {
  size_t segment = 0;
  int64_t kv_head = 0;
  size_t first_row = 0;
  size_t rows = 0;  // <= kMaxTileRows
};

enum class TaskKind : uint8_t {
  kTile,    // many queries over all blocks of their segment, merged as they come
  kBlock,   // queries over one block, whose results are kept and merged later
  kStream,  // the same for few queries and all kv heads at once, so that the pool is read from end to end
};

struct Task {
  TaskKind kind = TaskKind::kTile;
  Queries queries;     // kStream: of kv head 0; each other has as many
  size_t block = 0;    // kBlock, kStream: of the segment's blocks
  size_t partial = 0;  // kBlock, kStream: where the first query's result is kept; the others follow, by kv head
};

// The kept results of queries of one kv head.
inline constexpr size_t kMaxReducedRows = 4;
struct Reduction {
  Queries queries;     // at most kMaxReducedRows
  size_t partial = 0;  // of the first block; those of the other queries follow
  size_t blocks = 0;
  size_t stride = 0;  // between blocks
};

// One call of Attend.
struct AttentionCall {
  AttentionCall(const KvPool& kv_pool, std::span<const AttentionSegment> all, const HeadsView& queries,
                const MutableHeadsView& output, const AttentionOptions& attention_options, size_t threads);

  const KvPool& pool;
  std::span<const AttentionSegment> segments;
  const HeadsView& q;
  const MutableHeadsView& out;
  const AttentionOptions& options;
  size_t n_kv_heads;
  size_t group;                               // query heads that share a kv head
  size_t k_padded;                            // k_dim up to a multiple of 16
  size_t v_padded;                            // v_dim up to a multiple of 16
  std::vector<std::vector<BlockRef>> blocks;  // of each segment, those that some query may see
  std::vector<Task> tasks;
  std::vector<Reduction> reductions;
  bool tiles = false;        // whether tile registers compute the products
  size_t task_grain = 1;     // tasks that are best done by one thread
  size_t partials = 0;       // results to keep
  float* partial = nullptr;  // [partials, PartialSize()]: a weighted sum [v_padded], maximum, sum of exponentials

  size_t PartialSize() const { return v_padded + 16; }
  float* Partial(size_t index) const { return partial + index * PartialSize(); }

  const AttentionSegment& segment(const Queries& queries) const { return segments[queries.segment]; }
  // On the step's axis of tokens.
  int64_t Token(const Queries& queries, size_t row) const {
    return segment(queries).token_offset + static_cast<int64_t>((queries.first_row + row) / group);
  }
  int64_t Position(const Queries& queries, size_t row) const {
    return segment(queries).position + static_cast<int64_t>((queries.first_row + row) / group);
  }
  int64_t Head(const Queries& queries, size_t row) const {
    return queries.kv_head * static_cast<int64_t>(group) + static_cast<int64_t>((queries.first_row + row) % group);
  }

 private:
  void AddTiles(size_t segment, size_t rows, size_t tile_rows);
  void AddBlocks(size_t segment, size_t rows);
};

}  // namespace offgraph::kernels
