// Tile registers: 16 rows of activations times 16 rows of weights, 64 products deep, in one instruction.
//
// A code of an activation is 16 hi + lo. Where the weights' codes have at most 4 bits, 16 times a code is an int8 as
// well: one tile holds 32 columns twice, [hi | lo] on the left and [16 q | q] on the right, and its dot product is that
// of the 12-bit codes with no work lost. For 8-bit codes, hi and lo are multiplied apart, 32 columns deep.
//
// The integers of a piece leave the tile registers for memory that stays in the nearest cache, from where vectors scale
// them into sums that stay in registers. A block of weights is unpacked once for all rows of activations.
#if defined(__x86_64__)
#include <hwy/base.h>

#include <algorithm>
#include <cstring>

#include "offgraph/kernels/amx.h"
#include "offgraph/kernels/linear_job.h"
#include "offgraph/kernels/packed_intrinsics-inl.h"
#include "offgraph/kernels/packed_job.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c,amx-tile,amx-int8")
#include "offgraph/kernels/packed_avx512-inl.h"

namespace offgraph::kernels {
namespace {

using V = Avx512Base;

// A tile of activations in memory is [16 rows][32 hi, 32 lo].
// Registers 0 to 3 are sums, 4 and 5 activations, 6 and 7 weights.
constexpr TileConfig MakeConfig(int depth) {
  const auto bytes = static_cast<uint16_t>(depth);
  const auto quads = static_cast<uint8_t>(depth / 4);
  return {.row_bytes = {64, 64, 64, 64, bytes, bytes, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, quads, quads}};
}
constexpr TileConfig kNarrowConfig = MakeConfig(64);
constexpr TileConfig kWideConfig = MakeConfig(32);

// A block of weights, ready for the registers.
struct Block {
  uint8_t* tiles;  // [k / 32][kTileBytes], of which wide codes use half
  float* scales;   // [groups][16]
  float* biases;   // likewise, where the weights have them
};

template <int64_t kBits>
void UnpackCodes(const PackedWeights& w, int64_t block, uint8_t* tiles) {
  const __m512i zero = _mm512_set1_epi8(static_cast<char>(w.zero()));
  const __m512i sixteen_zeros = _mm512_set1_epi8(static_cast<char>(16 * w.zero()));
  const uint8_t* in = w.codes() + block * kPackedBlock * w.k() * kBits / 8;
  for (int64_t k = 0; k < w.k(); k += kPackedTile, in += kBits * 64, tiles += kTileBytes) {
#pragma GCC unroll 8
    for (int64_t i = 0; i < kBits; ++i) {
      const __m512i bytes = V::Load(in + i * 64);
#pragma GCC unroll 4
      for (int64_t j = 0; j < 8 / kBits; ++j) {
        const __m512i q = V::Codes<kBits>(bytes, j);
        uint8_t* row = tiles + (i + j * kBits) * 64;
        if constexpr (kBits == 8) {
          _mm512_store_si512(row, _mm512_sub_epi8(q, zero));
        } else {
          const __m512i sixteen_q = _mm512_slli_epi16(q, 4);  // a code has at most 4 bits: nothing leaves its byte
          _mm512_store_si512(row, _mm512_sub_epi8(sixteen_q, sixteen_zeros));
          _mm512_store_si512(row + kTileBytes / 2, _mm512_sub_epi8(q, zero));
        }
      }
    }
  }
}

// Scales or biases of a block as fp32.
void UnpackFloats(DType type, const uint8_t* from, int64_t groups, int64_t block, float* to) {
  const int64_t bytes = kPackedBlock * static_cast<int64_t>(SizeOf(type));
  for (int64_t group = 0; group < groups; ++group) {
    V::Store(to + group * kPackedBlock, V::LoadFloats(type, from + (block * groups + group) * bytes));
  }
}

void Unpack(const PackedJob& job, int64_t block, const Block& out) {
  const PackedWeights& w = *job.w;
  switch (w.code_bits()) {
    case 2:
      UnpackCodes<2>(w, block, out.tiles);
      break;
    case 4:
      UnpackCodes<4>(w, block, out.tiles);
      break;
    default:
      UnpackCodes<8>(w, block, out.tiles);
  }
  UnpackFloats(w.scale_type(), w.scales(), job.groups, block, out.scales);
  if (w.has_biases()) UnpackFloats(w.scale_type(), w.biases(), job.groups, block, out.biases);
  // The compiler does not know what tile instructions read.
  asm volatile("" ::: "memory");
}

// Batches of activations times a block of weights, unit after unit. The tile unit is busy only where a register is
// stored long after its last product and just before its next, and the vector units work beside it only where their
// instructions come between. So one turn of the loop
//   stores what registers still hold of an earlier unit, and starts the next unit in them,
//   and scales the integers that the turn before stored.
template <bool kWide, bool kBiases>
class BlockProduct {
 public:
  BlockProduct(const PackedJob& job, const Block& block)
      : job_(job),
        block_(block),
        tiles_(job.w->k() / kPackedTile),
        long_pieces_(job.w->group_size() >= kPackedUnit),
        group_shift_(job.w->group_size() > kPackedUnit ? 1 : 0) {}

  // sums [16 batches][kPackedPair]
  void Run(int64_t first_batch, int64_t batches, float* sums) {
    const int64_t turns = batches * job_.units;
    Place started = {first_batch, 0};
    Place scaled = {first_batch, 0};
    __m512 totals[kPackedBlock] = {};
    for (int64_t turn = 0; turn < turns + kLag; ++turn) {
      int32_t* out = dots_[turn % 2];
      const bool second_set = !kWide && turn % 2 != 0;
      if (turn < turns) {
        second_set ? Start<1>(started, out) : Start<0>(started, out);
        Advance(started);
      } else {
        second_set ? StoreDots<1>(out) : StoreDots<0>(out);
      }
      if (turn < kLag) continue;
      const int32_t* dots = dots_[1 - turn % 2];
      if (Pieces(scaled.unit) == 2) {
        Scale<2>(dots, scaled, totals);
      } else {
        Scale<1>(dots, scaled, totals);
      }
      Advance(scaled);
      if (scaled.unit != 0) continue;
#pragma GCC unroll 16
      for (int64_t row = 0; row < kPackedBlock; ++row) {
        _mm512_store_ps(sums + row * kPackedPair, totals[row]);
        totals[row] = _mm512_setzero_ps();
      }
      sums += kPackedBlock * kPackedPair;
    }
  }

 private:
  // The integers of a register, and of a piece: hi and lo apart where codes are wide.
  static constexpr int64_t kDots = kPackedBlock * kPackedBlock;
  static constexpr int64_t kPieceDots = kWide ? 2 * kDots : kDots;
  // Turns from the start of a unit to its scaling. Narrow codes need two registers a unit, so that two sets take turns.
  static constexpr int64_t kLag = kWide ? 2 : 3;

  struct Place {
    int64_t batch;
    int64_t unit;
  };
  void Advance(Place& place) const {
    if (++place.unit < job_.units) return;
    place.unit = 0;
    ++place.batch;
  }

  int64_t Pieces(int64_t unit) const { return long_pieces_ || unit * 2 + 1 == tiles_ ? 1 : 2; }

  // Intrinsics want literal registers. Narrow: pieces are 0 and 1, or 2 and 3. Wide: hi and lo of the first are 0 and
  // 1, of the second 2 and 3.
  template <int kSet>
  static inline __attribute__((always_inline)) void StoreDots(int32_t* dots) {
    if constexpr (kSet == 0) {
      _tile_stored(0, dots, 64);
      _tile_stored(1, dots + kDots, 64);
    }
    if constexpr (kSet == 1 || kWide) {
      _tile_stored(2, dots + (kWide ? 2 * kDots : 0), 64);
      _tile_stored(3, dots + (kWide ? 3 : 1) * kDots, 64);
    }
  }

  // A long piece takes two tiles.
  template <int kSet>
  inline __attribute__((always_inline)) void Start(const Place& place, int32_t* before) {
    const int64_t tile = place.unit * 2;
    const bool second = tile + 1 < tiles_;
    const uint8_t* weights = block_.tiles + tile * kTileBytes;
    const int8_t* x = job_.x.codes + (place.batch * tiles_ + tile) * kTileBytes;
    _tile_loadd(4, x, 64);
    _tile_loadd(6, weights, 64);
    StoreDots<kSet>(before);
    if constexpr (kWide) {
      _tile_zero(0);
      Dot<0, 4, 6>();
      _tile_loadd(5, x + kPackedTile, 64);
      _tile_zero(1);
      Dot<1, 5, 6>();
      if (!second) return;
      _tile_loadd(4, x + kTileBytes, 64);
      _tile_loadd(7, weights + kTileBytes, 64);
      if (long_pieces_) {
        Dot<0, 4, 7>();
      } else {
        _tile_zero(2);
        Dot<2, 4, 7>();
      }
      _tile_loadd(5, x + kTileBytes + kPackedTile, 64);
      if (long_pieces_) {
        Dot<1, 5, 7>();
      } else {
        _tile_zero(3);
        Dot<3, 5, 7>();
      }
    } else {
      constexpr int kFirst = 2 * kSet;
      Zero<kFirst>();
      Dot<kFirst, 4, 6>();
      if (!second) return;
      _tile_loadd(5, x + kTileBytes, 64);
      _tile_loadd(7, weights + kTileBytes, 64);
      if (long_pieces_) {
        Dot<kFirst, 5, 7>();
      } else {
        Zero<kFirst + 1>();
        Dot<kFirst + 1, 5, 7>();
      }
    }
  }

  template <int kSum>
  static inline __attribute__((always_inline)) void Zero() {
    if constexpr (kSum == 0) _tile_zero(0);
    if constexpr (kSum == 1) _tile_zero(1);
    if constexpr (kSum == 2) _tile_zero(2);
    if constexpr (kSum == 3) _tile_zero(3);
  }

  // Adds x times weights to a register. Codes are signed where they are counted from their middle.
  template <int kSum, int kX, int kWeights>
  static inline __attribute__((always_inline)) void Dot() {
#define OFFGRAPH_DOT(sum, x, weights)                                  \
  if constexpr (kSum == (sum) && kX == (x) && kWeights == (weights)) { \
    if constexpr (kBiases) {                                           \
      _tile_dpbsud(sum, x, weights);                                   \
    } else {                                                           \
      _tile_dpbssd(sum, x, weights);                                   \
    }                                                                  \
  }
    OFFGRAPH_DOT(0, 4, 6)
    OFFGRAPH_DOT(0, 4, 7)
    OFFGRAPH_DOT(0, 5, 7)
    OFFGRAPH_DOT(1, 5, 6)
    OFFGRAPH_DOT(1, 5, 7)
    OFFGRAPH_DOT(2, 4, 6)
    OFFGRAPH_DOT(2, 4, 7)
    OFFGRAPH_DOT(2, 5, 7)
    OFFGRAPH_DOT(3, 5, 7)
#undef OFFGRAPH_DOT
  }

  // Adds a unit's integers to the totals, as packed_weights.h says.
  template <int kPieces>
  inline __attribute__((always_inline)) void Scale(const int32_t* dots, const Place& place, __m512* totals) const {
    const int64_t piece = long_pieces_ ? place.unit : place.unit * 2;
    const float* unit_scales = job_.x.scales + (place.batch * job_.units + place.unit) * kPackedBlock;
    [[maybe_unused]] const float* factors =
        kBiases ? job_.x.bias_factors + (place.batch * job_.pieces + piece) * kPackedBlock : nullptr;
    __m512 scales[kPieces];
    [[maybe_unused]] __m512 biases[kPieces];
    for (int64_t p = 0; p < kPieces; ++p) {
      const int64_t at = ((piece + p) >> group_shift_) * kPackedBlock;
      scales[p] = _mm512_load_ps(block_.scales + at);
      if constexpr (kBiases) biases[p] = _mm512_load_ps(block_.biases + at);
    }
#pragma GCC unroll 16
    for (int64_t row = 0; row < kPackedBlock; ++row) {
      __m512 part = _mm512_setzero_ps();
#pragma GCC unroll 2
      for (int64_t p = 0; p < kPieces; ++p) {
        __m512i dot = _mm512_load_si512(dots + p * kPieceDots + row * 16);
        if constexpr (kWide) dot = V::Combine(dot, _mm512_load_si512(dots + p * kPieceDots + kDots + row * 16));
        part = _mm512_fmadd_ps(V::ToFloat(dot), scales[p], part);
      }
      totals[row] = _mm512_fmadd_ps(part, _mm512_set1_ps(unit_scales[row]), totals[row]);
      if constexpr (kBiases) {
#pragma GCC unroll 2
        for (int64_t p = 0; p < kPieces; ++p) {
          totals[row] = _mm512_fmadd_ps(biases[p], _mm512_set1_ps(factors[p * kPackedBlock + row]), totals[row]);
        }
      }
    }
  }

  const PackedJob& job_;
  const Block& block_;
  const int64_t tiles_;
  const bool long_pieces_;  // of two tiles; the units' own
  const int group_shift_;   // from pieces to groups
  alignas(64) int32_t dots_[2][2 * kPieceDots] = {};
};

template <bool kWide, bool kBiases>
void MultiplyBlock(const PackedJob& job, const Block& block, int64_t row, int64_t rows, float* sums) {
  BlockProduct<kWide, kBiases> product(job, block);
  product.Run(row / kPackedBlock, rows / kPackedBlock, sums);
}

}  // namespace

void MultiplyAmx(const PackedJob& job, const PackedTask& task) {
  const PackedWeights& w = *job.w;
  const int64_t tile_bytes = w.k() / kPackedTile * kTileBytes;
  const int64_t floats = job.groups * kPackedBlock;
  auto* memory = ThreadScratch<struct AmxTag>::Get<uint8_t>(static_cast<size_t>(tile_bytes + 2 * floats * 4));
  const Block block = {memory, reinterpret_cast<float*>(memory + tile_bytes),
                       reinterpret_cast<float*>(memory + tile_bytes) + floats};
  const bool wide = w.code_bits() == 8;
  const auto multiply = wide ? (w.has_biases() ? MultiplyBlock<true, true> : MultiplyBlock<true, false>)
                             : (w.has_biases() ? MultiplyBlock<false, true> : MultiplyBlock<false, false>);
  _tile_loadconfig(wide ? &kWideConfig : &kNarrowConfig);
  for (int64_t i = 0; i < task.blocks; ++i) {
    Unpack(job, task.block + i, block);
    multiply(job, block, task.row, task.rows, task.sums + i / 2 * task.rows * kPackedPair + i % 2 * kPackedBlock);
  }
  _tile_release();
}

}  // namespace offgraph::kernels
HWY_POP_ATTRIBUTES
#endif  // __x86_64__
