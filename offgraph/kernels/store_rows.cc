#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "offgraph/kernels/attention.h"
#include "offgraph/kernels/isa.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "offgraph/kernels/store_rows.cc"
#include <hwy/foreach_target.h>
// foreach_target.h comes first.
#include <hwy/highway.h>

#include "offgraph/kernels/dtype-inl.h"

#ifndef OFFGRAPH_KERNELS_STORE_ROWS_ONCE_
#define OFFGRAPH_KERNELS_STORE_ROWS_ONCE_
namespace offgraph::kernels {
namespace {

// Work below this many elements per thread is not worth a second thread.
constexpr int64_t kElementsPerTask = 8192;

// Where one side, K or V, goes.
struct Side {
  HeadsView from;
  void* to = nullptr;
  DType type = DType::kFloat32;
  int64_t n_heads = 0;
  int64_t dim = 0;

  const uint8_t* From(int64_t token, int64_t head) const {
    return static_cast<const uint8_t*>(from.data) +
           (token * from.token_stride + head * from.head_stride) * static_cast<int64_t>(SizeOf(from.type));
  }
  uint8_t* To(int64_t row, int64_t head) const {
    return static_cast<uint8_t*>(to) + (row * n_heads + head) * dim * static_cast<int64_t>(SizeOf(type));
  }
};

// The least magnitude that rounds to infinity.
float OverflowLimit(DType to) {
  switch (to) {
    case DType::kFloat16:
      return 65520.0F;
    case DType::kBFloat16:
      return 0x1.FFp127F;  // halfway between the greatest bf16, 0x1.FEp127, and 2^128
    case DType::kFloat32:
      break;
  }
  return std::numeric_limits<float>::infinity();
}

}  // namespace
}  // namespace offgraph::kernels
#endif  // OFFGRAPH_KERNELS_STORE_ROWS_ONCE_

HWY_BEFORE_NAMESPACE();
namespace offgraph::kernels::HWY_NAMESPACE {

// Converts `count` elements. Returns the index of the first finite one of magnitude `limit` or more, or `count`.
template <DType kFrom, DType kTo>
HWY_INLINE size_t ConvertRow(const void* from, size_t count, float limit, void* to) {
  const F32 d;
  const F32V infinity = hn::Set(d, std::numeric_limits<float>::infinity());
  size_t fault = count;
  for (size_t i = 0; i < count; i += kChunk) {
    const Chunk chunk = LoadChunk<kFrom>(from, i, count);
    alignas(64) float values[kChunk];
    for (size_t n = 0; n < kVecsPerChunk; ++n) {
      hn::Store(chunk.v[n], d, values + n * kLanes);
      const F32V magnitude = hn::Abs(chunk.v[n]);
      const auto overflows = hn::And(hn::Ge(magnitude, hn::Set(d, limit)), hn::Lt(magnitude, infinity));
      if (HWY_UNLIKELY(!hn::AllFalse(d, overflows)) && fault == count) {
        fault = i + n * kLanes + static_cast<size_t>(hn::FindFirstTrue(d, overflows));
      }
    }
    StoreRow<kTo>(values, std::min(kChunk, count - i), static_cast<uint8_t*>(to) + i * SizeOf(kTo));
  }
  return fault;
}

// Stores one head of one token. Returns whether all values fit; where not, says which did not.
bool StoreHead(const Side& side, int64_t token, int64_t row, int64_t head, StoreFault& fault) {
  const uint8_t* from = side.From(token, head);
  uint8_t* to = side.To(row, head);
  const auto dim = static_cast<size_t>(side.dim);
  if (side.from.type == side.type) {
    std::memcpy(to, from, dim * SizeOf(side.type));
    return true;
  }
  bool fits = true;
  WithType(side.from.type, [&](auto from_type) HWY_ATTR {
    WithType(side.type, [&](auto to_type) HWY_ATTR {
      const size_t i = ConvertRow<from_type(), to_type()>(from, dim, OverflowLimit(to_type()), to);
      if (i == dim) return;
      fits = false;
      fault.head = head;
      fault.value = hn::GetLane(LoadChunk<from_type()>(from, i, dim).v[0]);
    });
  });
  return fits;
}

// Stores one token's K and V.
StoreFault StoreToken(const Side* sides, int64_t token, int64_t row, int64_t position) {
  StoreFault first;
  for (int s = 0; s < 2; ++s) {
    for (int64_t head = 0; head < sides[s].n_heads; ++head) {
      StoreFault fault{.found = true, .in_v = s == 1, .position = position};
      if (!StoreHead(sides[s], token, row, head, fault) && !first.found) first = fault;
    }
  }
  return first;
}

StoreFault StoreRowsOnTarget(const Side* sides, const AttentionSegment& segment, ThreadPool& threads) {
  const int64_t per_token = sides[0].n_heads * (sides[0].dim + sides[1].dim);
  const int64_t grain = std::max<int64_t>(1, kElementsPerTask / std::max<int64_t>(1, per_token));
  // The first token with a fault, of each task that meets one; its values are still where they came from.
  std::atomic<int64_t> first_fault = segment.tokens;
  const auto row_of = [&segment](int64_t token) {
    for (const RowRun& run : segment.writes) {
      if (token < run.count) return run.row + token;
      token -= run.count;
    }
    return int64_t{-1};
  };
  const auto store = [&](int64_t token) {
    return StoreToken(sides, segment.token_offset + token, row_of(token), segment.position + token);
  };
  threads.ParallelFor(static_cast<size_t>(segment.tokens), static_cast<size_t>(grain), [&](size_t begin, size_t end) {
    for (auto token = static_cast<int64_t>(begin); token < static_cast<int64_t>(end); ++token) {
      if (!store(token).found) continue;
      int64_t known = first_fault.load();
      while (token < known && !first_fault.compare_exchange_weak(known, token)) {
      }
    }
  });
  return first_fault < segment.tokens ? store(first_fault) : StoreFault{};
}

}  // namespace offgraph::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace offgraph::kernels {

HWY_EXPORT(StoreRowsOnTarget);

StoreFault StoreRows(const KvPool& pool, const AttentionSegment& segment, const HeadsView& k, const HeadsView& v,
                     ThreadPool& threads) {
  const Side sides[2] = {{k, pool.k, pool.k_type, pool.n_kv_heads, pool.k_dim},
                         {v, pool.v, pool.v_type, pool.n_kv_heads, pool.v_dim}};
  return HWY_DYNAMIC_DISPATCH(StoreRowsOnTarget)(sides, segment, threads);
}

}  // namespace offgraph::kernels
#endif  // HWY_ONCE
