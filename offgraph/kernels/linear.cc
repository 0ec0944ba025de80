// One driver for all products: a panel (a few rows or columns of the weight) is converted to fp32 once for a block of
// rows of x, in a buffer that stays in the nearest cache, and multiplied in register tiles. A row takes the same path
// in every tile shape, which is why its bits do not depend on its neighbours. Weights that are fp32 already are
// multiplied where they lie.
#include "offgraph/kernels/linear.h"

#include <algorithm>
#include <numeric>

#include "offgraph/kernels/isa.h"
#include "offgraph/kernels/linear_tiles.h"
#include "offgraph/kernels/tiles.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "offgraph/kernels/linear.cc"
#include <hwy/foreach_target.h>
// Highway's macros want to come first.
#include "offgraph/kernels/linear_job.h"
#include "offgraph/kernels/linear_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace offgraph::kernels {
namespace HWY_NAMESPACE {

// A register tile: kTileRows rows of x times kTileVectors rows (or vectors of columns) of the weight. AVX-512 and NEON
// have 32 registers, AVX2 has 16.
constexpr int kTileRows = (HWY_TARGET == HWY_AVX2 || kLanes == 1) ? 2 : 6;
constexpr int kTileVectors = 4;

#if HWY_TARGET == HWY_SCALAR
HWY_INLINE void SumLanesOf4(F32V a, F32V b, F32V c, F32V d, float* HWY_RESTRICT out) {
  out[0] = hn::GetLane(a);
  out[1] = hn::GetLane(b);
  out[2] = hn::GetLane(c);
  out[3] = hn::GetLane(d);
}
#else
// Adds halves of a vector until 128 bits are left, and stores those.
template <class D>
HWY_INLINE void StoreSumOfBlocks(D d, hn::Vec<D> v, float* HWY_RESTRICT out) {
  if constexpr (hn::MaxLanes(D()) > 4) {
    const hn::Half<D> half;
    StoreSumOfBlocks(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)), out);
  } else {
    hn::StoreU(v, d, out);
  }
}

// The sums of all lanes of four vectors, to out[0, 4): of every 128 bits lanes i and i + 2, then those two sums, then
// halves of the vector.
HWY_INLINE void SumLanesOf4(F32V a, F32V b, F32V c, F32V d, float* HWY_RESTRICT out) {
  const F32 df;
  const hn::Repartition<uint64_t, F32> du64;
  const auto ab = hn::BitCast(du64, hn::Add(hn::InterleaveLower(df, a, b), hn::InterleaveUpper(df, a, b)));
  const auto cd = hn::BitCast(du64, hn::Add(hn::InterleaveLower(df, c, d), hn::InterleaveUpper(df, c, d)));
  const auto even = hn::BitCast(df, hn::InterleaveLower(du64, ab, cd));
  const auto odd = hn::BitCast(df, hn::InterleaveUpper(du64, ab, cd));
  StoreSumOfBlocks(df, hn::Add(even, odd), out);
}
#endif

struct Panel {
  const float* data;
  int64_t stride;
};

inline void ReadWeightRow(const LinearJob& job, int64_t row, int64_t begin, int64_t count, float* out) {
  if (job.quantized != nullptr) {
    ReadRow(*job.quantized, row, begin, count, out);
  } else {
    ReadRow(*job.dense, row, begin, count, out);
  }
}

inline bool IsPlainFloat(const MatrixView& view) { return view.type == DType::kFloat32 && view.col_stride == 1; }

// x w^T: vectors along k, kTileVectors rows of w at a time.
struct DotKernel {
  static constexpr int kTileColumns = kTileVectors;
  static constexpr int kMaxPanelColumns = 48;
  static constexpr auto kStep = static_cast<int64_t>(kLanes);

  // Rows of x and of a panel are zero-padded to whole vectors.
  static int64_t PaddedK(int64_t k) { return (k + kStep - 1) / kStep * kStep; }
  // Multiples of 16, so that results are stored as whole vectors.
  static int64_t PanelColumns(int64_t padded_k) {
    constexpr int64_t kPanelFloats = 8192;  // 32 KiB
    const int64_t columns = kPanelFloats / std::max<int64_t>(padded_k, 1) / 16 * 16;
    return std::clamp<int64_t>(columns, 16, kMaxPanelColumns);
  }
  static int64_t PanelFloats(int64_t columns, int64_t padded_k) { return columns * padded_k; }

  // Rows [begin, begin + count) of w. `count` is at most PanelColumns; missing rows of the last tile are zero.
  static Panel Read(const LinearJob& job, int64_t begin, int64_t count, int64_t padded_k, float* scratch) {
    if (job.dense != nullptr && IsPlainFloat(*job.dense) && padded_k == job.k && count % kTileColumns == 0) {
      return {static_cast<const float*>(job.dense->data) + begin * job.dense->row_stride, job.dense->row_stride};
    }
    for (int64_t row = 0; row < count; ++row) {
      float* out = scratch + row * padded_k;
      ReadWeightRow(job, begin + row, 0, job.k, out);
      std::fill(out + job.k, out + padded_k, 0.0F);
    }
    const int64_t whole = (count + kTileColumns - 1) / kTileColumns * kTileColumns;
    std::fill(scratch + count * padded_k, scratch + whole * padded_k, 0.0F);
    return {scratch, padded_k};
  }

  template <int kRows>
  static HWY_NOINLINE void Tile(const float* HWY_RESTRICT x, int64_t x_stride, const Panel& panel, int64_t column,
                                int64_t padded_k, float* HWY_RESTRICT out, int64_t out_stride) {
    const F32 d;
    const float* HWY_RESTRICT w = panel.data + column * panel.stride;
    F32V sums[kRows][kTileColumns];
    for (auto& row : sums) {
      for (F32V& sum : row) sum = hn::Zero(d);
    }
    for (int64_t k = 0; k < padded_k; k += kStep) {
      F32V xs[kRows];
      for (int i = 0; i < kRows; ++i) xs[i] = hn::LoadU(d, x + i * x_stride + k);
      for (int j = 0; j < kTileColumns; ++j) {
        const F32V ws = hn::LoadU(d, w + j * panel.stride + k);
        for (int i = 0; i < kRows; ++i) sums[i][j] = hn::MulAdd(xs[i], ws, sums[i][j]);
      }
    }
    static_assert(kTileColumns == 4);
    for (int i = 0; i < kRows; ++i) {
      SumLanesOf4(sums[i][0], sums[i][1], sums[i][2], sums[i][3], out + i * out_stride);
    }
  }
};

// x w: vectors along n, kTileVectors of them at a time.
struct OuterKernel {
  static constexpr int kTileColumns = kTileVectors * static_cast<int>(kLanes);
  // Whole units of 32, as a quantized row wants.
  static constexpr int kMaxPanelColumns = std::lcm(kTileColumns, 32);

  static int64_t PaddedK(int64_t k) { return k; }
  static int64_t PanelColumns(int64_t /*padded_k*/) { return kMaxPanelColumns; }
  static int64_t PanelFloats(int64_t columns, int64_t padded_k) { return columns * padded_k; }

  // Columns [begin, begin + count) of w; missing columns of the last tile are zero.
  static Panel Read(const LinearJob& job, int64_t begin, int64_t count, int64_t /*padded_k*/, float* scratch) {
    if (job.dense != nullptr && IsPlainFloat(*job.dense) && count % kTileColumns == 0) {
      return {static_cast<const float*>(job.dense->data) + begin, job.dense->row_stride};
    }
    const int64_t whole = (count + kTileColumns - 1) / kTileColumns * kTileColumns;
    for (int64_t row = 0; row < job.k; ++row) {
      float* out = scratch + row * whole;
      ReadWeightRow(job, row, begin, count, out);
      std::fill(out + count, out + whole, 0.0F);
    }
    return {scratch, whole};
  }

  template <int kRows>
  static HWY_NOINLINE void Tile(const float* HWY_RESTRICT x, int64_t x_stride, const Panel& panel, int64_t column,
                                int64_t k_count, float* HWY_RESTRICT out, int64_t out_stride) {
    const F32 d;
    const float* HWY_RESTRICT w = panel.data + column;
    F32V sums[kRows][kTileVectors];
    for (auto& row : sums) {
      for (F32V& sum : row) sum = hn::Zero(d);
    }
    for (int64_t k = 0; k < k_count; ++k) {
      F32V ws[kTileVectors];
      for (int j = 0; j < kTileVectors; ++j) ws[j] = hn::LoadU(d, w + k * panel.stride + j * kLanes);
      for (int i = 0; i < kRows; ++i) {
        const F32V xs = hn::Set(d, x[i * x_stride + k]);
        for (int j = 0; j < kTileVectors; ++j) sums[i][j] = hn::MulAdd(xs, ws[j], sums[i][j]);
      }
    }
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < kTileVectors; ++j) hn::StoreU(sums[i][j], d, out + i * out_stride + j * kLanes);
    }
  }
};

// Rows of x as fp32, padded as the kernel wants.
struct Rows {
  const float* data;
  int64_t stride;
};

// The tile of `rows` rows, at most kRows, by the kernel's function for that many.
template <class Kernel, int kRows>
HWY_INLINE void MultiplyTile(int64_t rows, const float* x, int64_t x_stride, const Panel& panel, int64_t column,
                             int64_t padded_k, float* out) {
  if (rows == kRows) {
    Kernel::template Tile<kRows>(x, x_stride, panel, column, padded_k, out, Kernel::kMaxPanelColumns);
  } else if constexpr (kRows > 1) {
    MultiplyTile<Kernel, kRows - 1>(rows, x, x_stride, panel, column, padded_k, out);
  }
}

// Rows [row, row + rows) of the result, columns [begin, begin + count), which are `panel`.
template <class Kernel>
void MultiplyPanel(const LinearJob& job, const Rows& x, int64_t slab_row, int64_t row, int64_t rows, const Panel& panel,
                   int64_t begin, int64_t count, int64_t padded_k) {
  constexpr int64_t kMaxColumns = Kernel::kMaxPanelColumns;
  alignas(64) float sums[kTileRows * kMaxColumns];
  alignas(64) float addend[kMaxColumns];
  for (int64_t i = row; i < row + rows; i += kTileRows) {
    const int64_t tile_rows = std::min<int64_t>(kTileRows, row + rows - i);
    const float* xi = x.data + (i - slab_row) * x.stride;
    for (int64_t j = 0; j < count; j += Kernel::kTileColumns) {
      MultiplyTile<Kernel, kTileRows>(tile_rows, xi, x.stride, panel, j, padded_k, sums + j);
    }
    FinishRows(job.epilogue, job.round, job.y, {i, tile_rows, begin, count, sums, kMaxColumns}, addend);
  }
}

// Rows [first, first + count) of x.
inline Rows ReadX(const LinearJob& job, int64_t first, int64_t count, int64_t padded_k, ThreadPool& threads) {
  if (IsPlainFloat(job.x) && padded_k == job.k) {
    return {static_cast<const float*>(job.x.data) + first * job.x.row_stride, job.x.row_stride};
  }
  constexpr int64_t kGrainFloats = 16384;
  float* data = ThreadScratch<struct XTag>::Get<float>(static_cast<size_t>(count * padded_k));
  const int64_t grain = kGrainFloats / std::max<int64_t>(padded_k, 1) + 1;
  threads.ParallelFor(static_cast<size_t>(count), static_cast<size_t>(grain), [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      float* row = data + static_cast<int64_t>(i) * padded_k;
      ReadRow(job.x, first + static_cast<int64_t>(i), 0, job.k, row);
      std::fill(row + job.k, row + padded_k, 0.0F);
    }
  });
  return {data, padded_k};
}

template <class Kernel>
void Run(const LinearJob& job, ThreadPool& threads) {
  // A slab of x is converted at once, and shared by the threads; it stays in the second-level cache.
  constexpr int64_t kSlabFloats = 131072;  // 512 KiB
  // Work that is handed to another thread, at least: about ten microseconds.
  constexpr int64_t kGrainProducts = 262144;
  if (job.m == 0 || job.n == 0) return;
  const int64_t padded_k = Kernel::PaddedK(job.k);
  const int64_t panel_columns = Kernel::PanelColumns(padded_k);
  const int64_t panels = (job.n + panel_columns - 1) / panel_columns;
  const int64_t slab_rows =
      std::min(job.m, std::clamp<int64_t>(kSlabFloats / std::max<int64_t>(padded_k, 1), 16, 512) / 16 * 16);
  for (int64_t slab = 0; slab < job.m; slab += slab_rows) {
    const int64_t rows = std::min(slab_rows, job.m - slab);
    const Rows x = ReadX(job, slab, rows, padded_k, threads);
    // Where there are few panels, rows are divided as well, at the price of reading a panel more than once.
    const int64_t wanted_tasks = 4 * static_cast<int64_t>(threads.threads());
    const int64_t blocks =
        panels >= wanted_tasks ? 1 : std::min((wanted_tasks + panels - 1) / panels, (rows + 15) / 16);
    const int64_t block_rows = ((rows + blocks - 1) / blocks + kTileRows - 1) / kTileRows * kTileRows;
    const int64_t task_products = std::max<int64_t>(block_rows * panel_columns * job.k, 1);
    const int64_t tasks = panels * blocks;
    const int64_t grain = std::max(kGrainProducts / task_products + 1, tasks / (wanted_tasks * 4));
    threads.ParallelFor(static_cast<size_t>(tasks), static_cast<size_t>(grain), [&](size_t begin, size_t end) {
      float* scratch = ThreadScratch<struct PanelTag>::template Get<float>(
          static_cast<size_t>(Kernel::PanelFloats(panel_columns, padded_k)));
      int64_t held = -1;
      Panel panel{};
      for (auto task = static_cast<int64_t>(begin); task < static_cast<int64_t>(end); ++task) {
        const int64_t first = task / blocks * panel_columns;
        const int64_t columns = std::min(panel_columns, job.n - first);
        const int64_t row = slab + task % blocks * block_rows;
        if (row >= slab + rows) continue;
        if (held != first) panel = Kernel::Read(job, first, columns, padded_k, scratch);
        held = first;
        MultiplyPanel<Kernel>(job, x, slab, row, std::min(block_rows, slab + rows - row), panel, first, columns,
                              padded_k);
      }
    });
  }
}

void RunDot(const LinearJob& job, ThreadPool& threads) { Run<DotKernel>(job, threads); }
void RunOuter(const LinearJob& job, ThreadPool& threads) { Run<OuterKernel>(job, threads); }

}  // namespace HWY_NAMESPACE
}  // namespace offgraph::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace offgraph::kernels {
namespace {

HWY_EXPORT(RunDot);
HWY_EXPORT(RunOuter);

}  // namespace

void Linear(int64_t m, int64_t k, const MatrixView& x, DType x_values, std::span<const LinearPart> parts,
            const MutableMatrixView& y, ThreadPool& threads) {
  const bool tiles = TilesAvailable();
  const auto fits_tiles = [&](const LinearPart& part) { return tiles && part.w.type != DType::kFloat32; };
  if (std::all_of(parts.begin(), parts.end(), fits_tiles)) {
    LinearByTiles({m, k, x, x_values, parts, y}, threads);
    return;
  }
  MutableMatrixView columns = y;
  for (const LinearPart& part : parts) {
    if (fits_tiles(part)) {
      LinearByTiles({m, k, x, x_values, {&part, 1}, columns}, threads);
    } else {
      HWY_DYNAMIC_DISPATCH(RunDot)
      ({.m = m,
        .n = part.n,
        .k = k,
        .x = x,
        .dense = &part.w,
        .y = columns,
        .epilogue = part.epilogue,
        .round = part.round},
       threads);
    }
    columns.data = static_cast<uint8_t*>(columns.data) + part.n * static_cast<int64_t>(SizeOf(y.type));
  }
}

void Linear(int64_t m, int64_t n, int64_t k, const MatrixView& x, const MatrixView& w, const MutableMatrixView& y,
            const Epilogue& epilogue, ThreadPool& threads) {
  const LinearPart part = {w, n, epilogue, DType::kFloat32};
  Linear(m, k, x, x.type, {&part, 1}, y, threads);
}

void MatMul(int64_t m, int64_t n, int64_t k, const MatrixView& a, const MatrixView& b, const MutableMatrixView& y,
            const Epilogue& epilogue, ThreadPool& threads) {
  HWY_DYNAMIC_DISPATCH(RunOuter)
  ({.m = m, .n = n, .k = k, .x = a, .dense = &b, .y = y, .epilogue = epilogue}, threads);
}

void QuantizedLinear(int64_t m, int64_t n, int64_t k, const MatrixView& x, const QuantizedView& w,
                     const MutableMatrixView& y, const Epilogue& epilogue, ThreadPool& threads) {
  HWY_DYNAMIC_DISPATCH(RunDot)
  ({.m = m, .n = n, .k = k, .x = x, .quantized = &w, .y = y, .epilogue = epilogue}, threads);
}

void QuantizedMatMul(int64_t m, int64_t n, int64_t k, const MatrixView& a, const QuantizedView& b,
                     const MutableMatrixView& y, const Epilogue& epilogue, ThreadPool& threads) {
  HWY_DYNAMIC_DISPATCH(RunOuter)
  ({.m = m, .n = n, .k = k, .x = a, .quantized = &b, .y = y, .epilogue = epilogue}, threads);
}

}  // namespace offgraph::kernels
#endif  // HWY_ONCE
