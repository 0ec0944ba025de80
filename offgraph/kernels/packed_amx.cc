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
struct UnpackedBlock {
  uint8_t* tiles;  // [k / 32, rounded up to even][kTileBytes], of which wide codes use half
  float* scales;   // [groups + 1][16], of which the last are zeros
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
      __builtin_prefetch(in + kPackedAhead + i * 64);
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
  if (w.k() % kPackedUnit != 0) std::memset(tiles, 0, kTileBytes);
}

// Scales or biases of a block as fp32.
void UnpackFloats(DType type, const uint8_t* from, int64_t groups, int64_t block, float* to) {
  const int64_t bytes = kPackedBlock * static_cast<int64_t>(SizeOf(type));
  for (int64_t group = 0; group < groups; ++group) {
    V::Store(to + group * kPackedBlock, V::LoadFloats(type, from + (block * groups + group) * bytes));
  }
  V::Store(to + groups * kPackedBlock, V::ZeroFloat());
}

void Unpack(const PackedJob& job, int64_t block, const UnpackedBlock& out) {
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

// Batches of activations times a block of weights, unit after unit. A register takes long from its first product to its
// last stored row, so units take turns: a turn
//   scales the integers that the turn before it stored,
//   stores in their place what a set of registers holds of an earlier unit, and starts its own unit in them.
// Narrow codes need two registers a unit, so that there are two sets; wide codes need all four. kLong: pieces have two
// tiles, else one.
//
// What a turn needs to find its tiles lives in general registers, which measured faster than loads of it between the
// stores of tiles.
template <bool kWide, bool kBiases, bool kLong>
class BlockProduct {
 public:
  // Units [first_unit, last_unit) of the batches. They are added to the sums, which unit 0 sets.
  // sums [16 batches][row_stride]
  static void Run(const PackedJob& job, const UnpackedBlock& block, int64_t first_batch, int64_t batches,
                  int64_t first_unit, int64_t last_unit, float* sums, int64_t row_stride) {
    alignas(64) int32_t dots[kPieces * kPieceDots];
    const int64_t tiles = job.w->k() / kPackedTile;
    const int64_t turns = batches * (last_unit - first_unit);
    Started started;
    started.unit = first_unit;
    started.x = job.x.codes + (first_batch * tiles + first_unit * 2) * kTileBytes;
    Scaled scaled;
    scaled.unit = first_unit;
    scaled.unit_scales = job.x.scales + (first_batch * job.units + first_unit) * kPackedBlock;
    scaled.factors = job.x.bias_factors + (first_batch * job.pieces + first_unit * kPieces) * kPackedBlock;
    Bounds bounds;
    bounds.first = first_unit;
    bounds.last = last_unit;
    bounds.more_x = (tiles - (last_unit - first_unit) * 2) * kTileBytes;
    bounds.more_units = (job.units - (last_unit - first_unit)) * kPackedBlock;
    bounds.more_pieces = (job.pieces - (last_unit - first_unit) * kPieces) * kPackedBlock;
    bounds.group_shift = job.w->group_size() > kPackedUnit ? 1 : 0;
    bounds.rest = tiles % 2 != 0 ? job.units - 1 : -1;
    __m512 totals[kPackedBlock];
    Begin(first_unit, sums, row_stride, totals);
    // The first turns have nothing to store and nothing to scale yet, the last ones nothing to start.
    int64_t turn = 0;
    for (; turn < turns + kLag; turn += 2) {
      Turn<0>(turn, turns, block, bounds, dots, started, scaled, totals, sums, row_stride);
      Turn<1>(turn + 1, turns, block, bounds, dots, started, scaled, totals, sums, row_stride);
    }
  }

 private:
  // The integers of a register, and of a piece: hi and lo apart where codes are wide.
  static constexpr int64_t kDots = kPackedBlock * kPackedBlock;
  static constexpr int64_t kPieceDots = kWide ? 2 * kDots : kDots;
  static constexpr int64_t kPieces = kLong ? 1 : 2;  // of a unit
  static constexpr int64_t kLag = kWide ? 2 : 3;     // turns from the start of a unit to its scaling

  // The units of a batch here, and what lies between the last of a batch and the first of the next.
  struct Bounds {
    int64_t first;
    int64_t last;
    int64_t more_x;
    int64_t more_units;
    int64_t more_pieces;
    int group_shift;  // from long pieces to groups
    int64_t rest;     // the unit that has only one tile; -1: none
  };
  struct Started {
    int64_t unit;
    const int8_t* x;
  };
  struct Scaled {
    int64_t unit;
    const float* unit_scales;
    const float* factors;
  };

  // The totals of a batch before its first unit here.
  static inline __attribute__((always_inline)) void Begin(int64_t first_unit, const float* sums, int64_t row_stride,
                                                          __m512* totals) {
#pragma GCC unroll 16
    for (int64_t row = 0; row < kPackedBlock; ++row) {
      totals[row] = first_unit == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(sums + row * row_stride);
    }
  }

  template <int kParity>
  static inline __attribute__((always_inline)) void Turn(int64_t turn, int64_t turns, const UnpackedBlock& block,
                                                         const Bounds& bounds, int32_t* dots, Started& started,
                                                         Scaled& scaled, __m512* totals, float*& sums,
                                                         int64_t row_stride) {
    constexpr int kSet = kParity * (kWide ? 0 : 1);
    if (turn >= kLag && turn < turns + kLag) {
      Scale(dots, block, bounds, scaled, totals);
      scaled.unit_scales += kPackedBlock;
      scaled.factors += kPieces * kPackedBlock;
      if (++scaled.unit == bounds.last) {
        scaled.unit = bounds.first;
        scaled.unit_scales += bounds.more_units;
        scaled.factors += bounds.more_pieces;
#pragma GCC unroll 16
        for (int64_t row = 0; row < kPackedBlock; ++row) _mm512_storeu_ps(sums + row * row_stride, totals[row]);
        sums += kPackedBlock * row_stride;
        if (turn + 1 < turns + kLag) Begin(bounds.first, sums, row_stride, totals);
      }
    }
    if (turn < turns) {
      Start<kSet>(started.x, block.tiles + started.unit * 2 * kTileBytes, dots);
      started.x += 2 * kTileBytes;
      if (++started.unit == bounds.last) {
        started.unit = bounds.first;
        started.x += bounds.more_x;
      }
    } else {
      StoreDots<kSet>(dots);
    }
  }

  // Intrinsics want literal registers. Narrow: pieces are 0 and 1, or 2 and 3. Wide: hi and lo of the first are 0 and
  // 1, of the second 2 and 3.
  template <int kSet>
  static inline __attribute__((always_inline)) void StoreDots(int32_t* dots) {
    if constexpr (kSet == 0) {
      _tile_stored(0, dots, 64);
      if constexpr (kWide || !kLong) _tile_stored(1, dots + kDots, 64);
    } else {
      _tile_stored(2, dots, 64);
      if constexpr (!kLong) _tile_stored(3, dots + kDots, 64);
    }
    if constexpr (kWide && !kLong) {
      _tile_stored(2, dots + 2 * kDots, 64);
      _tile_stored(3, dots + 3 * kDots, 64);
    }
  }

  // Where a unit has only one tile, the second of the weights is zeros. Activations pass by, while the weights stay in
  // the nearest cache: narrow ones, that is, for wide ones fill more of it.
  template <int kSet>
  static inline __attribute__((always_inline)) void Start(const int8_t* x, const uint8_t* weights, int32_t* before) {
    if constexpr (kWide) {
      _tile_loadd(4, x, 64);
      _tile_loadd(6, weights, 64);
      StoreDots<kSet>(before);
      _tile_zero(0);
      Dot<0, 4, 6>();
      _tile_loadd(5, x + kPackedTile, 64);
      _tile_zero(1);
      Dot<1, 5, 6>();
      _tile_loadd(4, x + kTileBytes, 64);
      _tile_loadd(7, weights + kTileBytes, 64);
      if constexpr (!kLong) _tile_zero(2);
      Dot<kLong ? 0 : 2, 4, 7>();
      _tile_loadd(5, x + kTileBytes + kPackedTile, 64);
      if constexpr (!kLong) _tile_zero(3);
      Dot<kLong ? 1 : 3, 5, 7>();
    } else {
      constexpr int kFirst = 2 * kSet;
      _tile_stream_loadd(4, x, 64);
      _tile_loadd(6, weights, 64);
      StoreDots<kSet>(before);
      Zero<kFirst>();
      Dot<kFirst, 4, 6>();
      _tile_stream_loadd(5, x + kTileBytes, 64);
      _tile_loadd(7, weights + kTileBytes, 64);
      if constexpr (!kLong) Zero<kFirst + 1>();
      Dot<kLong ? kFirst : kFirst + 1, 5, 7>();
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

  // Adds a unit's integers to the totals, as packed_weights.h says. The piece that a last unit lacks has zeros for
  // integers, scales and biases, and adds nothing.
  static inline __attribute__((always_inline)) void Scale(const int32_t* dots, const UnpackedBlock& block,
                                                          const Bounds& bounds, const Scaled& place, __m512* totals) {
    const float* unit_scales = place.unit_scales;
    const int64_t group = kLong ? place.unit >> bounds.group_shift : place.unit * 2;
    const float* scales = block.scales + group * kPackedBlock;
    [[maybe_unused]] const float* biases = block.biases + group * kPackedBlock;
    [[maybe_unused]] const float* factors[2] = {place.factors, place.factors + kPackedBlock};
    if (place.unit == bounds.rest) factors[1] = place.factors;  // some finite number
    const __m512 first_scale = _mm512_load_ps(scales);
    [[maybe_unused]] const __m512 second_scale = _mm512_load_ps(scales + (kLong ? 0 : kPackedBlock));
#pragma GCC unroll 16
    for (int64_t row = 0; row < kPackedBlock; ++row) {
      __m512 part = _mm512_fmadd_ps(DotOf(dots, row), first_scale, _mm512_setzero_ps());
      if constexpr (!kLong) part = _mm512_fmadd_ps(DotOf(dots + kPieceDots, row), second_scale, part);
      totals[row] = _mm512_fmadd_ps(part, _mm512_set1_ps(unit_scales[row]), totals[row]);
      if constexpr (kBiases) {
#pragma GCC unroll 2
        for (int64_t p = 0; p < kPieces; ++p) {
          totals[row] =
              _mm512_fmadd_ps(_mm512_load_ps(biases + p * kPackedBlock), _mm512_set1_ps(factors[p][row]), totals[row]);
        }
      }
    }
  }

  static inline __attribute__((always_inline)) __m512 DotOf(const int32_t* dots, int64_t row) {
    __m512i dot = _mm512_load_si512(dots + row * 16);
    if constexpr (kWide) dot = V::Combine(dot, _mm512_load_si512(dots + kDots + row * 16));
    return V::ToFloat(dot);
  }
};

// So many units of a block's weights stay in the nearest cache, beside the activations that pass by.
constexpr int64_t kMostUnits = 12;

template <bool kWide, bool kBiases, bool kLong>
void MultiplyBlock(const PackedJob& job, const UnpackedBlock& block, const PackedTask& task, float* sums) {
  const int64_t parts = (job.units + kMostUnits - 1) / kMostUnits;
  for (int64_t part = 0; part < parts; ++part) {
    BlockProduct<kWide, kBiases, kLong>::Run(job, block, task.row / kPackedBlock, task.rows / kPackedBlock,
                                             job.units * part / parts, job.units * (part + 1) / parts, sums,
                                             task.row_stride);
  }
}

using MultiplyFunction = void (*)(const PackedJob& job, const UnpackedBlock& block, const PackedTask& task,
                                  float* sums);
template <bool... kKnown>
MultiplyFunction Choose() {
  return MultiplyBlock<kKnown...>;
}
template <bool... kKnown, class... More>
MultiplyFunction Choose(bool next, More... more) {
  return next ? Choose<kKnown..., true>(more...) : Choose<kKnown..., false>(more...);
}

}  // namespace

void MultiplyAmx(const PackedJob& job, const PackedTask& task) {
  const PackedWeights& w = *job.w;
  const int64_t tile_bytes = job.units * 2 * kTileBytes;
  const int64_t floats = (job.groups + 1) * kPackedBlock;
  auto* memory = ThreadScratch<struct AmxTag>::Get<uint8_t>(static_cast<size_t>(tile_bytes + 2 * floats * 4));
  const UnpackedBlock block = {memory, reinterpret_cast<float*>(memory + tile_bytes),
                               reinterpret_cast<float*>(memory + tile_bytes) + floats};
  const bool wide = w.code_bits() == 8;
  const MultiplyFunction multiply = Choose(wide, w.has_biases(), w.group_size() >= kPackedUnit);
  const TileScope tiles(wide ? kWideConfig : kNarrowConfig);
  for (int64_t i = 0; i < task.blocks; ++i) {
    Unpack(job, task.block + i, block);
    multiply(job, block, task, task.sums + i * kPackedBlock);
  }
}

}  // namespace offgraph::kernels
HWY_POP_ATTRIBUTES
#endif  // __x86_64__
