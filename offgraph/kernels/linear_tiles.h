// Linear layers by tile registers (AMX), for weights of fp16 or bf16. Not for other rooms.
//
// Bits: numbers of more bits than bfloat16 are cut into pieces of it, without loss, and every piece of the one operand
// is multiplied with every piece of the other. A sum grows by 32 columns of one pair of pieces at a time: the products
// of even columns are fused into one sum, those of odd ones into another; both are added, then added to the sum so far.
// A number, piece or sum below 2^-126 counts as 0. Cutting turns an infinity into NaN.
#pragma once

#include <cstdint>
#include <span>

#include "offgraph/kernels/linear_parts.h"

namespace offgraph::kernels {

// The parameters of linear_parts.h.
struct TileCall {
  int64_t m = 0;
  int64_t k = 0;
  MatrixView x;
  DType x_values = DType::kFloat32;
  std::span<const LinearPart> parts;
  MutableMatrixView y;
};

// REQUIRES: TilesAvailable() (tiles.h); no weight is fp32.
void LinearByTiles(const TileCall& call, ThreadPool& threads);

}  // namespace offgraph::kernels
