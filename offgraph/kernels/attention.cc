#include "offgraph/kernels/attention.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "offgraph/kernels/attention_plan.h"
#include "offgraph/kernels/attention_task.h"
#include "offgraph/kernels/isa.h"
#include "offgraph/kernels/tiles.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "offgraph/kernels/attention.cc"
#include <hwy/foreach_target.h>
// foreach_target.h comes first.
#include <hwy/highway.h>

#include "offgraph/kernels/attention_block-inl.h"
#include "offgraph/kernels/attention_by_tiles-inl.h"
#include "offgraph/kernels/attention_vectors-inl.h"
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

}  // namespace
}  // namespace offgraph::kernels
#endif  // OFFGRAPH_KERNELS_ATTENTION_ONCE_

HWY_BEFORE_NAMESPACE();
namespace offgraph::kernels::HWY_NAMESPACE {

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

// The queries over all blocks, merged as they come.
template <class Products>
void RunTile(const AttentionCall& call, const Task& task, const TaskScratch& scratch) {
  const typename Products::Scope scope;
  const Queries& queries = task.queries;
  Products::SetQueries(call, queries, scratch);
  SoftmaxState states[kMaxTileRows];
  std::fill_n(scratch.sums, queries.rows * call.v_padded, 0.0F);
  const int64_t first_position = call.Position(queries, 0);
  const int64_t last_position = call.Position(queries, queries.rows - 1);
  for (const BlockRef& block : call.blocks[queries.segment]) {
    if (!BlockMatters(block.first, first_position, last_position, call.options)) continue;
    BlockKeys keys;
    FindKeys(call.segment(queries).reads, block, keys);
    Products::AttendBlock(call, queries, keys, scratch,
                          [&](auto n, size_t first, const SoftmaxState* partials, const float* sums) HWY_ATTR {
                            Merge<n()>(partials, sums, call.v_padded, call.v_padded, states + first,
                                       scratch.sums + first * call.v_padded);
                          });
  }
  for (size_t r = 0; r < queries.rows; ++r) {
    StoreOutput(call, queries, r, states[r], scratch.sums + r * call.v_padded);
  }
}

// The queries over one block; the results are kept.
template <class Products>
void RunBlock(const AttentionCall& call, const Task& task, const TaskScratch& scratch) {
  const typename Products::Scope scope;
  const Queries& queries = task.queries;
  Products::SetQueries(call, queries, scratch);
  for (size_t r = 0; r < queries.rows; ++r) KeepState(call, task.partial + r, SoftmaxState{}.max, 0);
  BlockKeys keys;
  FindKeys(call.segment(queries).reads, call.blocks[queries.segment][task.block], keys);
  Products::AttendBlock(
      call, queries, keys, scratch, [&](auto n, size_t first, const SoftmaxState* states, const float* sums) HWY_ATTR {
        for (size_t r = 0; r < n(); ++r) {
          std::copy_n(sums + r * call.v_padded, call.v_padded, call.Partial(task.partial + first + r));
          KeepState(call, task.partial + first + r, states[r].max, states[r].sum);
        }
      });
}

// The same for a few queries of every kv head; row h * rows + r is query r of kv head h. K and V are read in the order
// in which they lie in the pool.
template <class Products>
void RunStream(const AttentionCall& call, const Task& task, const TaskScratch& scratch) {
  const size_t rows = task.queries.rows;
  const typename Products::Scope scope(rows);
  const size_t all_rows = rows * call.n_kv_heads;
  for (size_t i = 0; i < all_rows; ++i) {
    KeepState(call, task.partial + i, SoftmaxState{}.max, 0);
    std::fill_n(call.Partial(task.partial + i), call.v_padded, 0.0F);
  }
  BlockKeys keys;
  FindKeys(call.segment(task.queries).reads, call.blocks[task.queries.segment][task.block], keys);
  uint64_t visible[kMaxTileRows];
  uint64_t wanted = 0;
  for (size_t h = 0; h < call.n_kv_heads; ++h) {
    const Queries queries = OfHead(task.queries, h);
    SetVisible(call, queries, keys, visible + h * rows);
    MaskRows(call, queries, 0, rows, keys, visible + h * rows, scratch.bias + h * rows * kBlock);
    for (size_t r = 0; r < rows; ++r) wanted |= visible[h * rows + r];
  }
  if (wanted != 0) Products::AttendStream(call, task, keys, wanted, visible, scratch);
}

template <class Products>
void RunTask(const AttentionCall& call, const Task& task, const TaskScratch& scratch) {
  switch (task.kind) {
    case TaskKind::kTile:
      return RunTile<Products>(call, task, scratch);
    case TaskKind::kBlock:
      return RunBlock<Products>(call, task, scratch);
    case TaskKind::kStream:
      return RunStream<Products>(call, task, scratch);
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
  auto* run_task = RunTask<ByVectors>;
#if HWY_TARGET == HWY_AVX3_DL
  call.tiles = call.options.round_to_bf16 && TilesAvailable();
  if (call.tiles) run_task = RunTask<ByTiles>;
#endif
  thread_local Scratch task_memory;
  thread_local Scratch partial_memory;
  ScratchPieces pieces(task_memory, threads.threads(), TaskScratch(nullptr, call).size);
  call.partial = partial_memory.Get(call.partials * call.PartialSize());
  threads.ParallelFor(call.tasks.size(), call.task_grain, [&](size_t begin, size_t end) {
    const ScratchPieces::Piece piece(pieces);
    const TaskScratch scratch(piece.data(), call);
    for (size_t i = begin; i < end; ++i) run_task(call, call.tasks[i], scratch);
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
