// The fast mode's driver: quantizes rows of activations, hands pieces of the product to the kernels of an instruction
// set, and finishes the sums.
#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "offgraph/kernels/amx.h"
#include "offgraph/kernels/isa.h"
#include "offgraph/kernels/packed_job.h"
#include "offgraph/kernels/packed_weights.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "offgraph/kernels/packed_linear.cc"
#include <hwy/foreach_target.h>
// Highway's macros want to come first.
#include "offgraph/kernels/activation-inl.h"
#include "offgraph/kernels/linear_job.h"
#include "offgraph/kernels/linear_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace offgraph::kernels::HWY_NAMESPACE {

using I32 = hn::Rebind<int32_t, F32>;
using I32V = hn::Vec<I32>;

// The scale of a unit and what its values are multiplied by to get codes. A unit too small for its inverse is zero, one
// that holds infinity or NaN is NaN as a whole.
struct UnitScale {
  float scale;
  float inverse;
};
inline UnitScale ScaleOf(const float* HWY_RESTRICT x, int64_t count) {
  const U32 du;
  auto largest = hn::Zero(du);  // magnitudes order as integers do, NaN above infinity
  for (int64_t i = 0; i < count; i += static_cast<int64_t>(kLanes)) {
    largest = hn::Max(largest, hn::And(hn::BitCast(du, hn::LoadU(F32(), x + i)), hn::Set(du, 0x7FFFFFFF)));
  }
  const uint32_t bits = hn::GetLane(hn::MaxOfLanes(du, largest));
  if (bits >= 0x7F800000) return {std::numeric_limits<float>::quiet_NaN(), 0.0F};
  const float magnitude = std::bit_cast<float>(bits);
  if (magnitude < 0x1p-100F) return {0.0F, 0.0F};
  return {magnitude / kPackedLargest, kPackedLargest / magnitude};
}

// 32 codes of `x`, to hi [32] and lo [32]; returns their sum.
inline I32V QuantizeTile(const float* HWY_RESTRICT x, float inverse, int8_t* HWY_RESTRICT out) {
  const F32 d;
  const I32 di;
  const hn::Rebind<int8_t, F32> d8;
  // Adding 1.5 * 2^23 rounds to an integer, to nearest even, and leaves it in the lowest bits.
  const auto magic = hn::Set(d, 0x1.8p23F);
  const auto offset = hn::Set(di, 0x4B400000 - 8);
  I32V sum = hn::Zero(di);
  for (size_t i = 0; i < kPackedTile; i += kLanes) {
    const auto rounded = hn::Add(hn::Mul(hn::LoadU(d, x + i), hn::Set(d, inverse)), magic);
    const auto code = hn::Sub(hn::BitCast(di, rounded), offset);  // and 8 more
    const auto hi = hn::ShiftRight<4>(code);
    const auto lo = hn::Sub(hn::And(code, hn::Set(di, 15)), hn::Set(di, 8));
    hn::StoreU(hn::DemoteTo(d8, hi), d8, out + i);
    hn::StoreU(hn::DemoteTo(d8, lo), d8, out + kPackedTile + i);
    sum = hn::Add(sum, hn::Sub(code, hn::Set(di, 8)));
  }
  return sum;
}

// Quantizes row `row` of `view`, [k].
void QuantizeRow(const MatrixView& view, int64_t row, const PackedWeights& w, const PackedRowOut& out) {
  float* x = ThreadScratch<struct QuantizeTag>::Get<float>(static_cast<size_t>(w.k()));
  ReadRow(view, row, 0, w.k(), x);
  const I32 di;
  const int64_t tiles_per_piece = std::min<int64_t>(w.group_size(), kPackedUnit) / kPackedTile;
  for (int64_t unit = 0; unit * kPackedUnit < w.k(); ++unit) {
    const int64_t begin = unit * kPackedUnit;
    const int64_t count = std::min<int64_t>(kPackedUnit, w.k() - begin);
    const UnitScale scale = ScaleOf(x + begin, count);
    out.scales[unit * out.batch] = scale.scale;
    if (scale.inverse == 0.0F) std::fill_n(x + begin, count, 0.0F);  // no code, whatever it is
    I32V sum = hn::Zero(di);
    for (int64_t i = 0; i < count / kPackedTile; ++i) {
      const int64_t tile = unit * 2 + i;
      sum = hn::Add(
          sum, QuantizeTile(x + tile * kPackedTile, scale.inverse, out.codes + tile * out.batch * 2 * kPackedTile));
      if (out.zero_sums == nullptr || (i + 1) % tiles_per_piece != 0) continue;
      const int64_t piece = tile / tiles_per_piece;
      const int32_t total = hn::GetLane(hn::SumOfLanes(di, sum));
      out.zero_sums[piece * out.batch] = -w.zero() * total;
      out.bias_factors[piece * out.batch] = scale.scale * static_cast<float>(total);
      sum = hn::Zero(di);
    }
  }
}

// Rows [row, row + rows), columns [begin, begin + count) of y, from sums [rows][stride], of which the content is lost.
void FinishSums(const Epilogue& epilogue, const MutableMatrixView& y, int64_t row, int64_t rows, int64_t begin,
                int64_t count, int64_t stride, float* sums) {
  constexpr int64_t kWidth = 256;
  alignas(64) float addend[kWidth];
  for (int64_t i = 0; i < count; i += kWidth) {
    FinishRows(epilogue, DType::kFloat32, y, {row, rows, begin + i, std::min(kWidth, count - i), sums + i, stride},
               addend);
  }
}

// y [rows, 16 pairs], from sums [rows][stride] whose columns are 16 of the gate and 16 of the up projection in turn.
void GateSums(Activation activation, const float* sums, int64_t rows, int64_t pairs, int64_t stride, float* y,
              int64_t y_stride) {
  const F32 d;
  WithActivation(activation, [&](auto known) HWY_ATTR {
    for (int64_t row = 0; row < rows; ++row, sums += stride, y += y_stride) {
      for (int64_t pair = 0; pair < pairs; ++pair) {
        const float* gate = sums + pair * 2 * kPackedBlock;
        for (size_t i = 0; i < kPackedBlock; i += kLanes) {
          const F32V active = ActivationOf<known()>(hn::LoadU(d, gate + i));
          hn::StoreU(hn::Mul(active, hn::LoadU(d, gate + kPackedBlock + i)), d, y + pair * kPackedBlock + i);
        }
      }
    }
  });
}

}  // namespace offgraph::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace offgraph::kernels {
namespace {

HWY_EXPORT(QuantizeRow);
HWY_EXPORT(FinishSums);
HWY_EXPORT(GateSums);

// Rows of x that are quantized at once, so that they stay in the second-level cache; multiples of two batches.
int64_t SlabRows(int64_t k) {
  constexpr int64_t kBytes = int64_t{768} * 1024;
  return std::max<int64_t>(kBytes / (2 * k) / 32, 1) * 32;
}

using Kernel = void (*)(const PackedJob& job, const PackedTask& task);

struct Method {
  Kernel kernel;
  int64_t batch;
  bool wants_sums;  // of the activations' codes
};
Method Choose(DotIsa isa, int64_t rows, const PackedWeights& w) {
#if defined(__x86_64__)
  // Unpacking weights for the tile registers pays from a few rows on.
  constexpr int64_t kLeastAmxRows = 12;
  if (isa == DotIsa::kAmx && rows >= kLeastAmxRows) return {MultiplyAmx, kPackedBlock, w.has_biases()};
  constexpr std::array<Kernel, 5> kKernels = {MultiplyPortable, MultiplyAvx2, MultiplyAvx512, MultiplyVnni,
                                              MultiplyVnni};
  const Kernel kernel = kKernels[static_cast<size_t>(isa)];
#else
  static_cast<void>(isa);
  static_cast<void>(w);
  const Kernel kernel = MultiplyPortable;
#endif
  return {kernel, rows >= 3 ? 4 : rows, true};
}

// The memory of PackedRows, carved from one buffer.
struct RowsMemory {
  RowsMemory(const PackedWeights& w, int64_t padded_rows, int64_t units, int64_t pieces) {
    const auto bytes_of = [&](int64_t count) { return (count * 4 + 63) / 64 * 64; };
    const int64_t code_bytes = padded_rows * w.k() * 2 + kTileBytes;  // kernels read a tile more
    auto* memory = ThreadScratch<struct PackedRowsTag>::Get<uint8_t>(
        static_cast<size_t>(code_bytes + bytes_of(padded_rows * units) + 2 * bytes_of(padded_rows * pieces)));
    codes = reinterpret_cast<int8_t*>(memory);
    memory += code_bytes;
    scales = reinterpret_cast<float*>(memory);
    memory += bytes_of(padded_rows * units);
    zero_sums = reinterpret_cast<int32_t*>(memory);
    memory += bytes_of(padded_rows * pieces);
    bias_factors = reinterpret_cast<float*>(memory);
  }
  int8_t* codes;
  float* scales;
  int32_t* zero_sums;
  float* bias_factors;
};

// Rows [first, first + rows) of x, then rows of zeros up to a whole batch.
PackedJob QuantizeSlab(const MatrixView& x, int64_t first, int64_t rows, const PackedWeights& w, const Method& method,
                       ThreadPool& threads) {
  const int64_t batch = method.batch;
  PackedJob job;
  job.w = &w;
  job.units = (w.k() + kPackedUnit - 1) / kPackedUnit;
  job.groups = w.k() / w.group_size();
  job.pieces = w.k() / std::min<int64_t>(w.group_size(), kPackedUnit);
  const int64_t padded = (rows + batch - 1) / batch * batch;
  const RowsMemory memory(w, padded, job.units, job.pieces);
  job.x = {memory.codes, memory.scales, memory.zero_sums, memory.bias_factors, batch};
  static constexpr float kZeros[kPackedUnit] = {};
  const auto quantize = HWY_DYNAMIC_DISPATCH(QuantizeRow);
  threads.ParallelFor(static_cast<size_t>(padded), static_cast<size_t>(16384 / w.k() + 1),
                      [&](size_t begin, size_t end) {
                        for (auto row = static_cast<int64_t>(begin); row < static_cast<int64_t>(end); ++row) {
                          const auto at = [&](int64_t per_row) { return row / batch * batch * per_row + row % batch; };
                          PackedRowOut out;
                          out.codes = memory.codes + at(w.k() / kPackedTile) * 2 * kPackedTile;
                          out.batch = batch;
                          out.scales = memory.scales + at(job.units);
                          if (method.wants_sums) {
                            out.zero_sums = memory.zero_sums + at(job.pieces);
                            out.bias_factors = memory.bias_factors + at(job.pieces);
                          }
                          const MatrixView zeros = {kZeros, DType::kFloat32, 0, 0};
                          const bool real = row < rows;
                          quantize(real ? x : zeros, real ? first + row : 0, w, out);
                        }
                      });
  return job;
}

// Cuts work into pieces that become shorter: the first ones are long, since memory is read faster in long runs, the
// last ones short, so that threads end together although cores differ in speed (guided self-scheduling;
// Polychronopoulos and Kuck 1987).
class Cuts {
 public:
  // `count` units of `products` each. A piece has a microsecond of work at least.
  Cuts(int64_t count, int64_t products, int64_t threads) {
    constexpr int64_t kLeastProducts = int64_t{32} * 1024;
    const int64_t least = std::max<int64_t>({kLeastProducts / products, count / 12, 1});
    for (int64_t at = 0; at < count;) {
      at += std::min(count - at, std::max(least, (count - at) / (2 * threads)));
      ends_[count_++] = at;
    }
  }
  size_t count() const { return count_; }
  int64_t begin(size_t piece) const { return piece == 0 ? 0 : ends_[piece - 1]; }
  int64_t end(size_t piece) const { return ends_[piece]; }

 private:
  static constexpr int64_t kMost = 128;
  int64_t ends_[kMost];
  size_t count_ = 0;
};

// Where results go, and what is done to sums before.
struct Target {
  MutableMatrixView y;
  Epilogue epilogue;
  std::optional<Activation> gate;  // columns are those of a gate and an up projection in turn; y has half as many
};

// Computes a task and finishes its sums. It comes without a place for them, and task.rows counts the rows that there
// are, of a slab that begins with row `slab` of y.
void MultiplyPart(const PackedJob& job, const Method& method, PackedTask task, int64_t slab, const Target& target) {
  const MutableMatrixView& y = target.y;
  const int64_t first_row = slab + task.row;
  const int64_t rows = task.rows;
  const int64_t column = task.block * kPackedBlock;
  const int64_t count = std::min(task.blocks * kPackedBlock, job.w->n() - column);
  task.rows = (rows + method.batch - 1) / method.batch * method.batch;
  // Sums that need nothing done to them are computed in their place, where kernels write no more than belongs there.
  const Epilogue& epilogue = target.epilogue;
  const bool plain =
      !target.gate && epilogue.alpha == 1.0F && epilogue.addend.data == nullptr && y.type == DType::kFloat32;
  if (plain && task.rows == rows && count == task.blocks * kPackedBlock) {
    task.sums = static_cast<float*>(y.data) + first_row * y.row_stride + column;
    task.row_stride = y.row_stride;
    method.kernel(job, task);
    return;
  }
  task.row_stride = task.blocks * kPackedBlock;
  task.sums = ThreadScratch<struct SumsTag>::Get<float>(static_cast<size_t>(task.rows * task.row_stride));
  method.kernel(job, task);
  if (target.gate) {
    float* to = static_cast<float*>(y.data) + first_row * y.row_stride + column / 2;
    HWY_DYNAMIC_DISPATCH(GateSums)
    (*target.gate, task.sums, rows, task.blocks / 2, task.row_stride, to, y.row_stride);
    return;
  }
  HWY_DYNAMIC_DISPATCH(FinishSums)(epilogue, y, first_row, rows, column, count, task.row_stride, task.sums);
}

void Multiply(DotIsa isa, int64_t m, const MatrixView& x, const PackedWeights& w, const Target& target,
              ThreadPool& threads) {
  const int64_t blocks = (w.n() + kPackedBlock - 1) / kPackedBlock;
  const int64_t pairs = (blocks + 1) / 2;
  const int64_t slab_rows = SlabRows(w.k());
  for (int64_t slab = 0; slab < m; slab += slab_rows) {
    const int64_t rows = std::min(slab_rows, m - slab);
    const Method method = Choose(isa, rows, w);
    const PackedJob job = QuantizeSlab(x, slab, rows, w, method, threads);
    // Where there are few pairs of blocks, rows are divided as well, at the price of reading weights more than once.
    const auto workers = static_cast<int64_t>(threads.threads());
    const int64_t splits = std::clamp<int64_t>(workers * 2 / pairs, 1, (rows + 31) / 32);
    const int64_t split_rows = ((rows + splits - 1) / splits + 31) / 32 * 32;
    const Cuts cuts(pairs * splits, std::min(rows, split_rows) * 2 * kPackedBlock * w.k(), workers);
    threads.ParallelFor(cuts.count(), 1, [&](size_t piece, size_t /*end*/) {
      for (int64_t i = cuts.begin(piece); i < cuts.end(piece);) {
        const int64_t split = i / pairs;
        const int64_t first_pair = i % pairs;
        // Neighbours go together where they are few rows, so that the kernel walks on through memory.
        const int64_t last_pair =
            rows > method.batch ? first_pair + 1 : std::min(pairs, first_pair + cuts.end(piece) - i);
        i += last_pair - first_pair;
        PackedTask task;
        task.row = split * split_rows;
        task.rows = std::min(split_rows, rows - task.row);
        task.block = first_pair * 2;
        task.blocks = std::min(last_pair * 2, blocks) - task.block;
        if (task.rows > 0) MultiplyPart(job, method, task, slab, target);
      }
    });
  }
}

}  // namespace

void PackedLinear(DotIsa isa, int64_t m, const MatrixView& x, const PackedWeights& w, const MutableMatrixView& y,
                  const Epilogue& epilogue, ThreadPool& threads) {
  Multiply(isa, m, x, w, {y, epilogue, std::nullopt}, threads);
}

void PackedGatedLinear(DotIsa isa, int64_t m, const MatrixView& x, const PackedWeights& w, Activation activation,
                       const MutableMatrixView& y, ThreadPool& threads) {
  Multiply(isa, m, x, w, {y, {}, activation}, threads);
}

void PackedGatedLinear(int64_t m, const MatrixView& x, const PackedWeights& w, Activation activation,
                       const MutableMatrixView& y, ThreadPool& threads) {
  PackedGatedLinear(AvailableDotIsas().back(), m, x, w, activation, y, threads);
}

void PackedLinear(int64_t m, const MatrixView& x, const PackedWeights& w, const MutableMatrixView& y,
                  const Epilogue& epilogue, ThreadPool& threads) {
  PackedLinear(AvailableDotIsas().back(), m, x, w, y, epilogue, threads);
}

}  // namespace offgraph::kernels
#endif  // HWY_ONCE
