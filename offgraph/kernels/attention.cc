#include "offgraph/kernels/attention.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "offgraph/kernels/attention_plan.h"
#include "offgraph/kernels/isa.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "offgraph/kernels/attention.cc"
#include <hwy/foreach_target.h>
// foreach_target.h comes first.
#include <hwy/highway.h>

#include "offgraph/kernels/attention_block-inl.h"
#include "offgraph/kernels/dtype-inl.h"

#ifndef OFFGRAPH_KERNELS_ATTENTION_ONCE_
#define OFFGRAPH_KERNELS_ATTENTION_ONCE_
namespace offgraph::kernels {
namespace {

// The most queries that share one pass over a block, in every task.
constexpr size_t kMaxTileRows = 192;

// With more queries than this it pays to transpose a block of K, so that keys lie in the lanes.
constexpr size_t kMaxRowsUntransposed = 8;

// Segments with at most so many queries per kv head are split over blocks, which are merged afterwards; with more,
// there is enough to do in parallel without.
constexpr size_t kMaxSplitRows = 64;

// fp32 memory that is kept from call to call.
class Scratch {
 public:
  // REQUIRES: what was handed out before is no longer used. The contents mean nothing, and are finite.
  float* Get(size_t floats) {
    const size_t lines = (floats + 15) / 16;
    if (lines_.size() < lines) lines_ = std::vector<CacheLine>(lines);
    return lines_.data()->x;
  }

 private:
  struct alignas(64) CacheLine {
    float x[16];
  };
  std::vector<CacheLine> lines_;
};

// Equal pieces of memory for tasks: whoever runs a task takes a piece that is free. There are as many as threads, so
// that one always is.
class ScratchPieces {
 public:
  ScratchPieces(Scratch& scratch, size_t pieces, size_t floats)
      : floats_((floats + 15) / 16 * 16), base_(scratch.Get(pieces * floats_)), taken_(pieces) {}

  class Piece {
   public:
    explicit Piece(ScratchPieces& owner) : owner_(owner) {
      while (owner_.taken_[index_].test_and_set(std::memory_order_acquire))
        index_ = (index_ + 1) % owner_.taken_.size();
    }
    ~Piece() { owner_.taken_[index_].clear(std::memory_order_release); }
    Piece(const Piece&) = delete;
    Piece& operator=(const Piece&) = delete;
    float* data() const { return owner_.base_ + index_ * owner_.floats_; }

   private:
    ScratchPieces& owner_;
    size_t index_ = 0;
  };

 private:
  size_t floats_;
  float* base_;
  std::vector<std::atomic_flag> taken_;
};

constexpr size_t PaddedTo16(int64_t n) { return (static_cast<size_t>(n) + 15) / 16 * 16; }

// Queries of one segment and one kv head: rows [first_row, first_row + rows), where row r is token r / group of the
// segment and head r % group of the group.
struct Queries {
  size_t segment = 0;
  int64_t kv_head = 0;
  size_t first_row = 0;
  size_t rows = 0;
};

// A unit of work: the queries over all blocks of their segment, or over one whose partial results are kept.
struct Task {
  Queries queries;
  bool split = false;
  size_t block = 0;    // split: of the segment's blocks
  size_t partial = 0;  // split: index of the first row's partial result
};

// The partial results of one query over the blocks of its segment.
struct Reduction {
  Queries query;       // one row
  size_t partial = 0;  // of the first block
  size_t blocks = 0;
  size_t stride = 0;  // between blocks
};

struct Call {
  const KvPool& pool;
  std::span<const AttentionSegment> segments;
  const HeadsView& q;
  const MutableHeadsView& out;
  const AttentionOptions& options;
  size_t group = 1;                           // query heads that share a kv head
  size_t k_padded = 0;                        // k_dim up to a multiple of 16
  size_t v_padded = 0;                        // v_dim up to a multiple of 16
  std::vector<std::vector<BlockRef>> blocks;  // of each segment
  std::vector<Task> tasks;
  std::vector<Reduction> reductions;
  size_t partials = 0;
  float* partial = nullptr;  // [partials, PartialSize()]

  Call(const KvPool& kv_pool, std::span<const AttentionSegment> all, const HeadsView& queries,
       const MutableHeadsView& output, const AttentionOptions& opts)
      : pool(kv_pool),
        segments(all),
        q(queries),
        out(output),
        options(opts),
        group(static_cast<size_t>(opts.n_heads / kv_pool.n_kv_heads)),
        k_padded(PaddedTo16(kv_pool.k_dim)),
        v_padded(PaddedTo16(kv_pool.v_dim)) {}

  // A weighted sum [v_padded], then its state.
  size_t PartialSize() const { return v_padded + 16; }
  float* Partial(size_t index) const { return partial + index * PartialSize(); }

  const AttentionSegment& segment(const Queries& queries) const { return segments[queries.segment]; }
  int64_t Token(const Queries& queries, size_t row) const {
    return segment(queries).token_offset + static_cast<int64_t>((queries.first_row + row) / group);
  }
  int64_t Position(const Queries& queries, size_t row) const {
    return segment(queries).position + static_cast<int64_t>((queries.first_row + row) / group);
  }
  int64_t Head(const Queries& queries, size_t row) const {
    return queries.kv_head * static_cast<int64_t>(group) + static_cast<int64_t>((queries.first_row + row) % group);
  }
};

// What a task works with.
struct TileScratch {
  float* q;        // [kMaxTileRows, k_padded]
  float* sums;     // [kMaxTileRows, v_padded]
  float* columns;  // [k_padded, 64]
  float* staging;  // [4, k_padded]
  float* values;   // [64, v_padded]
  float* scores;   // [kMaxRows, 64]
  float* bias;     // [kMaxRows, 64]
  float* block;    // [kMaxRows, v_padded]

  static size_t Size(size_t k_padded, size_t v_padded, size_t max_rows) {
    return (kMaxTileRows + kAttentionBlock + 4) * k_padded + (kMaxTileRows + kAttentionBlock + max_rows) * v_padded +
           2 * max_rows * kAttentionBlock;
  }
  TileScratch(float* memory, size_t k_padded, size_t v_padded, size_t max_rows) {
    const auto take = [&memory](size_t floats) {
      float* piece = memory;
      memory += floats;
      return piece;
    };
    q = take(kMaxTileRows * k_padded);
    sums = take(kMaxTileRows * v_padded);
    columns = take(kAttentionBlock * k_padded);
    staging = take(4 * k_padded);
    values = take(kAttentionBlock * v_padded);
    scores = take(max_rows * kAttentionBlock);
    bias = take(max_rows * kAttentionBlock);
    block = take(max_rows * v_padded);
  }
};

// Cuts the call into tasks. The cut has no influence on results.
void MakeTasks(Call& call, size_t threads) {
  const auto n_kv_heads = static_cast<size_t>(call.pool.n_kv_heads);
  size_t all_rows = 0;
  for (const AttentionSegment& segment : call.segments) {
    all_rows += static_cast<size_t>(segment.tokens) * call.group * n_kv_heads;
  }
  // Small tiles where large ones would leave threads without work.
  const size_t tile_rows = std::clamp<size_t>(all_rows / (8 * threads) / 4 * 4, 32, kMaxTileRows);
  call.blocks.resize(call.segments.size());
  for (size_t s = 0; s < call.segments.size(); ++s) {
    const AttentionSegment& segment = call.segments[s];
    std::vector<BlockRef>& blocks = call.blocks[s];
    ListBlocks(segment.reads, blocks);
    const int64_t last = segment.position + segment.tokens - 1;
    std::erase_if(blocks, [&](const BlockRef& block) {
      return !BlockMatters(block.first, segment.position, last, call.options);
    });
    const size_t rows = static_cast<size_t>(segment.tokens) * call.group;
    if (rows > kMaxSplitRows) {
      for (size_t row = 0; row < rows; row += tile_rows) {
        for (size_t head = 0; head < n_kv_heads; ++head) {
          const Queries queries{s, static_cast<int64_t>(head), row, std::min(tile_rows, rows - row)};
          call.tasks.push_back({.queries = queries});
        }
      }
      continue;
    }
    for (size_t block = 0; block < blocks.size(); ++block) {
      for (size_t head = 0; head < n_kv_heads; ++head) {
        const size_t partial = call.partials + (block * n_kv_heads + head) * rows;
        const Queries queries{s, static_cast<int64_t>(head), 0, rows};
        call.tasks.push_back({.queries = queries, .split = true, .block = block, .partial = partial});
      }
    }
    for (size_t head = 0; head < n_kv_heads; ++head) {
      for (size_t row = 0; row < rows; ++row) {
        call.reductions.push_back({.query = {s, static_cast<int64_t>(head), row, 1},
                                   .partial = call.partials + head * rows + row,
                                   .blocks = blocks.size(),
                                   .stride = n_kv_heads * rows});
      }
    }
    call.partials += blocks.size() * n_kv_heads * rows;
  }
}

}  // namespace
}  // namespace offgraph::kernels
#endif  // OFFGRAPH_KERNELS_ATTENTION_ONCE_

HWY_BEFORE_NAMESPACE();
namespace offgraph::kernels::HWY_NAMESPACE {

// to [rows, k_padded] fp32
void LoadQueries(const Call& call, const Queries& queries, float* to) {
  WithType(call.q.type, [&](auto type) HWY_ATTR {
    for (size_t r = 0; r < queries.rows; ++r) {
      const int64_t element = call.Head(queries, r) * call.q.head_stride + call.Token(queries, r) * call.q.token_stride;
      const uint8_t* from = static_cast<const uint8_t*>(call.q.data) + element * static_cast<int64_t>(SizeOf(type));
      LoadRow<type()>(from, static_cast<size_t>(call.pool.k_dim), to + r * call.k_padded);
    }
  });
}

// Writes the result of query `r`: sum / state.sum. `sum` is overwritten.
void StoreOutput(const Call& call, const Queries& queries, size_t r, const SoftmaxState& state, float* sum) {
  Normalize(state, call.v_padded, sum);
  const int64_t element = call.Head(queries, r) * call.out.head_stride + call.Token(queries, r) * call.out.token_stride;
  WithType(call.out.type, [&](auto type) HWY_ATTR {
    uint8_t* to = static_cast<uint8_t*>(call.out.data) + element * static_cast<int64_t>(SizeOf(type));
    StoreRow<type()>(sum, static_cast<size_t>(call.pool.v_dim), to);
  });
}

// The keys of a block that each query may see, by position. Returns their union.
uint64_t SetVisible(const Call& call, const Queries& queries, const BlockKeys& keys, uint64_t* visible) {
  const int64_t first = call.Position(queries, 0);
  const int64_t last = call.Position(queries, queries.rows - 1);
  // What the first and the last query see entirely, all between them do.
  const uint64_t seen = VisibleByPosition(keys.first, first, call.options) &
                        VisibleByPosition(keys.first, last, call.options) & keys.present;
  if (seen == keys.present) {
    std::fill_n(visible, queries.rows, seen);
    return seen;
  }
  uint64_t any = 0;
  for (size_t r = 0; r < queries.rows; ++r) {
    visible[r] = keys.present & VisibleByPosition(keys.first, call.Position(queries, r), call.options);
    any |= visible[r];
  }
  return any;
}

// One block for the queries of a tile (in scratch.q). Calls sink(r, state, sum [v_padded]) for each query that sees
// a key.
template <class Sink>
void AttendBlock(const Call& call, const Queries& queries, const BlockKeys& keys, const TileScratch& scratch,
                 const Sink& sink) {
  uint64_t visible[kMaxTileRows];
  const uint64_t wanted = SetVisible(call, queries, keys, visible);
  if (wanted == 0) return;

  const KvPool& pool = call.pool;
  const auto k_dim = static_cast<size_t>(pool.k_dim);
  const auto v_dim = static_cast<size_t>(pool.v_dim);
  const void* k_rows[kBlock];
  const void* v_rows[kBlock];
  for (size_t j = 0; j < kBlock; ++j) {
    const auto row = static_cast<size_t>(keys.row[j] * pool.n_kv_heads + queries.kv_head);
    k_rows[j] = static_cast<const uint8_t*>(pool.k) + row * k_dim * SizeOf(pool.k_type);
    v_rows[j] = static_cast<const uint8_t*>(pool.v) + row * v_dim * SizeOf(pool.v_type);
  }
  const bool transposed = queries.rows > kMaxRowsUntransposed;
  DType v_type = pool.v_type;
  if (transposed) {
    WithType(pool.k_type, [&](auto type) HWY_ATTR {
      TransposeKeys<type()>(k_rows, wanted, k_dim, call.k_padded, scratch.staging, scratch.columns);
    });
    WithType(pool.v_type, [&](auto type) HWY_ATTR {
      if (type() == DType::kFloat32) return;
      for (uint64_t rest = wanted; rest != 0; rest &= rest - 1) {
        const auto j = static_cast<size_t>(std::countr_zero(rest));
        LoadRow<type()>(v_rows[j], v_dim, scratch.values + j * call.v_padded);
        v_rows[j] = scratch.values + j * call.v_padded;
      }
    });
    v_type = DType::kFloat32;
  }

  const MaskView& mask = call.options.mask;
  ForRowGroups(queries.rows, [&](auto group_rows, size_t first) HWY_ATTR {
    constexpr size_t kRows = group_rows();
    uint64_t* group_visible = visible + first;
    if (Union<kRows>(group_visible) == 0) return;
    ScoreOptions score{.scale = call.options.scale, .soft_cap = call.options.soft_cap};
    if (mask.type != MaskType::kNone) {
      for (size_t r = 0; r < kRows; ++r) {
        group_visible[r] = ApplyMask(mask, call.Head(queries, first + r), call.Token(queries, first + r), keys,
                                     group_visible[r], scratch.bias + r * kBlock);
      }
    }
    const uint64_t group_wanted = Union<kRows>(group_visible);
    const float* q = scratch.q + first * call.k_padded;
    if (transposed) {
      ScoresFromColumns<kRows>(q, call.k_padded, scratch.columns, call.k_padded, scratch.scores);
    } else {
      WithType(pool.k_type, [&](auto type) HWY_ATTR {
        ScoresFromRows<type(), kRows>(q, call.k_padded, k_rows, group_wanted, k_dim, scratch.scores);
      });
    }
    SoftmaxState states[kRows];
    for (size_t r = 0; r < kRows; ++r) {
      if (group_visible[r] == 0) continue;
      if (mask.type != MaskType::kNone && mask.type != MaskType::kBool) score.bias = scratch.bias + r * kBlock;
      states[r] = SoftmaxOfBlock(scratch.scores + r * kBlock, group_visible[r], score);
    }
    WithType(v_type, [&](auto type) HWY_ATTR {
      WeightedSum<type(), kRows>(scratch.scores, group_visible, v_rows, v_dim, scratch.block, call.v_padded);
    });
    for (size_t r = 0; r < kRows; ++r) {
      if (group_visible[r] != 0) sink(first + r, states[r], scratch.block + r * call.v_padded);
    }
  });
}

// The queries over all blocks, merged as they come.
void RunTile(const Call& call, const Queries& queries, const TileScratch& scratch) {
  SoftmaxState states[kMaxTileRows];
  std::fill_n(scratch.sums, queries.rows * call.v_padded, 0.0F);
  const int64_t first_position = call.Position(queries, 0);
  const int64_t last_position = call.Position(queries, queries.rows - 1);
  for (const BlockRef& block : call.blocks[queries.segment]) {
    if (!BlockMatters(block.first, first_position, last_position, call.options)) continue;
    BlockKeys keys;
    FindKeys(call.segment(queries).reads, block, keys);
    AttendBlock(call, queries, keys, scratch, [&](size_t r, const SoftmaxState& state, const float* sum) HWY_ATTR {
      Merge(state, sum, call.v_padded, states[r], scratch.sums + r * call.v_padded);
    });
  }
  for (size_t r = 0; r < queries.rows; ++r) {
    StoreOutput(call, queries, r, states[r], scratch.sums + r * call.v_padded);
  }
}

// The queries over one block; the results go to the call's partials.
void RunSplit(const Call& call, const Task& task, const TileScratch& scratch) {
  for (size_t r = 0; r < task.queries.rows; ++r) call.Partial(task.partial + r)[call.v_padded + 1] = 0;
  BlockKeys keys;
  FindKeys(call.segment(task.queries).reads, call.blocks[task.queries.segment][task.block], keys);
  AttendBlock(call, task.queries, keys, scratch, [&](size_t r, const SoftmaxState& state, const float* sum) HWY_ATTR {
    float* partial = call.Partial(task.partial + r);
    std::copy_n(sum, call.v_padded, partial);
    partial[call.v_padded] = state.max;
    partial[call.v_padded + 1] = state.sum;
  });
}

void RunTask(const Call& call, const Task& task, float* memory) {
  const TileScratch scratch(memory, call.k_padded, call.v_padded, kMaxRows);
  LoadQueries(call, task.queries, scratch.q);
  if (task.split) {
    RunSplit(call, task, scratch);
  } else {
    RunTile(call, task.queries, scratch);
  }
}

void Reduce(const Call& call, const Reduction& reduction, float* sum) {
  SoftmaxState state;
  std::fill_n(sum, call.v_padded, 0.0F);
  for (size_t b = 0; b < reduction.blocks; ++b) {
    const float* partial = call.Partial(reduction.partial + b * reduction.stride);
    Merge({.max = partial[call.v_padded], .sum = partial[call.v_padded + 1]}, partial, call.v_padded, state, sum);
  }
  StoreOutput(call, reduction.query, 0, state, sum);
}

void AttendOnTarget(Call& call, ThreadPool& threads) {
  thread_local Scratch task_memory;
  thread_local Scratch partial_memory;
  ScratchPieces pieces(task_memory, threads.threads(), TileScratch::Size(call.k_padded, call.v_padded, kMaxRows));
  call.partial = partial_memory.Get(call.partials * call.PartialSize());
  threads.ParallelFor(call.tasks.size(), 1, [&](size_t begin, size_t end) {
    const ScratchPieces::Piece piece(pieces);
    for (size_t i = begin; i < end; ++i) RunTask(call, call.tasks[i], piece.data());
  });
  const size_t grain = (call.reductions.size() + threads.threads() - 1) / threads.threads();
  threads.ParallelFor(call.reductions.size(), std::max<size_t>(grain, 1), [&](size_t begin, size_t end) {
    const ScratchPieces::Piece piece(pieces);
    for (size_t i = begin; i < end; ++i) Reduce(call, call.reductions[i], piece.data());
  });
}

}  // namespace offgraph::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace offgraph::kernels {

HWY_EXPORT(AttendOnTarget);

void Attend(const KvPool& pool, std::span<const AttentionSegment> segments, const HeadsView& q,
            const MutableHeadsView& out, const AttentionOptions& options, ThreadPool& threads) {
  Call call(pool, segments, q, out, options);
  MakeTasks(call, threads.threads());
  HWY_DYNAMIC_DISPATCH(AttendOnTarget)(call, threads);
}

}  // namespace offgraph::kernels
#endif  // HWY_ONCE
