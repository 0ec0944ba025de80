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

// fp32 memory that is kept from call to call.
class Scratch {
 public:
  // REQUIRES: what was handed out before is no longer used. The contents mean nothing, and are finite. Null where
  // nothing was ever asked for.
  float* Get(size_t floats) {
    const size_t lines = (floats + 15) / 16;
    if (lines_.size() < lines) lines_ = std::vector<CacheLine>(lines);
    return lines_.empty() ? nullptr : lines_.front().x;
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

// What a task works with. Without `memory` it counts what that must hold.
struct TaskScratch {
  float* q;        // [kMaxTileRows, k_padded]
  float* sums;     // [kMaxTileRows, v_padded]
  float* scores;   // [kMaxTileRows, 64]
  float* bias;     // [kMaxTileRows, 64]
  float* columns;  // [k_padded, 64]
  float* staging;  // [4, k_padded]
  float* values;   // [64, v_padded]
  float* block;    // [4, v_padded]
  size_t size = 0;

  TaskScratch(float* memory, const AttentionCall& call) {
    const auto take = [&](size_t rows, size_t row_floats) {
      float* piece = memory == nullptr ? nullptr : memory + size;
      size += rows * row_floats;
      return piece;
    };
    q = take(kMaxTileRows, call.k_padded);
    sums = take(kMaxTileRows, call.v_padded);
    scores = take(kMaxTileRows, kAttentionBlock);
    bias = take(kMaxTileRows, kAttentionBlock);
    columns = take(kAttentionBlock, call.k_padded);
    staging = take(4, call.k_padded);
    values = take(kAttentionBlock, call.v_padded);
    block = take(4, call.v_padded);
  }
};

// A pool's rows, K or V.
struct PoolRows {
  const uint8_t* data;
  int64_t head_bytes;
  int64_t row_bytes;

  PoolRows(const void* pool, int64_t n_kv_heads, int64_t dim, DType type)
      : data(static_cast<const uint8_t*>(pool)),
        head_bytes(dim * static_cast<int64_t>(SizeOf(type))),
        row_bytes(n_kv_heads * head_bytes) {}
  const uint8_t* At(int64_t row, int64_t kv_head) const { return data + row * row_bytes + kv_head * head_bytes; }
};
PoolRows RowsOfK(const KvPool& pool) { return {pool.k, pool.n_kv_heads, pool.k_dim, pool.k_type}; }
PoolRows RowsOfV(const KvPool& pool) { return {pool.v, pool.n_kv_heads, pool.v_dim, pool.v_type}; }

// The keys of a block that each query may see, by position. Returns their union.
uint64_t SetVisible(const AttentionCall& call, const Queries& queries, const BlockKeys& keys, uint64_t* visible) {
  const auto seen_by = [&](size_t row) {
    return keys.present & VisibleByPosition(keys.first, call.Position(queries, row), call.options);
  };
  // What the first and the last query see entirely, all between them do.
  if ((seen_by(0) & seen_by(queries.rows - 1)) == keys.present) {
    std::fill_n(visible, queries.rows, keys.present);
    return keys.present;
  }
  uint64_t any = 0;
  for (size_t r = 0; r < queries.rows; ++r) any |= visible[r] = seen_by(r);
  return any;
}

// Applies the explicit mask, if there is one, to `rows` queries from row `first` on. bias: [rows, 64].
void MaskRows(const AttentionCall& call, const Queries& queries, size_t first, size_t rows, const BlockKeys& keys,
              uint64_t* visible, float* bias) {
  if (call.options.mask.type == MaskType::kNone) return;
  for (size_t r = 0; r < rows; ++r) {
    visible[r] = ApplyMask(call.options.mask, call.Head(queries, first + r), call.Token(queries, first + r), keys,
                           visible[r], bias + r * kAttentionBlock);
  }
}

}  // namespace
}  // namespace offgraph::kernels
#endif  // OFFGRAPH_KERNELS_ATTENTION_ONCE_

HWY_BEFORE_NAMESPACE();
namespace offgraph::kernels::HWY_NAMESPACE {

// to [rows, k_padded] fp32
void LoadQueries(const AttentionCall& call, const Queries& queries, float* to) {
  WithType(call.q.type, [&](auto type) HWY_ATTR {
    for (size_t r = 0; r < queries.rows; ++r) {
      const int64_t element = call.Head(queries, r) * call.q.head_stride + call.Token(queries, r) * call.q.token_stride;
      const uint8_t* from = static_cast<const uint8_t*>(call.q.data) + element * static_cast<int64_t>(SizeOf(type));
      LoadRow<type()>(from, static_cast<size_t>(call.pool.k_dim), to + r * call.k_padded);
    }
  });
}

// Writes the result of query `r`: sum / state.sum. `sum` is overwritten.
void StoreOutput(const AttentionCall& call, const Queries& queries, size_t r, const SoftmaxState& state, float* sum) {
  Normalize(state, call.v_padded, sum);
  WithType(call.out.round, [&](auto type) HWY_ATTR {
    if (type() == DType::kFloat32) return;
    const F32 d;
    for (size_t i = 0; i < call.v_padded; i += kLanes) hn::StoreU(Round<type()>(hn::LoadU(d, sum + i)), d, sum + i);
  });
  const int64_t element = call.Head(queries, r) * call.out.head_stride + call.Token(queries, r) * call.out.token_stride;
  WithType(call.out.type, [&](auto type) HWY_ATTR {
    uint8_t* to = static_cast<uint8_t*>(call.out.data) + element * static_cast<int64_t>(SizeOf(type));
    StoreRow<type()>(sum, static_cast<size_t>(call.pool.v_dim), to);
  });
}

HWY_INLINE ScoreOptions ScoreOptionsOf(const AttentionCall& call, const float* bias) {
  const bool additive = call.options.mask.type != MaskType::kNone && call.options.mask.type != MaskType::kBool;
  return {.scale = call.options.scale, .soft_cap = call.options.soft_cap, .bias = additive ? bias : nullptr};
}

// One transposed block for the queries of a tile (in scratch.q). Calls sink(n, first, states [n], sums [n, v_padded])
// for groups of n queries of which at least one sees a key.
template <class Sink>
void AttendBlock(const AttentionCall& call, const Queries& queries, const BlockKeys& keys, const TaskScratch& scratch,
                 const Sink& sink) {
  uint64_t visible[kMaxTileRows];
  const uint64_t wanted = SetVisible(call, queries, keys, visible);
  if (wanted == 0) return;

  const KvPool& pool = call.pool;
  const auto v_dim = static_cast<size_t>(pool.v_dim);
  const uint8_t* k_rows[kBlock];
  const uint8_t* v_rows[kBlock];
  for (size_t j = 0; j < kBlock; ++j) {
    k_rows[j] = RowsOfK(pool).At(keys.row[j], queries.kv_head);
    v_rows[j] = RowsOfV(pool).At(keys.row[j], queries.kv_head);
  }
  WithType(pool.k_type, [&](auto type) HWY_ATTR {
    TransposeKeys<type()>(KeyRows{k_rows}, wanted, static_cast<size_t>(pool.k_dim), call.k_padded, scratch.staging,
                          scratch.columns);
  });
  WithType(pool.v_type, [&](auto type) HWY_ATTR {
    if (type() == DType::kFloat32) return;
    for (uint64_t rest = wanted; rest != 0; rest &= rest - 1) {
      const auto j = static_cast<size_t>(std::countr_zero(rest));
      LoadRow<type()>(v_rows[j], v_dim, scratch.values + j * call.v_padded);
      v_rows[j] = reinterpret_cast<const uint8_t*>(scratch.values + j * call.v_padded);
    }
  });

  ForRowGroups(queries.rows, [&](auto group_rows, size_t first) HWY_ATTR {
    constexpr size_t kRows = group_rows();
    uint64_t* group_visible = visible + first;
    if (Union<kRows>(group_visible) == 0) return;
    MaskRows(call, queries, first, kRows, keys, group_visible, scratch.bias);
    ScoresFromColumns<kRows>(scratch.q + first * call.k_padded, call.k_padded, scratch.columns, call.k_padded,
                             scratch.scores);
    SoftmaxState states[kRows];
    Softmax<kRows>(scratch.scores, group_visible, ScoreOptionsOf(call, scratch.bias), states);
    float* sums = scratch.block;
    std::fill_n(sums, kRows * call.v_padded, 0.0F);
    AddValues<DType::kFloat32, kRows>(scratch.scores, group_visible, ~uint64_t{0}, KeyRows{v_rows}, v_dim, sums,
                                      call.v_padded);
    sink(group_rows, first, states, sums);
  });
}

// The queries over all blocks, merged as they come.
void RunTile(const AttentionCall& call, const Task& task, const TaskScratch& scratch) {
  const Queries& queries = task.queries;
  LoadQueries(call, queries, scratch.q);
  SoftmaxState states[kMaxTileRows];
  std::fill_n(scratch.sums, queries.rows * call.v_padded, 0.0F);
  const int64_t first_position = call.Position(queries, 0);
  const int64_t last_position = call.Position(queries, queries.rows - 1);
  for (const BlockRef& block : call.blocks[queries.segment]) {
    if (!BlockMatters(block.first, first_position, last_position, call.options)) continue;
    BlockKeys keys;
    FindKeys(call.segment(queries).reads, block, keys);
    AttendBlock(call, queries, keys, scratch,
                [&](auto n, size_t first, const SoftmaxState* partials, const float* sums) HWY_ATTR {
                  Merge<n()>(partials, sums, call.v_padded, call.v_padded, states + first,
                             scratch.sums + first * call.v_padded);
                });
  }
  for (size_t r = 0; r < queries.rows; ++r) {
    StoreOutput(call, queries, r, states[r], scratch.sums + r * call.v_padded);
  }
}

HWY_INLINE void KeepState(const AttentionCall& call, size_t partial, const SoftmaxState& state) {
  call.Partial(partial)[call.v_padded] = state.max;
  call.Partial(partial)[call.v_padded + 1] = state.sum;
}

// The queries over one block; the results are kept.
void RunBlock(const AttentionCall& call, const Task& task, const TaskScratch& scratch) {
  const Queries& queries = task.queries;
  LoadQueries(call, queries, scratch.q);
  for (size_t r = 0; r < queries.rows; ++r) KeepState(call, task.partial + r, SoftmaxState{});
  BlockKeys keys;
  FindKeys(call.segment(queries).reads, call.blocks[queries.segment][task.block], keys);
  AttendBlock(call, queries, keys, scratch,
              [&](auto n, size_t first, const SoftmaxState* states, const float* sums) HWY_ATTR {
                for (size_t r = 0; r < n(); ++r) {
                  std::copy_n(sums + r * call.v_padded, call.v_padded, call.Partial(task.partial + first + r));
                  KeepState(call, task.partial + first + r, states[r]);
                }
              });
}

// The same for a few queries of every kv head; row h * rows + r is query r of kv head h. K and V are read in the order
// in which they lie in the pool.
void RunStream(const AttentionCall& call, const Task& task, const TaskScratch& scratch) {
  const size_t rows = task.queries.rows;
  const size_t all_rows = rows * call.n_kv_heads;
  for (size_t i = 0; i < all_rows; ++i) {
    KeepState(call, task.partial + i, SoftmaxState{});
    std::fill_n(call.Partial(task.partial + i), call.v_padded, 0.0F);
  }
  BlockKeys keys;
  FindKeys(call.segment(task.queries).reads, call.blocks[task.queries.segment][task.block], keys);
  uint64_t visible[kMaxTileRows];
  uint64_t wanted = 0;
  for (size_t h = 0; h < call.n_kv_heads; ++h) {
    Queries queries = task.queries;
    queries.kv_head = static_cast<int64_t>(h);
    LoadQueries(call, queries, scratch.q + h * rows * call.k_padded);
    SetVisible(call, queries, keys, visible + h * rows);
    MaskRows(call, queries, 0, rows, keys, visible + h * rows, scratch.bias + h * rows * kBlock);
    for (size_t r = 0; r < rows; ++r) wanted |= visible[h * rows + r];
  }
  // Calls f(n, i, rows of h) for groups of n rows from row i on that belong to kv head h. The next block is fetched
  // meanwhile, as far as it can be guessed where it lies.
  const auto for_groups = [&](const PoolRows& pool, const auto& f) HWY_ATTR {
    const uint8_t* first_head[kBlock];
    for (size_t j = 0; j < kBlock; ++j) first_head[j] = pool.At(keys.row[j], 0);
    for (size_t h = 0; h < call.n_kv_heads; ++h) {
      KeyRows key_rows = {.rows = first_head,
                          .offset = h * static_cast<size_t>(pool.head_bytes),
                          .ahead = kBlock * static_cast<size_t>(pool.row_bytes),
                          .ahead_bytes = static_cast<size_t>(pool.head_bytes)};
      ForRowGroups(rows, [&](auto n, size_t first) HWY_ATTR {
        f(n, h * rows + first, key_rows);
        key_rows.ahead_bytes = 0;
      });
    }
  };

  const auto k_dim = static_cast<size_t>(call.pool.k_dim);
  WithType(call.pool.k_type, [&](auto type) HWY_ATTR {
    for_groups(RowsOfK(call.pool), [&](auto n, size_t i, const KeyRows& k) HWY_ATTR {
      for (size_t j = 0; j < kBlock; j += 4) {
        if (((wanted >> j) & 15) == 0) continue;
        ScoresOfFour<type(), n()>(scratch.q + i * call.k_padded, call.k_padded, k, j, k_dim,
                                  scratch.scores + i * kBlock);
      }
    });
  });
  for (size_t h = 0; h < call.n_kv_heads; ++h) {
    ForRowGroups(rows, [&](auto n, size_t first) HWY_ATTR {
      const size_t i = h * rows + first;
      SoftmaxState states[n()];
      Softmax<n()>(scratch.scores + i * kBlock, visible + i, ScoreOptionsOf(call, scratch.bias + i * kBlock), states);
      for (size_t r = 0; r < n(); ++r) KeepState(call, task.partial + i + r, states[r]);
    });
  }
  const auto v_dim = static_cast<size_t>(call.pool.v_dim);
  WithType(call.pool.v_type, [&](auto type) HWY_ATTR {
    for_groups(RowsOfV(call.pool), [&](auto n, size_t i, const KeyRows& v) HWY_ATTR {
      AddValues<type(), n()>(scratch.scores + i * kBlock, visible + i, wanted, v, v_dim, call.Partial(task.partial + i),
                             call.PartialSize());
    });
  });
}

void RunTask(const AttentionCall& call, const Task& task, const TaskScratch& scratch) {
  switch (task.kind) {
    case TaskKind::kTile:
      return RunTile(call, task, scratch);
    case TaskKind::kBlock:
      return RunBlock(call, task, scratch);
    case TaskKind::kStream:
      return RunStream(call, task, scratch);
  }
}

// Merges what was kept of up to kMaxRows queries. sums: [kMaxRows, v_padded]
void Reduce(const AttentionCall& call, const Reduction& reduction, float* sums) {
  static_assert(kMaxReducedRows == kMaxRows);
  ForRowGroups(reduction.queries.rows, [&](auto n, size_t first) HWY_ATTR {
    SoftmaxState states[n()];
    std::fill_n(sums, n() * call.v_padded, 0.0F);
    for (size_t b = 0; b < reduction.blocks; ++b) {
      const size_t partial = reduction.partial + b * reduction.stride + first;
      SoftmaxState blocks[n()];
      for (size_t r = 0; r < n(); ++r) {
        const float* state = call.Partial(partial + r) + call.v_padded;
        blocks[r] = {.max = state[0], .sum = state[1]};
      }
      Merge<n()>(blocks, call.Partial(partial), call.PartialSize(), call.v_padded, states, sums);
    }
    for (size_t r = 0; r < n(); ++r) {
      StoreOutput(call, reduction.queries, first + r, states[r], sums + r * call.v_padded);
    }
  });
}

void RunCall(AttentionCall& call, ThreadPool& threads) {
  thread_local Scratch task_memory;
  thread_local Scratch partial_memory;
  ScratchPieces pieces(task_memory, threads.threads(), TaskScratch(nullptr, call).size);
  call.partial = partial_memory.Get(call.partials * call.PartialSize());
  threads.ParallelFor(call.tasks.size(), call.task_grain, [&](size_t begin, size_t end) {
    const ScratchPieces::Piece piece(pieces);
    const TaskScratch scratch(piece.data(), call);
    for (size_t i = begin; i < end; ++i) RunTask(call, call.tasks[i], scratch);
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

HWY_EXPORT(RunCall);

void Attend(const KvPool& pool, std::span<const AttentionSegment> segments, const HeadsView& q,
            const MutableHeadsView& out, const AttentionOptions& options, ThreadPool& threads) {
  AttentionCall call(pool, segments, q, out, options, threads.threads());
  HWY_DYNAMIC_DISPATCH(RunCall)(call, threads);
}

}  // namespace offgraph::kernels
#endif  // HWY_ONCE
