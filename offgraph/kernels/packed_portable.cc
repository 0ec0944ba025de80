// The fast mode in plain C++: for processors without a kernel of their own, and the plainest statement of the layout.
#include <algorithm>
#include <cmath>

#include "offgraph/kernels/packed_job.h"

namespace offgraph::kernels {
namespace {

// dots[n] += the products of 32 columns. `x` [32 hi, 32 lo].
void AddTile(const uint8_t* codes, int code_bits, const int8_t* x, int32_t* dots) {
  const int mask = (1 << code_bits) - 1;
  for (int64_t quad = 0; quad < 8; ++quad) {
    const uint8_t* vector = codes + quad % code_bits * 64;
    const auto shift = static_cast<int>(quad / code_bits * code_bits);
    for (int64_t c = 0; c < 4; ++c) {
      const int32_t code = 16 * x[quad * 4 + c] + x[32 + quad * 4 + c];
      for (int64_t n = 0; n < kPackedBlock; ++n) dots[n] += (vector[n * 4 + c] >> shift & mask) * code;
    }
  }
}

// `row` is within its batch; sums [16].
void MultiplyRow(const PackedJob& job, int64_t row, int64_t block, float* sums) {
  const PackedWeights& w = *job.w;
  const int64_t tiles = w.k() / kPackedTile;
  const int64_t tiles_per_piece = std::min<int64_t>(w.group_size(), kPackedUnit) / kPackedTile;
  const int64_t pieces_per_group = job.pieces / job.groups;
  const uint8_t* codes = w.codes() + block * kPackedBlock * w.k() * w.code_bits() / 8;
  const int8_t* x = job.x.codes + (row / job.x.batch * job.x.batch * tiles + row % job.x.batch) * 64;
  const MatrixView scales = {w.scales(), w.scale_type(), kPackedBlock};
  const MatrixView biases = {w.biases(), w.scale_type(), kPackedBlock};
  // Of the numbers that a batch keeps side by side, those of this row.
  const auto of_row = [&](int64_t per_row, int64_t i) {
    return (row / job.x.batch * per_row + i) * job.x.batch + row % job.x.batch;
  };
  std::fill_n(sums, kPackedBlock, 0.0F);
  for (int64_t unit = 0; unit < job.units; ++unit) {
    const int64_t first = unit * kPackedUnit / kPackedTile / tiles_per_piece;
    const int64_t last = std::min(tiles, (unit + 1) * kPackedUnit / kPackedTile) / tiles_per_piece;
    float part[kPackedBlock] = {};
    for (int64_t piece = first; piece < last; ++piece) {
      int32_t dots[kPackedBlock];
      std::fill_n(dots, kPackedBlock, job.x.zero_sums[of_row(job.pieces, piece)]);
      for (int64_t tile = piece * tiles_per_piece; tile < (piece + 1) * tiles_per_piece; ++tile) {
        AddTile(codes + tile * w.code_bits() * 64, w.code_bits(), x + tile * job.x.batch * 64, dots);
      }
      const int64_t group = block * job.groups + piece / pieces_per_group;
      for (int64_t n = 0; n < kPackedBlock; ++n) {
        part[n] = std::fma(static_cast<float>(dots[n]), ElementAsFloat(scales, group, n), part[n]);
      }
    }
    const float scale = job.x.scales[of_row(job.units, unit)];
    for (int64_t n = 0; n < kPackedBlock; ++n) sums[n] = std::fma(part[n], scale, sums[n]);
    for (int64_t piece = first; w.has_biases() && piece < last; ++piece) {
      const int64_t group = block * job.groups + piece / pieces_per_group;
      const float factor = job.x.bias_factors[of_row(job.pieces, piece)];
      for (int64_t n = 0; n < kPackedBlock; ++n) sums[n] = std::fma(ElementAsFloat(biases, group, n), factor, sums[n]);
    }
  }
}

}  // namespace

void MultiplyPortable(const PackedJob& job, const PackedTask& task) {
  for (int64_t block = 0; block < task.blocks; ++block) {
    for (int64_t row = 0; row < task.rows; ++row) {
      MultiplyRow(job, task.row + row, task.block + block, task.sums + row * task.row_stride + block * kPackedBlock);
    }
  }
}

}  // namespace offgraph::kernels
