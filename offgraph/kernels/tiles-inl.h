// Numbers on their way to and from tile registers (amx.h). Compiled once per instruction set: include it after
// foreach_target.h.
#if defined(OFFGRAPH_KERNELS_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OFFGRAPH_KERNELS_TILES_INL_H_
#undef OFFGRAPH_KERNELS_TILES_INL_H_
#else
#define OFFGRAPH_KERNELS_TILES_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <type_traits>

#include "offgraph/kernels/dtype-inl.h"

// Every processor with tile registers has this instruction set.
#if HWY_TARGET == HWY_AVX3_DL
HWY_BEFORE_NAMESPACE();
namespace offgraph::kernels::HWY_NAMESPACE {

// Rows of a tile, and 32-bit elements in a row of it.
inline constexpr size_t kTileRows = 16;
// Elements of a tile: 32-bit sums, or pairs of bfloat16.
inline constexpr size_t kTileFloats = kTileRows * kTileRows;
// Numbers whose products one tile instruction adds up.
inline constexpr size_t kDepth = 32;

// Pieces of 8 significant bits, each a bfloat16, that hold a number of a type exactly.
inline constexpr int kExactPieces = 3;  // of fp32
constexpr int PiecesOf(DType type) { return type == DType::kFloat32 ? kExactPieces : type == DType::kFloat16 ? 2 : 1; }

// Calls f(std::integral_constant<int, n>) for n in [0, kCount).
template <int kCount, class F>
HWY_INLINE void ForConstants(const F& f) {
  if constexpr (kCount > 0) {
    ForConstants<kCount - 1>(f);
    f(std::integral_constant<int, kCount - 1>());
  }
}

// 16 elements of a row, zeros past its end.
template <DType kType>
HWY_INLINE F32V LoadOrZero(const void* row, size_t i, size_t count) {
  if (HWY_LIKELY(i + kChunk <= count)) return LoadF32<kType>(row, i);
  return i < count ? LoadChunk<kType>(row, i, count).v[0] : hn::Zero(F32());
}

// to[c * to_stride + r] = from[r * 16 + c] for r, c < 16: 4 columns at a time, which are transposed within each quarter
// of 4 vectors that hold rows r, r + 4, r + 8 and r + 12.
HWY_INLINE void TransposeTile(const float* from, float* to, size_t to_stride) {
  const F32 d;
  const hn::FixedTag<float, 4> d4;
  const hn::FixedTag<float, 8> d8;
  for (size_t c = 0; c < kTileRows; c += 4) {
    F32V rows[4];
    for (size_t r = 0; r < 4; ++r) {
      const auto quarter = [&](size_t i) HWY_ATTR { return hn::LoadU(d4, from + (r + i * 4) * kTileRows + c); };
      rows[r] = hn::Combine(d, hn::Combine(d8, quarter(3), quarter(2)), hn::Combine(d8, quarter(1), quarter(0)));
    }
    const hn::Repartition<double, F32> d64;
    const auto lower = [&](F32V a, F32V b) HWY_ATTR {
      return hn::BitCast(d, hn::InterleaveLower(d64, hn::BitCast(d64, a), hn::BitCast(d64, b)));
    };
    const auto upper = [&](F32V a, F32V b) HWY_ATTR {
      return hn::BitCast(d, hn::InterleaveUpper(d64, hn::BitCast(d64, a), hn::BitCast(d64, b)));
    };
    const F32V lo01 = hn::InterleaveLower(d, rows[0], rows[1]);
    const F32V lo23 = hn::InterleaveLower(d, rows[2], rows[3]);
    const F32V hi01 = hn::InterleaveUpper(d, rows[0], rows[1]);
    const F32V hi23 = hn::InterleaveUpper(d, rows[2], rows[3]);
    hn::StoreU(lower(lo01, lo23), d, to + c * to_stride);
    hn::StoreU(upper(lo01, lo23), d, to + (c + 1) * to_stride);
    hn::StoreU(lower(hi01, hi23), d, to + (c + 2) * to_stride);
    hn::StoreU(upper(hi01, hi23), d, to + (c + 3) * to_stride);
  }
}

}  // namespace offgraph::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_AVX3_DL

#endif  // OFFGRAPH_KERNELS_TILES_INL_H_
