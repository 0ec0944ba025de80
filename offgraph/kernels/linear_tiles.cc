// Linear layers by tile registers, which multiply bfloat16 numbers and add in
// fp32.
//
// A number is cut into pieces of 8 significant bits, each exactly a bfloat16:
// fp32 gives three, fp16 two, bfloat16 one. All products of pieces are added
// up; they are exact in fp32.
//
// For 32 rows of the weights and 32 rows of x, in four registers:
//   sums [row of w, row of x]   A = 16 rows of w by 32 columns; B = 16 rows of
//   x, transposed, in pairs of columns
// So tiles of weights are what lies in memory, and one row of x costs no more
// than reading the weights. Weights that are not bfloat16, and blocks that do
// not fill their tiles, are copied to tiles first.
#include "offgraph/kernels/linear_tiles.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "offgraph/kernels/amx.h"
#include "offgraph/kernels/isa.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "offgraph/kernels/linear_tiles.cc"
#include <hwy/foreach_target.h>
// Highway's macros want to come first.
#include "offgraph/kernels/linear_job.h"
#include "offgraph/kernels/linear_rows-inl.h"
#include "offgraph/kernels/tiles-inl.h"

// Every processor with tile registers has this instruction set.
#if HWY_TARGET == HWY_AVX3_DL
HWY_BEFORE_NAMESPACE();
namespace offgraph::kernels::HWY_NAMESPACE {

inline constexpr int64_t kBlockRows = kTileRows;
// Columns of a tile.
inline constexpr int64_t kStep = kDepth;
// Rows of weights, or of x, that are multiplied together: two tiles.
inline constexpr int64_t kPair = 2 * kBlockRows;

// A single row of x fills one column of its tiles.
constexpr TileConfig MakeConfig(int64_t columns) {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    const bool weights = tile == 4 || tile == 5;
    config.row_bytes[tile] = static_cast<uint16_t>(weights ? 64 : columns * 4);
    config.rows[tile] = kBlockRows;
  }
  return config;
}
inline constexpr TileConfig kOneColumn = MakeConfig(1);
inline constexpr TileConfig kAllColumns = MakeConfig(kBlockRows);

// Where the tiles of two blocks lie, in bytes: rows of a tile are `row` apart,
// tiles of successive columns `step`, those of the next piece `piece`, those of
// the other block `block`.
struct Tiles {
  const uint8_t* data = nullptr;
  int64_t row = 64;
  int64_t step = kTileBytes;
  int64_t piece = 0;
  int64_t block = 0;
};

inline int64_t PairsOf(int64_t rows) { return (rows + kPair - 1) / kPair; }
inline int64_t StepsOf(int64_t k) { return (k + kStep - 1) / kStep; }

// Rows of x as tiles B; a batch of them is a block.
struct Slab {
  int64_t first = 0;  // row of x
  int64_t rows = 0;
  int64_t columns = kBlockRows;  // of a tile: rows of a batch
  Tiles tiles;                   // of the first batches

  int64_t batches() const { return (rows + columns - 1) / columns; }
};

// The upper half of each number: the first piece of it.
HWY_INLINE F32V UpperHalf(F32V v) {
  const U32 du;
  return hn::BitCast(F32(), hn::And(hn::BitCast(du, v), hn::Set(du, 0xFFFF0000)));
}

// kPieces pieces of a row of `count` elements: 32 columns each to
// [piece][step], zeros behind its end.
template <DType kType, int kPieces>
void SplitRow(const void* row, int64_t count, const Tiles& tiles, uint8_t* to) {
  const hn::Repartition<uint16_t, F32> d16;
  const auto size = static_cast<size_t>(count);
  for (size_t i = 0; i < size; i += kStep, to += tiles.step) {
    F32V a = LoadOrZero<kType>(row, i, size);
    F32V b = LoadOrZero<kType>(row, i + kChunk, size);
    ForConstants<kPieces>([&](auto piece) HWY_ATTR {
      const auto halves = hn::ConcatOdd(d16, hn::BitCast(d16, b), hn::BitCast(d16, a));
      hn::StoreU(halves, d16, reinterpret_cast<uint16_t*>(to + piece() * tiles.piece));
      if constexpr (piece() + 1 < kPieces) {
        a = hn::Sub(a, UpperHalf(a));
        b = hn::Sub(b, UpperHalf(b));
      }
    });
  }
}

// Row `row` of `view`, [k], whose values are of type `values`.
void SplitRow(const MatrixView& view, DType values, int64_t row, int64_t k, const Tiles& tiles, uint8_t* to) {
  const auto* data =
      static_cast<const uint8_t*>(view.data) + row * view.row_stride * static_cast<int64_t>(SizeOf(view.type));
  DType type = view.type;
  if (view.col_stride != 1) {
    auto* floats = ThreadScratch<struct RowTag>::Get<float>(static_cast<size_t>(k));
    ReadRow(view, row, 0, k, floats);
    data = reinterpret_cast<const uint8_t*>(floats);
    type = DType::kFloat32;
  }
  WithType(type, [&](auto t) HWY_ATTR {
    WithType(values, [&](auto v) HWY_ATTR { SplitRow<t(), PiecesOf(v())>(data, k, tiles, to); });
  });
}

// Rows [first, first + rows) of x.
Slab PackRows(const TileCall& call, int64_t first, int64_t rows, ThreadPool& threads) {
  Slab slab;
  slab.first = first;
  slab.rows = rows;
  slab.columns = rows == 1 ? 1 : kBlockRows;
  Tiles& tiles = slab.tiles;
  tiles.row = slab.columns * 4;
  tiles.step = kBlockRows * tiles.row;
  tiles.piece = StepsOf(call.k) * tiles.step;
  tiles.block = PiecesOf(call.x_values) * tiles.piece;
  auto* memory = ThreadScratch<struct SlabTag>::Get<uint8_t>(static_cast<size_t>(slab.batches() * tiles.block));
  tiles.data = memory;
  if (rows == 1) {
    SplitRow(call.x, call.x_values, first, call.k, tiles, memory);
    return slab;
  }
  threads.ParallelFor(static_cast<size_t>(slab.batches()), 1, [&](size_t begin, size_t end) {
    auto* by_row = ThreadScratch<struct StagingTag>::Get<uint8_t>(static_cast<size_t>(tiles.block));
    for (auto batch = static_cast<int64_t>(begin); batch < static_cast<int64_t>(end); ++batch) {
      const int64_t row = batch * kBlockRows;
      const int64_t count = std::min(kBlockRows, rows - row);
      if (count < kBlockRows) std::fill_n(by_row, tiles.block, uint8_t{0});
      for (int64_t i = 0; i < count; ++i) {
        SplitRow(call.x, call.x_values, first + row + i, call.k, tiles, by_row + i * 64);
      }
      uint8_t* to = memory + batch * tiles.block;
      for (int64_t i = 0; i < tiles.block; i += kTileBytes) {
        TransposeTile(reinterpret_cast<const float*>(by_row + i), reinterpret_cast<float*>(to + i), kBlockRows);
      }
    }
  });
  return slab;
}

// Rows [row, row + 32) of a weight: as they lie, or copied where they do not
// fill their tiles. Those from `end` on are zeros.
Tiles WeightTiles(const MatrixView& w, int64_t row, int64_t end, int64_t k) {
  Tiles tiles;
  if (w.type == DType::kBFloat16 && w.col_stride == 1 && row + kPair <= end && k % kStep == 0) {
    tiles.row = w.row_stride * 2;
    tiles.step = 64;
    tiles.block = kBlockRows * tiles.row;
    tiles.data = static_cast<const uint8_t*>(w.data) + row * tiles.row;
    return tiles;
  }
  tiles.piece = StepsOf(k) * kTileBytes;
  tiles.block = PiecesOf(w.type) * tiles.piece;
  auto* memory = ThreadScratch<struct WeightTag>::Get<uint8_t>(static_cast<size_t>(2 * tiles.block));
  tiles.data = memory;
  if (row + kPair > end) std::fill_n(memory, 2 * tiles.block, uint8_t{0});
  for (int64_t i = 0; i < std::min(kPair, end - row); ++i) {
    SplitRow(w, w.type, row + i, k, tiles, memory + i / kBlockRows * tiles.block + i % kBlockRows * 64);
  }
  return tiles;
}

// Two blocks of weights times one batch of x, or two: sums [block][batch] of a
// tile each. The nearest cache is left to x: weights would fill it, and are
// read in long runs.
template <int kBatches, int kWeightPieces, int kXPieces>
HWY_NOINLINE void MultiplyTiles(const Tiles& w, const Tiles& x, int64_t steps, float* sums) {
  const uint8_t* w0 = w.data;
  const uint8_t* w1 = w.data + w.block;
  const uint8_t* x0 = x.data;
  const uint8_t* x1 = x.data + x.block;
  const int64_t w_row = w.row;
  const int64_t x_row = x.row;
  const int64_t w_step = w.step;
  const int64_t x_step = x.step;
  const int64_t w_piece = w.piece;
  const int64_t x_piece = x.piece;
  ForConstants<4>([](auto sum) { ZeroTile<sum()>(); });
  for (int64_t step = 0; step < steps; ++step) {
    ForConstants<kWeightPieces>([&](auto i) {
      StreamTile<4>(w0 + i() * w_piece, w_row);
      ForConstants<kXPieces>([&](auto j) {
        LoadTile<6>(x0 + j() * x_piece, x_row);
        DotTilesBf16<0, 4, 6>();
        if constexpr (j() == 0) StreamTile<5>(w1 + i() * w_piece, w_row);
        DotTilesBf16<2, 5, 6>();
        if constexpr (kBatches == 2) {
          LoadTile<7>(x1 + j() * x_piece, x_row);
          DotTilesBf16<1, 4, 7>();
          DotTilesBf16<3, 5, 7>();
        }
      });
    });
    w0 += w_step;
    w1 += w_step;
    x0 += x_step;
    x1 += x_step;
  }
  const int64_t tile = x_row / 4 * kBlockRows;
  StoreTile<0>(sums, x_row);
  StoreTile<2>(sums + kBatches * tile, x_row);
  if constexpr (kBatches == 2) {
    StoreTile<1>(sums + tile, x_row);
    StoreTile<3>(sums + 3 * tile, x_row);
  }
}

using Multiply = void (*)(const Tiles& w, const Tiles& x, int64_t steps, float* sums);
template <int kBatches>
Multiply MultiplyOf(DType w, DType x) {
  Multiply result = nullptr;
  WithType(w, [&](auto w_type) {
    WithType(x, [&](auto x_type) { result = MultiplyTiles<kBatches, PiecesOf(w_type()), PiecesOf(x_type())>; });
  });
  return result;
}

// A weight, and its columns of y.
struct Panel {
  const LinearPart* part;
  MutableMatrixView y;
};

// Asks for the lines of y that results will be stored to: its rows are pages
// apart.
void PrefetchResults(const MutableMatrixView& y, int64_t row, int64_t rows, int64_t begin, int64_t count) {
  const auto element = static_cast<int64_t>(SizeOf(y.type));
  const auto* p = static_cast<const char*>(y.data) + (row * y.row_stride + begin) * element;
  for (int64_t i = 0; i < rows; ++i, p += y.row_stride * element) {
    for (int64_t byte = 0; byte < count * element; byte += 64) __builtin_prefetch(p + byte, 1);
  }
}

// Asks for a part of the two blocks of weights that follow these in memory.
void PrefetchWeights(const Tiles& w, int64_t part, int64_t parts) {
  const int64_t bytes = 2 * w.block / parts;
  const uint8_t* p = w.data + 2 * w.block + part * bytes;
  for (int64_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch(p + byte, 0, 2);
}

// Rows [row, row + 32) of a weight times batches [begin, end) of x.
void MultiplyBatches(const TileCall& call, const Panel& panel, int64_t row, const Slab& slab, int64_t begin,
                     int64_t end) {
  const LinearPart& part = *panel.part;
  const int64_t steps = StepsOf(call.k);
  const int64_t columns = std::min(kPair, part.n - row);
  const Tiles w = WeightTiles(part.w, row, part.n, call.k);
  const Multiply multiply[2] = {MultiplyOf<1>(part.w.type, call.x_values), MultiplyOf<2>(part.w.type, call.x_values)};
  alignas(64) float sums[4 * kTileFloats];
  alignas(64) float rows[kPair * kPair];
  alignas(64) float addend[kPair];
  for (int64_t batch = begin; batch < end; batch += 2) {
    const int64_t batches = std::min<int64_t>(2, end - batch);
    Tiles x = slab.tiles;
    x.data += batch * x.block;
    const int64_t first = batch * kBlockRows;
    const int64_t count = std::min(batches * kBlockRows, slab.rows - first);
    PrefetchResults(panel.y, slab.first + first, count, row, columns);
    if (w.piece == 0) PrefetchWeights(w, (batch - begin) / 2, (end - begin + 1) / 2);
    multiply[batches - 1](w, x, steps, sums);
    for (int64_t tile = 0; tile < 2 * batches; ++tile) {
      TransposeTile(sums + tile * kTileFloats, rows + tile % batches * kBlockRows * kPair + tile / batches * kBlockRows,
                    kPair);
    }
    FinishRows(part.epilogue, part.round, panel.y, {slab.first + first, count, row, columns, rows, kPair}, addend);
  }
}

// Rows [row, end) of a weight times one row of x.
void MultiplyRow(const TileCall& call, const Panel& panel, int64_t row, int64_t end, const Slab& slab) {
  constexpr int64_t kAtOnce = 8 * kPair;
  const LinearPart& part = *panel.part;
  const Multiply multiply = MultiplyOf<1>(part.w.type, call.x_values);
  alignas(64) float sums[kAtOnce];
  alignas(64) float addend[kAtOnce];
  for (; row < end; row += kAtOnce) {
    const int64_t count = std::min(kAtOnce, end - row);
    for (int64_t i = 0; i < count; i += kPair) {
      multiply(WeightTiles(part.w, row + i, end, call.k), slab.tiles, StepsOf(call.k), sums + i);
    }
    FinishRows(part.epilogue, part.round, panel.y, {slab.first, 1, row, count, sums, count}, addend);
  }
}

// Calls f(panel, first, last) for the pairs of rows [first, last) of each
// weight that pairs [begin, end) of all weights belong to.
template <class F>
void ForPanels(const TileCall& call, int64_t begin, int64_t end, const F& f) {
  Panel panel = {nullptr, call.y};
  int64_t before = 0;
  for (const LinearPart& part : call.parts) {
    panel.part = &part;
    const int64_t pairs = PairsOf(part.n);
    const int64_t first = std::max(begin - before, int64_t{0});
    const int64_t last = std::min(end - before, pairs);
    if (first < last) f(panel, first, last);
    before += pairs;
    panel.y.data = static_cast<uint8_t*>(panel.y.data) + part.n * static_cast<int64_t>(SizeOf(call.y.type));
  }
}

void RunTiles(const TileCall& call, ThreadPool& threads) {
  // A slab of x, as tiles, stays in the second-level cache.
  constexpr int64_t kSlabBytes = int64_t{1} << 20;
  // Products of a task that is handed to another thread, at least: a few
  // microseconds.
  constexpr int64_t kGrainProducts = int64_t{64} << 10;
  const int64_t row_bytes = PiecesOf(call.x_values) * StepsOf(call.k) * kStep * 2;
  const int64_t slab_rows =
      std::clamp<int64_t>(kSlabBytes / std::max<int64_t>(row_bytes, 1) / kPair * kPair, kPair, 1024);
  int64_t pairs = 0;
  for (const LinearPart& part : call.parts) pairs += PairsOf(part.n);
  if (pairs == 0) return;
  const auto workers = static_cast<int64_t>(threads.threads());
  for (int64_t first = 0; first < call.m; first += slab_rows) {
    const Slab slab = PackRows(call, first, std::min(slab_rows, call.m - first), threads);
    // Where there are few pairs, rows of x are divided as well, at the price of
    // reading weights more than once.
    const int64_t batch_pairs = (slab.batches() + 1) / 2;
    const int64_t splits = std::clamp<int64_t>(workers * 4 / pairs, 1, batch_pairs);
    const int64_t split_batches = (batch_pairs + splits - 1) / splits * 2;
    const int64_t tasks = pairs * splits;
    const int64_t products = std::min(slab.rows, split_batches * slab.columns) * kPair * std::max<int64_t>(call.k, 1);
    const int64_t grain = std::max(kGrainProducts / products, std::max<int64_t>(tasks / (workers * 8), 1));
    threads.ParallelFor(static_cast<size_t>(tasks), static_cast<size_t>(grain), [&](size_t begin, size_t end) {
      const TileScope tiles(slab.columns == 1 ? kOneColumn : kAllColumns);
      if (slab.columns == 1) {
        ForPanels(call, static_cast<int64_t>(begin), static_cast<int64_t>(end),
                  [&](const Panel& panel, int64_t from, int64_t to) {
                    MultiplyRow(call, panel, from * kPair, std::min(to * kPair, panel.part->n), slab);
                  });
        return;
      }
      for (auto task = static_cast<int64_t>(begin); task < static_cast<int64_t>(end); ++task) {
        const int64_t batch = task / pairs * split_batches;
        const int64_t last_batch = std::min(batch + split_batches, slab.batches());
        ForPanels(call, task % pairs, task % pairs + 1, [&](const Panel& panel, int64_t pair, int64_t) {
          if (batch < last_batch) MultiplyBatches(call, panel, pair * kPair, slab, batch, last_batch);
        });
      }
    });
  }
}

}  // namespace offgraph::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_AVX3_DL

#if HWY_ONCE
namespace offgraph::kernels {

#if HWY_TARGETS & HWY_AVX3_DL
void LinearByTiles(const TileCall& call, ThreadPool& threads) { N_AVX3_DL::RunTiles(call, threads); }
#else
void LinearByTiles(const TileCall& /*call*/, ThreadPool& /*threads*/) {}
#endif

}  // namespace offgraph::kernels
#endif  // HWY_ONCE
