// Group-quantized weights laid out for integer dot products, and linear layers over them: the fast mode.
//
// Activations are quantized on the fly to 12 bits, in units of 64 consecutive values of a row that share a scale. Eight
// bits are too few: they move the greedy choice of a small model at 4% of the positions, 12 bits at 1.5%.
// A code of 12 bits is 16 * hi + lo, with hi and lo of 8 and 4 bits, so that products are those of int8 instructions.
//
// The result, exactly. Columns are cut into pieces of min(group_size, 64), and every 64 columns are a unit:
//   x[m, k]  ~ c[m, k] * s[m, u]      s = (largest magnitude of the unit) / 2039, c rounded to nearest even
//   dot[m, n, piece] = sum of c[m, k] * (q[n, k] - zero) over the piece, an exact integer
//   part[m, n, u]    = sum over the unit's pieces, in order, of float(dot) * scale[n, group]
//   y[m, n]          = sum over units, in order, of part * s[m, u], and after each the sum over its pieces of
//                      bias[n, group] * (s[m, u] * float(sum of the piece's c)) where the weights have biases
// in fp32, every product and sum of the last two lines fused but for the first of `part`. So a row's bits depend on
// that row and the weights alone, and they are the same on every instruction set that is named in linear_isa.h. A row's
// unit that holds infinity or NaN makes the row NaN.
//
// Layout. 16 rows are a block; 32 columns of a block are a tile. With b the bits of a code in memory (2, 4 or 8):
//   codes   [n / 16][k / 32][b][16 rows][4 columns] bytes: byte (i, row, column) holds, from its lowest bits up, the
//           codes of columns 4 (i + j b) + column for j = 0, 1, ..., 8 / b - 1
//   scales  [n / 16][k / group_size][16 rows], in the type that they came in; biases likewise
// A row of 64 bytes is a vector whose every 32-bit lane belongs to one row of the weights, which is what VNNI wants,
// and b = 8 is what a tile register of AMX wants.
//
// Thread rule: immutable once made; all functions may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "offgraph/kernels/linear.h"
#include "offgraph/kernels/linear_isa.h"
#include "offgraph/kernels/quantized.h"
#include "offgraph/kernels/rows.h"
#include "offgraph/kernels/thread_pool.h"
#include "offgraph/kernels/weight_arena.h"

namespace offgraph::kernels {

// Rows of one matrix that becomes part of packed weights.
struct QuantizedRows {
  QuantizedView view;
  int64_t rows = 0;
};

inline constexpr int64_t kPackedBlock = 16;  // rows of weights in a block

// How the rows of several parts follow each other in one matrix.
enum class PartOrder : uint8_t {
  kSequence,      // all of a part, then all of the next
  kBlocksInTurn,  // a block of each part in turn; all have as many rows, a multiple of kPackedBlock
};

class PackedWeights {
 public:
  // The rows of all parts as one matrix [N, K]: projections of one input are one product.
  // Takes memory for the result, from `arena` where there is one, and nothing else that grows with it; the parts are
  // read in parallel, and no pointer into them is kept.
  // REQUIRES: at least one part; bits and group_size are those of the first in all.
  PackedWeights(std::span<const QuantizedRows> parts, int64_t k, ThreadPool& threads, WeightArena& arena,
                PartOrder order = PartOrder::kSequence);
  PackedWeights(std::span<const QuantizedRows> parts, int64_t k, ThreadPool& threads,
                PartOrder order = PartOrder::kSequence);

  int64_t n() const { return n_; }
  int64_t k() const { return k_; }
  int group_size() const { return group_size_; }
  int code_bits() const { return code_bits_; }
  // What q is counted from: 2^(bits - 1) where every bias is exactly -zero * scale, so that biases need not be kept.
  // 0 where some are not.
  int zero() const { return zero_; }
  bool has_biases() const { return biases_ != nullptr; }
  DType scale_type() const { return scale_type_; }
  // Bytes held, all of which a product reads once.
  size_t bytes() const { return code_bytes_ + scale_bytes_ * (has_biases() ? 2 : 1); }

  const uint8_t* codes() const { return codes_.get(); }
  const uint8_t* scales() const { return scales_.get(); }
  const uint8_t* biases() const { return biases_.get(); }

 private:
  void PackBlock(std::span<const QuantizedRows> parts, PartOrder order, int64_t block);

  int64_t n_ = 0;
  int64_t k_ = 0;
  int bits_ = 0;
  int group_size_ = 0;
  int code_bits_ = 0;
  int zero_ = 0;
  DType scale_type_ = DType::kFloat32;
  size_t code_bytes_ = 0;
  size_t scale_bytes_ = 0;
  std::shared_ptr<uint8_t[]> codes_;
  std::shared_ptr<uint8_t[]> scales_;
  std::shared_ptr<uint8_t[]> biases_;
};

// y = x w^T.
//   x [M, K]   w [N, K]   y [M, N]
// The instruction set is the fastest, or the one that is named. REQUIRES: it is available.
void PackedLinear(int64_t m, const MatrixView& x, const PackedWeights& w, const MutableMatrixView& y,
                  const Epilogue& epilogue, ThreadPool& threads);
void PackedLinear(DotIsa isa, int64_t m, const MatrixView& x, const PackedWeights& w, const MutableMatrixView& y,
                  const Epilogue& epilogue, ThreadPool& threads);

// y = activation(x gate^T) * (x up^T), to the bit what PackedLinear and Gate (rows.h) compute, but the products never
// leave the caches.
//   x [M, K]   w [N, K], of gate and up, their blocks in turn   y [M, N / 2] fp32
void PackedGatedLinear(int64_t m, const MatrixView& x, const PackedWeights& w, Activation activation,
                       const MutableMatrixView& y, ThreadPool& threads);
void PackedGatedLinear(DotIsa isa, int64_t m, const MatrixView& x, const PackedWeights& w, Activation activation,
                       const MutableMatrixView& y, ThreadPool& threads);

}  // namespace offgraph::kernels
