// The product of a few rows with blocks of packed weights, for one instruction set. A file per instruction set includes
// this under its own compiler target, with a class V of 16 lanes:
//   Int, Float, Bytes         16 int32, 16 float, 64 bytes: lane i of the bytes is bytes [4 i, 4 i + 4)
//   Zero(), SetInt(i), ZeroFloat(), SetFloat(f)
//   Load(p)                   Bytes
//   Codes<b>(bytes, j)        every byte's bits [b j, b j + b)
//   Dot<b>(sum, codes, p)     sum + the products of a lane's 4 codes (unsigned, b bits) with the int8 p[0..3]
//   Combine(hi, lo)           16 hi + lo
//   ToFloat(int)              rounded to nearest even
//   MulAdd(a, b, c)           a b + c, fused
//   LoadFloats(type, p)       16 elements of a storage type
//   Store(p, float)
#pragma once

#include <algorithm>
#include <cstdint>

#include "offgraph/kernels/packed_job.h"

namespace offgraph::kernels {

// Adds one tile of weights times kRows rows. `x` is [kRows][64].
template <class V, int64_t kBits, int64_t kRows>
inline __attribute__((always_inline)) void AddTile(const uint8_t* codes, const int8_t* x, typename V::Int* hi,
                                                   typename V::Int* lo) {
#pragma GCC unroll 8
  for (int64_t i = 0; i < kBits; ++i) {
    const typename V::Bytes bytes = V::Load(codes + i * 64);
#pragma GCC unroll 4
    for (int64_t j = 0; j < 8 / kBits; ++j) {
      const int64_t quad = i + j * kBits;
      const typename V::Bytes q = V::template Codes<kBits>(bytes, j);
#pragma GCC unroll 4
      for (int64_t m = 0; m < kRows; ++m) {
        hi[m] = V::template Dot<kBits>(hi[m], q, x + m * 64 + quad * 4);
        lo[m] = V::template Dot<kBits>(lo[m], q, x + m * 64 + 32 + quad * 4);
      }
    }
  }
}

// One block times one batch of kRows rows; sums [kRows][row_stride].
template <class V, int64_t kBits, int64_t kRows>
__attribute__((noinline)) void MultiplyBlock(const PackedJob& job, int64_t row, int64_t block, float* sums,
                                             int64_t row_stride) {
  using Int = typename V::Int;
  using Float = typename V::Float;
  const PackedWeights& w = *job.w;
  const DType type = w.scale_type();
  const int64_t group_bytes = kPackedBlock * static_cast<int64_t>(SizeOf(type));
  const int64_t tiles = w.k() / kPackedTile;
  const int64_t tiles_per_piece = std::min<int64_t>(w.group_size(), kPackedUnit) / kPackedTile;
  const int64_t pieces_per_group = job.pieces / job.groups;
  const uint8_t* codes = w.codes() + block * kPackedBlock * w.k() * kBits / 8;
  const uint8_t* scales = w.scales() + block * job.groups * group_bytes;
  const uint8_t* biases = w.has_biases() ? w.biases() + block * job.groups * group_bytes : nullptr;
  const int8_t* x = job.x.codes + row * w.k() * 2;
  const int32_t* zero_sums = job.x.zero_sums + row * job.pieces;
  const float* factors = job.x.bias_factors + row * job.pieces;
  const float* unit_scales = job.x.scales + row * job.units;
  Float total[kRows];
#pragma GCC unroll 4
  for (int64_t m = 0; m < kRows; ++m) total[m] = V::ZeroFloat();
  int64_t piece = 0;
  for (int64_t unit = 0; unit < job.units; ++unit) {
    const int64_t unit_pieces = std::min<int64_t>(kPackedUnit / kPackedTile, tiles - unit * 2) / tiles_per_piece;
    Float part[kRows];
#pragma GCC unroll 4
    for (int64_t m = 0; m < kRows; ++m) part[m] = V::ZeroFloat();
    for (int64_t p = piece; p < piece + unit_pieces; ++p) {
      Int hi[kRows];
      Int lo[kRows];
#pragma GCC unroll 4
      for (int64_t m = 0; m < kRows; ++m) {
        hi[m] = V::Zero();
        lo[m] = V::SetInt(zero_sums[p * kRows + m]);
      }
      for (int64_t tile = 0; tile < tiles_per_piece; ++tile) {
#pragma GCC unroll 8
        for (int64_t i = 0; i < kBits; ++i) __builtin_prefetch(codes + kPackedAhead + i * 64);
        AddTile<V, kBits, kRows>(codes, x, hi, lo);
        codes += kBits * 64;
        x += kRows * 64;
      }
      const uint8_t* group_scales = scales + p / pieces_per_group * group_bytes;
      __builtin_prefetch(group_scales + kPackedAhead / 8);
      const Float scale = V::LoadFloats(type, group_scales);
#pragma GCC unroll 4
      for (int64_t m = 0; m < kRows; ++m) part[m] = V::MulAdd(V::ToFloat(V::Combine(hi[m], lo[m])), scale, part[m]);
    }
#pragma GCC unroll 4
    for (int64_t m = 0; m < kRows; ++m) {
      total[m] = V::MulAdd(part[m], V::SetFloat(unit_scales[unit * kRows + m]), total[m]);
    }
    for (int64_t p = piece; biases != nullptr && p < piece + unit_pieces; ++p) {
      const Float bias = V::LoadFloats(type, biases + p / pieces_per_group * group_bytes);
#pragma GCC unroll 4
      for (int64_t m = 0; m < kRows; ++m) {
        total[m] = V::MulAdd(bias, V::SetFloat(factors[p * kRows + m]), total[m]);
      }
    }
    piece += unit_pieces;
  }
#pragma GCC unroll 4
  for (int64_t m = 0; m < kRows; ++m) V::Store(sums + m * row_stride, total[m]);
}

template <class V, int64_t kBits, int64_t kRows>
void MultiplyBlocks(const PackedJob& job, const PackedTask& task) {
  for (int64_t block = 0; block < task.blocks; ++block) {
    for (int64_t row = 0; row < task.rows; row += kRows) {
      float* sums = task.sums + row * task.row_stride + block * kPackedBlock;
      MultiplyBlock<V, kBits, kRows>(job, task.row + row, task.block + block, sums, task.row_stride);
    }
  }
}

template <class V, int64_t kBits>
void MultiplyRows(const PackedJob& job, const PackedTask& task) {
  switch (job.x.batch) {
    case 1:
      return MultiplyBlocks<V, kBits, 1>(job, task);
    case 2:
      return MultiplyBlocks<V, kBits, 2>(job, task);
    default:
      return MultiplyBlocks<V, kBits, 4>(job, task);
  }
}

// Rows in batches of 1, 2 or 4.
template <class V>
void Multiply(const PackedJob& job, const PackedTask& task) {
  switch (job.w->code_bits()) {
    case 2:
      return MultiplyRows<V, 2>(job, task);
    case 4:
      return MultiplyRows<V, 4>(job, task);
    default:
      return MultiplyRows<V, 8>(job, task);
  }
}

}  // namespace offgraph::kernels
