// The two products of attention by tile registers (amx.h): scores, and weighted sums of V, for a block of 64 positions
// and up to 16 queries. Compiled once per instruction set: include it after foreach_target.h.
//
// Queries, keys, weights and values are rounded to bfloat16; products are added up in fp32.
//
// The bits of a sum are fixed by one query and one key (or one dimension of V): for every 32 dimensions (or keys), one
// tile instruction adds up 32 products. The instruction treats its two sides alike. So keys may be its left side, in
// rows as they are stored (for few queries), or its right one, transposed (for many).
#if defined(OFFGRAPH_KERNELS_ATTENTION_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OFFGRAPH_KERNELS_ATTENTION_TILES_INL_H_
#undef OFFGRAPH_KERNELS_ATTENTION_TILES_INL_H_
#else
#define OFFGRAPH_KERNELS_ATTENTION_TILES_INL_H_
#endif

#include <hwy/highway.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "offgraph/kernels/amx.h"
#include "offgraph/kernels/attention_block-inl.h"
#include "offgraph/kernels/tiles-inl.h"

#if HWY_TARGET == HWY_AVX3_DL
HWY_BEFORE_NAMESPACE();
namespace offgraph::kernels::HWY_NAMESPACE {

// Tiles that hold the keys of a block, and steps of kDepth keys in it.
inline constexpr size_t kKeyTiles = kBlock / kTileRows;
inline constexpr size_t kKeySteps = kBlock / kDepth;

constexpr size_t StepsOfDim(size_t dim) { return (dim + kDepth - 1) / kDepth; }

// What the registers are for. With fewer than 16 queries, scores are [key, query] and sums of values [query,
// dimension], so that there are two of each; with 16 all tiles are whole, and each product may use all four.
inline constexpr int kAllSums = 0;
inline constexpr int kScoreSums = 0;
inline constexpr int kValueSums = 2;
inline constexpr int kQueryTile = 4;
inline constexpr int kWeightTile = 5;
inline constexpr int kOtherTiles = 6;

constexpr TileConfig ConfigOfQueries(size_t n) {
  constexpr auto kWhole = static_cast<uint16_t>(kTileRows * 4);
  const auto columns = static_cast<uint16_t>((n + 3) / 4 * 4 * 4);
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    const bool by_query = tile == kValueSums || tile == kValueSums + 1 || tile == kWeightTile;
    const bool by_key = tile < kOtherTiles && !by_query;
    config.rows[tile] = static_cast<uint8_t>(by_query ? n : kTileRows);
    config.row_bytes[tile] = by_key ? columns : kWhole;
  }
  return config;
}
template <size_t... n>
constexpr std::array<TileConfig, sizeof...(n)> ConfigsOfQueries(std::index_sequence<n...> /*queries*/) {
  return {ConfigOfQueries(n)...};
}
inline constexpr auto kTileConfigs = ConfigsOfQueries(std::make_index_sequence<kTileRows + 1>());

// Where tiles lie, in bytes: their rows are `row` apart, tiles of the next 32 products `step`, those of the next 16
// keys or dimensions `next`.
struct TilesAt {
  const uint8_t* data = nullptr;
  int64_t row = 64;
  int64_t step = kTileBytes;
  int64_t next = 0;
};
struct SumsAt {
  uint8_t* data = nullptr;
  int64_t row = 0;
  int64_t next = 0;
};

enum class Side : uint8_t { kLeft, kRight };

// sums[t] = `shared`, which is on kSide, times tile t of `others`, over all steps; for kTiles tiles.
template <int kSum, int kTiles, int kShared, Side kSide>
HWY_INLINE void MultiplyTiles(const TilesAt& shared, const TilesAt& others, size_t steps, const SumsAt& sums) {
  ForConstants<kTiles>([](auto t) { ZeroTile<kSum + t()>(); });
  const uint8_t* shared_step = shared.data;
  const uint8_t* other_step = others.data;
  for (size_t step = 0; step < steps; ++step, shared_step += shared.step, other_step += others.step) {
    LoadTile<kShared>(shared_step, shared.row);
    ForConstants<kTiles>([&](auto t) {
      constexpr int kOther = kOtherTiles + t() % 2;
      LoadTile<kOther>(other_step + t() * others.next, others.row);
      if constexpr (kSide == Side::kLeft) {
        DotTilesBf16<kSum + t(), kShared, kOther>();
      } else {
        DotTilesBf16<kSum + t(), kOther, kShared>();
      }
    });
  }
  ForConstants<kTiles>([&](auto t) { StoreTile<kSum + t()>(sums.data + t() * sums.next, sums.row); });
}

// The same for any number of tiles, kAtOnce at a time.
template <int kSum, int kAtOnce, int kShared, Side kSide>
HWY_INLINE void MultiplyAllTiles(const TilesAt& shared, TilesAt others, size_t steps, SumsAt sums, size_t tiles) {
  const auto multiply = [&](auto n) HWY_ATTR {
    MultiplyTiles<kSum, n(), kShared, kSide>(shared, others, steps, sums);
    others.data += n() * others.next;
    sums.data += n() * sums.next;
  };
  for (; tiles >= kAtOnce; tiles -= kAtOnce) multiply(std::integral_constant<int, kAtOnce>());
  for (; tiles > 0; --tiles) multiply(std::integral_constant<int, 1>());
}

using Halves = hn::Repartition<uint16_t, F32>;
// 32 numbers rounded to bfloat16, to nearest even (VCVTNE2PS2BF16, which takes subnormal numbers for 0, as tiles do).
HWY_INLINE hn::Vec<Halves> RoundToBf16(F32V lower, F32V upper) {
  __m512i rounded;
  asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(rounded) : "v"(lower.raw), "v"(upper.raw));
  return hn::Vec<Halves>{rounded};
}

// Elements [i, i + 32) of a row of `count` as bfloat16, zeros past its end. `kWhole`: the end is not among them.
template <DType kType, bool kWhole>
HWY_INLINE hn::Vec<Halves> LoadBf16(const void* row, size_t i, size_t count) {
  if constexpr (kWhole && kType == DType::kBFloat16) {
    return hn::LoadU(Halves(), static_cast<const uint16_t*>(row) + i);
  } else if constexpr (kWhole) {
    return RoundToBf16(LoadF32<kType>(row, i), LoadF32<kType>(row, i + kChunk));
  } else {
    return RoundToBf16(LoadOrZero<kType>(row, i, count), LoadOrZero<kType>(row, i + kChunk, count));
  }
}

// Calls f(std::bool_constant<whether rows of `dim` elements are whole vectors>).
template <class F>
HWY_INLINE void WithWholeRows(size_t dim, const F& f) {
  dim % kDepth == 0 ? f(std::true_type()) : f(std::false_type());
}

// Rows to tiles of 32 elements: those of row r at to + 64 r, `step` bytes apart. row_at(r): the r-th row.
//   ahead  bytes from a row to what is fetched early; 0: nothing is
template <DType kType, class RowAt>
HWY_INLINE void PackRows(const RowAt& row_at, size_t rows, size_t dim, size_t step, size_t ahead, uint8_t* to) {
  WithWholeRows(dim, [&](auto whole) HWY_ATTR {
    for (size_t r = 0; r < rows; ++r) {
      const auto* row = static_cast<const uint8_t*>(row_at(r));
      for (size_t i = 0; i < dim; i += kDepth) {
        __builtin_prefetch(row + ahead + i * SizeOf(kType));
        hn::StoreU(LoadBf16<kType, whole()>(row, i, dim), Halves(),
                   reinterpret_cast<uint16_t*>(to + i / kDepth * step + r * 64));
      }
    }
  });
}

// The keys of a block as stored: [step][tile]. Tiles without a wanted key are left as they are.
template <DType kType>
HWY_INLINE void PackKeys(const KeyRows& keys, uint64_t wanted, size_t dim, uint8_t* to) {
  for (size_t first = 0; first < kBlock; first += kTileRows) {
    if (((wanted >> first) & 0xFFFF) == 0) continue;
    PackRows<kType>([&](size_t r) { return keys.At(first + r); }, kTileRows, dim, kKeyTiles * kTileBytes,
                    keys.ahead_bytes == 0 ? 0 : keys.ahead, to + first * 64);
  }
}

constexpr std::array<uint16_t, 32> PairsFrom(uint16_t first) {
  std::array<uint16_t, 32> order{};
  for (uint16_t i = 0; i < 32; ++i) order[i] = static_cast<uint16_t>(first + i / 2 + i % 2 * 32);
  return order;
}

// The values of a block: [step][tile of 16 dimensions], pairs of keys side by side. Only wanted rows are read, the
// others count as zeros; steps without a wanted key are left as they are.
//   tiles  that cover `dim`
//   ahead  memory that is fetched early, as many bytes as the block has of bfloat16; null: none
template <DType kType>
HWY_INLINE void PackValues(const KeyRows& values, uint64_t wanted, size_t dim, size_t tiles, const uint8_t* ahead,
                           uint8_t* to) {
  const Halves d;
  // Element 2 i of a result is the even key's, 2 i + 1 the odd key's: those behind 32.
  alignas(64) static constexpr auto kLower = PairsFrom(0);
  alignas(64) static constexpr auto kUpper = PairsFrom(16);
  const __m512i lower = hn::Load(d, kLower.data()).raw;
  const __m512i upper = hn::Load(d, kUpper.data()).raw;
  const auto store = [&](const hn::Vec<Halves>& even, const hn::Vec<Halves>& odd, __m512i order, uint8_t* at) HWY_ATTR {
    const hn::Vec<Halves> pairs{_mm512_permutex2var_epi16(even.raw, order, odd.raw)};
    hn::StoreU(pairs, d, reinterpret_cast<uint16_t*>(at));
  };
  const auto row_of = [&](size_t j) { return to + j / kDepth * tiles * kTileBytes + j % kDepth / 2 * 64; };
  if (wanted == ~uint64_t{0} && dim % kDepth == 0) {
    if (ahead == nullptr) ahead = static_cast<const uint8_t*>(values.At(0));
    for (size_t j = 0; j < kBlock; j += 2) {
      const void* even_row = values.At(j);
      const void* odd_row = values.At(j + 1);
      uint8_t* row = row_of(j);
      for (size_t i = 0; i < dim; i += kDepth, row += 2 * kTileBytes, ahead += 128) {
        __builtin_prefetch(ahead);
        __builtin_prefetch(ahead + 64);
        const auto even = LoadBf16<kType, true>(even_row, i, dim);
        const auto odd = LoadBf16<kType, true>(odd_row, i, dim);
        store(even, odd, lower, row);
        store(even, odd, upper, row + kTileBytes);
      }
    }
    return;
  }
  WithWholeRows(dim, [&](auto whole) HWY_ATTR {
    const auto load = [&](size_t j, size_t i) HWY_ATTR {
      return ((wanted >> j) & 1) != 0 ? LoadBf16<kType, whole()>(values.At(j), i, dim) : hn::Zero(d);
    };
    for (size_t j = 0; j < kBlock; j += 2) {
      if (static_cast<uint32_t>(wanted >> (j / kDepth * kDepth)) == 0) continue;
      uint8_t* row = row_of(j);
      for (size_t tile = 0; tile < tiles; tile += 2, row += 2 * kTileBytes) {
        const auto even = load(j, tile * kChunk);
        const auto odd = load(j + 1, tile * kChunk);
        store(even, odd, lower, row);
        if (tile + 1 < tiles) store(even, odd, upper, row + kTileBytes);
      }
    }
  });
}

// to[c, r] = from[r, c] for r < rows, c < columns, both multiples of 4.
HWY_INLINE void TransposeFours(const float* from, size_t from_stride, size_t rows, size_t columns, float* to,
                               size_t to_stride) {
  for (size_t r = 0; r < rows; r += 4) {
    for (size_t c = 0; c < columns; c += 4) {
      Four four[4];
      for (size_t k = 0; k < 4; ++k) four[k] = LoadFour(from + (r + k) * from_stride + c);
      Transpose(four);
      for (size_t k = 0; k < 4; ++k) StoreFour(four[k], to + (c + k) * to_stride + r);
    }
  }
}

HWY_INLINE bool AnyNaN(const float* row, size_t count) {
  const F32 d;
  auto nan = hn::IsNaN(hn::LoadU(d, row));
  for (size_t i = kChunk; i < count; i += kChunk) nan = hn::Or(nan, hn::IsNaN(hn::LoadU(d, row + i)));
  return !hn::AllFalse(d, nan);
}

}  // namespace offgraph::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_AVX3_DL

#endif  // OFFGRAPH_KERNELS_ATTENTION_TILES_INL_H_
