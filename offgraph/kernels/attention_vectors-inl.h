// The products of attention in vector registers, for the tasks of attention.cc. Compiled once per instruction set:
// include it after foreach_target.h.
#if defined(OFFGRAPH_KERNELS_ATTENTION_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OFFGRAPH_KERNELS_ATTENTION_VECTORS_INL_H_
#undef OFFGRAPH_KERNELS_ATTENTION_VECTORS_INL_H_
#else
#define OFFGRAPH_KERNELS_ATTENTION_VECTORS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "offgraph/kernels/attention_block-inl.h"
#include "offgraph/kernels/attention_task.h"
#include "offgraph/kernels/dtype-inl.h"

HWY_BEFORE_NAMESPACE();
namespace offgraph::kernels::HWY_NAMESPACE {

// One of the two ways in which tasks compute the products of attention; the other is ByTiles. Each has:
//   Scope         the state of the processor that it wants as long as a task computes: for AttendBlock, or for
//                 AttendStream with so many queries of a kv head
//   SetQueries    makes queries ready for AttendBlock
//   AttendBlock   one block for these queries. Calls sink(n, first, states [n], sums [n, v_padded]) for groups of n
//                 queries of which at least one sees a key
//   AttendStream  one block for few queries of every kv head, whose partials go to task.partial and are empty before.
//                 visible: [n_kv_heads * rows], and `wanted` what any of them sees, which is something
struct ByVectors {
  struct Scope {
    explicit Scope(size_t /*rows*/ = 0) {}
  };

  // to [rows, k_padded] fp32
  static void LoadQueries(const AttentionCall& call, const Queries& queries, float* to) {
    WithType(call.q.type, [&](auto type) HWY_ATTR {
      for (size_t r = 0; r < queries.rows; ++r) {
        LoadRow<type()>(QueryAt(call, queries, r), static_cast<size_t>(call.pool.k_dim), to + r * call.k_padded);
      }
    });
  }

  static void SetQueries(const AttentionCall& call, const Queries& queries, const TaskScratch& scratch) {
    LoadQueries(call, queries, scratch.q);
  }

  // K is transposed, so that keys lie in the lanes.
  template <class Sink>
  static void AttendBlock(const AttentionCall& call, const Queries& queries, const BlockKeys& keys,
                          const TaskScratch& scratch, const Sink& sink) {
    uint64_t visible[kMaxTileRows];
    const uint64_t wanted = SetVisible(call, queries, keys, visible);
    if (wanted == 0) return;

    const KvPool& pool = call.pool;
    const auto v_dim = static_cast<size_t>(pool.v_dim);
    const auto kv_head = static_cast<size_t>(queries.kv_head);
    const BlockRows k_rows(RowsOfK(pool), keys);
    const BlockRows v_rows(RowsOfV(pool), keys);
    const uint8_t* values[kBlock];
    for (size_t j = 0; j < kBlock; ++j) values[j] = static_cast<const uint8_t*>(v_rows.OfHead(kv_head).At(j));
    WithType(pool.k_type, [&](auto type) HWY_ATTR {
      TransposeKeys<type()>(k_rows.OfHead(kv_head), wanted, static_cast<size_t>(pool.k_dim), call.k_padded,
                            scratch.staging, scratch.columns);
    });
    WithType(pool.v_type, [&](auto type) HWY_ATTR {
      if (type() == DType::kFloat32) return;
      for (uint64_t rest = wanted; rest != 0; rest &= rest - 1) {
        const auto j = static_cast<size_t>(std::countr_zero(rest));
        LoadRow<type()>(values[j], v_dim, scratch.values + j * call.v_padded);
        values[j] = reinterpret_cast<const uint8_t*>(scratch.values + j * call.v_padded);
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
      AddValues<DType::kFloat32, kRows>(scratch.scores, group_visible, ~uint64_t{0}, KeyRows{values}, v_dim, sums,
                                        call.v_padded);
      sink(group_rows, first, states, sums);
    });
  }

  // K and V are read in the order in which they lie in the pool.
  static void AttendStream(const AttentionCall& call, const Task& task, const BlockKeys& keys, uint64_t wanted,
                           const uint64_t* visible, const TaskScratch& scratch) {
    const size_t rows = task.queries.rows;
    const BlockRows k_rows(RowsOfK(call.pool), keys);
    const BlockRows v_rows(RowsOfV(call.pool), keys);
    // Calls f(n, i, rows of h) for groups of n rows from row i on that belong to kv head h.
    const auto for_groups = [&](const BlockRows& block, const auto& f) HWY_ATTR {
      for (size_t h = 0; h < call.n_kv_heads; ++h) {
        KeyRows of_head = block.OfHeadInTurn(h);
        ForRowGroups(rows, [&](auto n, size_t first) HWY_ATTR {
          f(n, h * rows + first, of_head);
          of_head.ahead_bytes = 0;
        });
      }
    };

    for (size_t h = 0; h < call.n_kv_heads; ++h) {
      LoadQueries(call, OfHead(task.queries, h), scratch.q + h * rows * call.k_padded);
    }
    WithType(call.pool.k_type, [&](auto type) HWY_ATTR {
      for_groups(k_rows, [&](auto n, size_t i, const KeyRows& k) HWY_ATTR {
        for (size_t j = 0; j < kBlock; j += 4) {
          if (((wanted >> j) & 15) == 0) continue;
          ScoresOfFour<type(), n()>(scratch.q + i * call.k_padded, call.k_padded, k, j,
                                    static_cast<size_t>(call.pool.k_dim), scratch.scores + i * kBlock);
        }
      });
    });
    ForRowGroups(rows * call.n_kv_heads, [&](auto n, size_t i) HWY_ATTR {
      SoftmaxState states[n()];
      Softmax<n()>(scratch.scores + i * kBlock, visible + i, ScoreOptionsOf(call, scratch.bias + i * kBlock), states);
      for (size_t r = 0; r < n(); ++r) KeepState(call, task.partial + i + r, states[r].max, states[r].sum);
    });
    WithType(call.pool.v_type, [&](auto type) HWY_ATTR {
      for_groups(v_rows, [&](auto n, size_t i, const KeyRows& v) HWY_ATTR {
        AddValues<type(), n()>(scratch.scores + i * kBlock, visible + i, wanted, v,
                               static_cast<size_t>(call.pool.v_dim), call.Partial(task.partial + i),
                               call.PartialSize());
      });
    });
  }
};

}  // namespace offgraph::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // OFFGRAPH_KERNELS_ATTENTION_VECTORS_INL_H_
