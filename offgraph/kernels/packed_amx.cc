// Tile registers: 16 rows of activations times 16 rows of weights, 64 products deep, in one instruction.
//
// A code of an activation is 16 hi + lo. Where the weights' codes have at most 4 bits, 16 times a code is an int8 as
// well: one tile holds 32 columns twice, [hi | lo] on the left and [16 q | q] on the right, and its dot product is that
// of the 12-bit codes with no work lost. For 8-bit codes, hi and lo are multiplied apart, 32 columns deep.
//
// The sums of a piece leave the tile registers for memory that stays in the nearest cache, where vectors scale them. A
// pair of blocks of weights (32 rows) is unpacked once for all rows of activations; 32 rows of those at a time share
// it.
#if defined(__x86_64__)
#include <hwy/base.h>

#include <algorithm>
#include <cstring>

#include "offgraph/kernels/linear_amx.h"
#include "offgraph/kernels/linear_job.h"
#include "offgraph/kernels/packed_intrinsics-inl.h"
#include "offgraph/kernels/packed_job.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c,amx-tile,amx-int8")
#include "offgraph/kernels/packed_avx512-inl.h"

namespace offgraph::kernels {
namespace {

using V = Avx512Base;

// Bytes of a tile register, and of a tile of activations in memory: [16 rows][32 hi, 32 lo].
constexpr int64_t kTileBytes = 1024;
// Columns are walked in stretches of four units for all rows: both operands of a stretch stay in the nearest cache.
constexpr int64_t kStretch = 4;

// Registers 0 to 3 are sums [2 batches of activations][2 blocks], 4 and 5 activations, 6 and 7 weights.
constexpr TileConfig MakeConfig(int depth) {
  const auto bytes = static_cast<uint16_t>(depth);
  const auto quads = static_cast<uint8_t>(depth / 4);
  return {.row_bytes = {64, 64, 64, 64, bytes, bytes, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, quads, quads}};
}
constexpr TileConfig kNarrowConfig = MakeConfig(64);
constexpr TileConfig kWideConfig = MakeConfig(32);

// Two blocks of weights, ready for the tile registers.
struct Pair {
  const uint8_t* tiles;  // [k / 32][2 blocks][kTileBytes], of which wide codes use half
  const float* scales;   // [groups][2 blocks][16]
  const float* biases;   // likewise, or null
};

// The two blocks from `block` on; the second is zero where it is behind the last.
template <int kBits>
void UnpackCodes(const PackedWeights& w, int64_t block, int64_t last_block, uint8_t* tiles) {
  constexpr int kPerByte = 8 / kBits;
  const __m512i zero = _mm512_set1_epi8(static_cast<char>(w.zero()));
  const __m512i sixteen_zeros = _mm512_set1_epi8(static_cast<char>(16 * w.zero()));
  const int64_t count = w.k() / kPackedTile;
  const uint8_t* codes = w.codes() + block * kPackedBlock * w.k() * kBits / 8;
  const int64_t block_bytes = kPackedBlock * w.k() * kBits / 8;
  for (int64_t tile = 0; tile < count; ++tile) {
    for (int side = 0; side < 2; ++side) {
      uint8_t* out = tiles + (tile * 2 + side) * kTileBytes;
      if (block + side > last_block) {
        std::memset(out, 0, kTileBytes);
        continue;
      }
      const uint8_t* in = codes + side * block_bytes + tile * kBits * 64;
      for (int i = 0; i < kBits; ++i) {
        const __m512i bytes = V::Load(in + i * 64);
        for (int j = 0; j < kPerByte; ++j) {
          const __m512i q = V::Codes<kBits>(bytes, j);
          uint8_t* row = out + (i + j * kBits) * 64;
          if constexpr (kBits == 8) {
            _mm512_store_si512(row, _mm512_sub_epi8(q, zero));
          } else {
            const __m512i sixteen_q = _mm512_slli_epi16(q, 4);  // a code has at most 4 bits: nothing leaves its byte
            _mm512_store_si512(row, _mm512_sub_epi8(sixteen_q, sixteen_zeros));
            _mm512_store_si512(row + 8 * 64, _mm512_sub_epi8(q, zero));
          }
        }
      }
    }
  }
}

// Scales or biases of two blocks as fp32.
void UnpackFloats(DType type, const uint8_t* from, int64_t groups, int64_t block, int64_t last_block, float* to) {
  const int64_t bytes = kPackedBlock * static_cast<int64_t>(SizeOf(type));
  for (int64_t group = 0; group < groups; ++group) {
    for (int side = 0; side < 2; ++side) {
      const bool present = block + side <= last_block;
      V::Store(to + (group * 2 + side) * kPackedBlock,
               present ? V::LoadFloats(type, from + ((block + side) * groups + group) * bytes) : V::ZeroFloat());
    }
  }
}

// The compiler does not know what tile instructions read.
inline void StoresReachMemory() { asm volatile("" ::: "memory"); }

// Adds 32 columns to registers 0 to 3. Intrinsics want literal register numbers.
template <bool kSigned, bool kTwoBatches>
inline __attribute__((always_inline)) void AddTile(const int8_t* x, int64_t batch_stride, const uint8_t* tiles) {
  _tile_loadd(4, x, 64);
  _tile_loadd(6, tiles, 64);
  _tile_loadd(7, tiles + kTileBytes, 64);
  if constexpr (kTwoBatches) _tile_loadd(5, x + batch_stride, 64);
  if constexpr (kSigned) {
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    if constexpr (kTwoBatches) {
      _tile_dpbssd(2, 5, 6);
      _tile_dpbssd(3, 5, 7);
    }
  } else {
    _tile_dpbsud(0, 4, 6);
    _tile_dpbsud(1, 4, 7);
    if constexpr (kTwoBatches) {
      _tile_dpbsud(2, 5, 6);
      _tile_dpbsud(3, 5, 7);
    }
  }
}

// dots [2 batches][2 blocks][16][16] = the products of one piece of `tiles` tiles.
template <bool kSigned, bool kTwoBatches>
inline __attribute__((always_inline)) void MultiplyPiece(const int8_t* x, int64_t batch_stride, const uint8_t* weights,
                                                         int64_t tiles, int32_t* dots) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t tile = 0; tile < tiles; ++tile) {
    AddTile<kSigned, kTwoBatches>(x + tile * kTileBytes, batch_stride, weights + tile * 2 * kTileBytes);
  }
  _tile_stored(0, dots, 64);
  _tile_stored(1, dots + 256, 64);
  if constexpr (kTwoBatches) {
    _tile_stored(2, dots + 512, 64);
    _tile_stored(3, dots + 768, 64);
  }
}

// Where the sums of one unit are scaled from and to.
struct UnitJob {
  const PackedJob* job;
  const Pair* pair;
  int64_t row;  // of the first batch
  int64_t unit;
  int64_t piece;  // the unit's first
  float* sums;    // [rows][32], of the first batch
};

// sums += what packed_weights.h says of one unit. dots: [pieces][hi, lo where wide][2 batches][2 blocks][16][16]
template <bool kWide, bool kBiases, int kPieces>
inline __attribute__((always_inline)) void ScaleUnit(const UnitJob& u, int batches, const int32_t* dots) {
  constexpr int64_t kDots = 1024;
  constexpr int64_t kPieceDots = kWide ? 2 * kDots : kDots;
  const PackedRows& x = u.job->x;
  const int64_t pieces_per_group = u.job->pieces / u.job->groups;
  for (int batch = 0; batch < batches; ++batch) {
    for (int side = 0; side < 2; ++side) {
      __m512 scales[kPieces];
      [[maybe_unused]] __m512 biases[kPieces];
      for (int p = 0; p < kPieces; ++p) {
        const int64_t at = ((u.piece + p) / pieces_per_group * 2 + side) * kPackedBlock;
        scales[p] = _mm512_load_ps(u.pair->scales + at);
        if constexpr (kBiases) biases[p] = _mm512_load_ps(u.pair->biases + at);
      }
      const int32_t* tile = dots + (batch * 2 + side) * 256;
      const int64_t first_row = u.row + batch * kPackedBlock;
      const float* unit_scales = x.scales + first_row * u.job->units + u.unit;
      [[maybe_unused]] const float* factors = kBiases ? x.bias_factors + first_row * u.job->pieces + u.piece : nullptr;
      float* sums = u.sums + batch * kPackedBlock * kPackedPair + side * kPackedBlock;
      for (int row = 0; row < kPackedBlock; ++row) {
        __m512 part = _mm512_setzero_ps();
        for (int p = 0; p < kPieces; ++p) {
          __m512i dot = _mm512_load_si512(tile + p * kPieceDots + row * 16);
          if constexpr (kWide) dot = V::Combine(dot, _mm512_load_si512(tile + p * kPieceDots + kDots + row * 16));
          part = _mm512_fmadd_ps(V::ToFloat(dot), scales[p], part);
        }
        __m512 total = _mm512_load_ps(sums + row * kPackedPair);
        total = _mm512_fmadd_ps(part, _mm512_set1_ps(unit_scales[row * u.job->units]), total);
        if constexpr (kBiases) {
          for (int p = 0; p < kPieces; ++p) {
            total = _mm512_fmadd_ps(biases[p], _mm512_set1_ps(factors[row * u.job->pieces + p]), total);
          }
        }
        _mm512_store_ps(sums + row * kPackedPair, total);
      }
    }
  }
}

// Units [first, last) of one or two batches of activations times a pair of blocks.
template <bool kWide, bool kBiases, bool kTwoBatches>
void MultiplyStretch(const PackedJob& job, const Pair& pair, int64_t row, int64_t first, int64_t last, float* sums) {
  constexpr int64_t kDots = 1024;
  constexpr int64_t kPieceDots = kWide ? 2 * kDots : kDots;
  const PackedWeights& w = *job.w;
  const int64_t tiles = w.k() / kPackedTile;
  const int64_t batch_stride = tiles * kTileBytes;
  const int64_t tiles_per_piece = std::min(w.group_size(), kPackedUnit) / kPackedTile;
  const int8_t* x = job.x.codes + row / kPackedBlock * batch_stride;
  // Two units' worth, by turns: a unit's products do not wait until the one before it is scaled.
  alignas(64) int32_t dots[2][2 * kPieceDots];
  for (int64_t unit = first; unit < last; ++unit) {
    const int64_t tile = unit * 2;
    const int64_t pieces = std::min<int64_t>(2, tiles - tile) / tiles_per_piece;
    int32_t* unit_dots = dots[unit % 2];
    for (int64_t p = 0; p < pieces; ++p) {
      const int64_t at = tile + p * tiles_per_piece;
      const uint8_t* weights = pair.tiles + at * 2 * kTileBytes;
      int32_t* out = unit_dots + p * kPieceDots;
      MultiplyPiece<!kBiases, kTwoBatches>(x + at * kTileBytes, batch_stride, weights, tiles_per_piece, out);
      if constexpr (kWide) {
        MultiplyPiece<!kBiases, kTwoBatches>(x + at * kTileBytes + 32, batch_stride, weights, tiles_per_piece,
                                             out + kDots);
      }
    }
    const UnitJob u = {&job, &pair, row, unit, tile / tiles_per_piece, sums};
    if (pieces == 2) {
      ScaleUnit<kWide, kBiases, 2>(u, kTwoBatches ? 2 : 1, unit_dots);
    } else {
      ScaleUnit<kWide, kBiases, 1>(u, kTwoBatches ? 2 : 1, unit_dots);
    }
  }
}

template <bool kWide, bool kBiases>
void MultiplyPair(const PackedJob& job, const Pair& pair, int64_t row, int64_t rows, float* sums) {
  std::memset(sums, 0, static_cast<size_t>(rows * kPackedPair) * sizeof(float));
  for (int64_t first = 0; first < job.units; first += kStretch) {
    const int64_t last = std::min(first + kStretch, job.units);
    int64_t i = 0;
    for (; i + 32 <= rows; i += 32) {
      MultiplyStretch<kWide, kBiases, true>(job, pair, row + i, first, last, sums + i * kPackedPair);
    }
    if (i < rows) MultiplyStretch<kWide, kBiases, false>(job, pair, row + i, first, last, sums + i * kPackedPair);
  }
}

}  // namespace

void MultiplyAmx(const PackedJob& job, const PackedTask& task) {
  const PackedWeights& w = *job.w;
  const int64_t tiles = w.k() / kPackedTile;
  const int64_t last_block = (w.n() + kPackedBlock - 1) / kPackedBlock - 1;
  const bool wide = w.code_bits() == 8;
  const int64_t floats = job.groups * 2 * kPackedBlock;
  auto* memory = ThreadScratch<struct AmxTag>::Get<uint8_t>(
      static_cast<size_t>(tiles * 2 * kTileBytes + 2 * floats * static_cast<int64_t>(sizeof(float))));
  auto* scales = reinterpret_cast<float*>(memory + tiles * 2 * kTileBytes);
  float* biases = scales + floats;
  const Pair pair = {memory, scales, w.has_biases() ? biases : nullptr};
  _tile_loadconfig(wide ? &kWideConfig : &kNarrowConfig);
  for (int64_t i = 0; i < task.blocks; i += 2) {
    const int64_t block = task.block + i;
    switch (w.code_bits()) {
      case 2:
        UnpackCodes<2>(w, block, last_block, memory);
        break;
      case 4:
        UnpackCodes<4>(w, block, last_block, memory);
        break;
      default:
        UnpackCodes<8>(w, block, last_block, memory);
    }
    UnpackFloats(w.scale_type(), w.scales(), job.groups, block, last_block, scales);
    if (w.has_biases()) UnpackFloats(w.scale_type(), w.biases(), job.groups, block, last_block, biases);
    StoresReachMemory();
    float* sums = task.sums + i / 2 * task.rows * kPackedPair;
    if (wide) {
      w.has_biases() ? MultiplyPair<true, true>(job, pair, task.row, task.rows, sums)
                     : MultiplyPair<true, false>(job, pair, task.row, task.rows, sums);
    } else {
      w.has_biases() ? MultiplyPair<false, true>(job, pair, task.row, task.rows, sums)
                     : MultiplyPair<false, false>(job, pair, task.row, task.rows, sums);
    }
  }
  _tile_release();
}

}  // namespace offgraph::kernels
HWY_POP_ATTRIBUTES
#endif  // __x86_64__
