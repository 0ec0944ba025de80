// What attention computes for one block of 64 positions: scores, the softmax inside the block, the weighted sum of V,
// and the merge of a block into what precedes it. Compiled once per instruction set.
//
// The bits of each step are fixed by the query, the visible keys and their positions:
//  - A score is 16 partial sums, the i-th over the dimensions d = i (mod 16) in ascending order, each step one fused
//    multiply-add; then the sums are added in halves: i and i + 8, i and i + 4, i and i + 2, 0 and 1. It can be had
//    with the dimensions in the lanes (ScoresOfFour: the stored rows as they are, for few queries) or with the keys
//    in the lanes (ScoresFromColumns: a transposed block, for many queries).
//  - The softmax sees 64 scores and the set of visible keys, whichever way they were computed.
//  - The weighted sum adds the visible keys one after the other. A hidden key is skipped, not multiplied by 0: what
//    its row holds, NaN included, plays no part.
#if defined(OFFGRAPH_KERNELS_ATTENTION_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OFFGRAPH_KERNELS_ATTENTION_BLOCK_INL_H_
#undef OFFGRAPH_KERNELS_ATTENTION_BLOCK_INL_H_
#else
#define OFFGRAPH_KERNELS_ATTENTION_BLOCK_INL_H_
#endif

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "offgraph/kernels/attention_task.h"
#include "offgraph/kernels/dtype-inl.h"
#include "offgraph/kernels/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace offgraph::kernels::HWY_NAMESPACE {

inline constexpr size_t kBlock = kAttentionBlock;
static_assert(kBlock == 64, "a set of keys is one uint64_t");

// Queries that share the loads of a block in one pass; it leaves room in the registers for the sums.
inline constexpr size_t kMaxRows = 4;

// Calls f(std::integral_constant<size_t, n>, first) for groups of n <= kMaxRows that cover [0, rows).
template <class F>
HWY_INLINE void ForRowGroups(size_t rows, const F& f) {
  size_t first = 0;
  for (; first + kMaxRows <= rows; first += kMaxRows) f(std::integral_constant<size_t, kMaxRows>(), first);
  static_assert(kMaxRows == 4);
  switch (rows - first) {
    case 3:
      return f(std::integral_constant<size_t, 3>(), first);
    case 2:
      return f(std::integral_constant<size_t, 2>(), first);
    case 1:
      return f(std::integral_constant<size_t, 1>(), first);
    default:
      return;
  }
}

template <size_t kRows>
HWY_INLINE uint64_t Union(const uint64_t* sets) {
  uint64_t all = 0;
  for (size_t r = 0; r < kRows; ++r) all |= sets[r];
  return all;
}

template <size_t kRows>
HWY_INLINE uint64_t Intersection(const uint64_t* sets) {
  uint64_t common = ~uint64_t{0};
  for (size_t r = 0; r < kRows; ++r) common &= sets[r];
  return common;
}

// Four floats, for transposition.
#if HWY_TARGET == HWY_SCALAR
struct Four {
  float x[4];
};
HWY_INLINE Four LoadFour(const float* from) { return Four{{from[0], from[1], from[2], from[3]}}; }
HWY_INLINE void StoreFour(const Four& four, float* to) { std::copy_n(four.x, 4, to); }
HWY_INLINE Four Add(const Four& a, const Four& b) {
  return Four{{a.x[0] + b.x[0], a.x[1] + b.x[1], a.x[2] + b.x[2], a.x[3] + b.x[3]}};
}
HWY_INLINE void Transpose(Four (&rows)[4]) {
  for (size_t i = 0; i < 4; ++i) {
    for (size_t k = 0; k < i; ++k) std::swap(rows[i].x[k], rows[k].x[i]);
  }
}
HWY_INLINE Four FoldTo4(const Chunk& sums) {
  Four folded;
  for (size_t i = 0; i < 4; ++i) {
    folded.x[i] = (sums.v[i].raw + sums.v[i + 8].raw) + (sums.v[i + 4].raw + sums.v[i + 12].raw);
  }
  return folded;
}
#else
using Four = hn::Vec<hn::FixedTag<float, 4> >;
HWY_INLINE Four LoadFour(const float* from) { return hn::LoadU(hn::FixedTag<float, 4>(), from); }
HWY_INLINE void StoreFour(Four four, float* to) { hn::StoreU(four, hn::FixedTag<float, 4>(), to); }
HWY_INLINE Four Add(Four a, Four b) { return hn::Add(a, b); }
HWY_INLINE void Transpose(Four (&rows)[4]) {
  const hn::FixedTag<float, 4> d;
  const Four lo01 = hn::InterleaveLower(d, rows[0], rows[1]);
  const Four lo23 = hn::InterleaveLower(d, rows[2], rows[3]);
  const Four hi01 = hn::InterleaveUpper(d, rows[0], rows[1]);
  const Four hi23 = hn::InterleaveUpper(d, rows[2], rows[3]);
  rows[0] = hn::ConcatLowerLower(d, lo23, lo01);
  rows[1] = hn::ConcatUpperUpper(d, lo23, lo01);
  rows[2] = hn::ConcatLowerLower(d, hi23, hi01);
  rows[3] = hn::ConcatUpperUpper(d, hi23, hi01);
}
template <class D>
HWY_INLINE Four FoldVector(D d, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(d) == 4) {
    return v;
  } else {
    const hn::Half<D> half;
    return FoldVector(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}
// 16 partial sums to 4: i and i + 8, then i and i + 4.
HWY_INLINE Four FoldTo4(Chunk sums) {
  for (size_t n = kVecsPerChunk / 2; n > 0; n /= 2) {
    for (size_t i = 0; i < n; ++i) sums.v[i] = hn::Add(sums.v[i], sums.v[i + n]);
  }
  return FoldVector(F32(), sums.v[0]);
}
#endif

// scores[k] = the sum of the 16 partial sums of key k, added in halves, for 4 keys.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
HWY_INLINE void StoreSums(const Chunk (&keys)[4], float* scores) {
  const F32 d;
  const auto halves = [&d](F32V a, F32V b)
                          HWY_ATTR { return hn::Add(hn::ConcatLowerLower(d, b, a), hn::ConcatUpperUpper(d, b, a)); };
  const F32V sums01 = halves(keys[0].v[0], keys[1].v[0]);  // blocks of 4 lanes: key 0, 0, 1, 1
  const F32V sums23 = halves(keys[2].v[0], keys[3].v[0]);
  const F32V even = hn::OddEvenBlocks(sums23, sums01);
  const F32V odd = hn::SwapAdjacentBlocks(hn::OddEvenBlocks(sums01, sums23));
  F32V sums = hn::Add(even, odd);  // key 0, 2, 1, 3
  sums = hn::Add(sums, hn::Shuffle1032(sums));
  sums = hn::Add(sums, hn::Shuffle2301(sums));
  alignas(64) static constexpr int32_t kFirstOfBlocks[16] = {0, 8, 4, 12};
  const F32V in_order = hn::TableLookupLanes(sums, hn::SetTableIndices(d, kFirstOfBlocks));
  hn::StoreU(hn::LowerHalf(hn::LowerHalf(in_order)), hn::FixedTag<float, 4>(), scores);
}
#else
HWY_INLINE void StoreSums(const Chunk (&keys)[4], float* scores) {
  Four parts[4] = {FoldTo4(keys[0]), FoldTo4(keys[1]), FoldTo4(keys[2]), FoldTo4(keys[3])};
  Transpose(parts);
  StoreFour(Add(Add(parts[0], parts[2]), Add(parts[1], parts[3])), scores);
}
#endif

// scores[r * 64 + j] = q[r] . key j, for 4 keys from j = `first` on.
//   q     [kRows, q_stride] fp32, zeros from `dim` up to a multiple of 16
//   keys  rows of `dim` elements
template <DType kType, size_t kRows>
HWY_INLINE void ScoresOfFour(const float* q, size_t q_stride, const KeyRows& keys, size_t first, size_t dim,
                             float* scores) {
  const F32 d;
  const size_t full = dim / kChunk * kChunk;
  Chunk sums[kRows][4];
  for (size_t k = 0; k < 4; ++k) {
    keys.FetchAhead(first + k);
    const void* row = keys.At(first + k);
    for (size_t r = 0; r < kRows; ++r) {
      for (F32V& v : sums[r][k].v) v = hn::Zero(d);
    }
    const auto add = [&](const Chunk& key, size_t i) HWY_ATTR {
      for (size_t r = 0; r < kRows; ++r) {
        for (size_t n = 0; n < kVecsPerChunk; ++n) {
          const F32V query = hn::LoadU(d, q + r * q_stride + i + n * kLanes);
          sums[r][k].v[n] = hn::MulAdd(query, key.v[n], sums[r][k].v[n]);
        }
      }
    };
    for (size_t i = 0; i < full; i += kChunk) add(LoadChunk<kType>(row, i), i);
    if (HWY_UNLIKELY(full < dim)) add(LoadChunk<kType>(row, full, dim), full);
  }
  for (size_t r = 0; r < kRows; ++r) StoreSums(sums[r], scores + r * kBlock + first);
}

// The sums of kCount (a power of two) of the 16 partial sums of a score, from `kFirst` on, kChunk / kCount apart, added
// in halves; for kRows queries and kVecs vectors of keys.
//   columns  [16, steps, 64]: element i of the keys is column [i % 16, i / 16]
template <size_t kRows, size_t kVecs>
struct ScoreSums {
  F32V v[kRows][kVecs];
};
template <size_t kFirst, size_t kCount, size_t kRows, size_t kVecs>
HWY_INLINE ScoreSums<kRows, kVecs> SumScores(const float* q, size_t q_stride, const float* columns, size_t steps) {
  const F32 d;
  ScoreSums<kRows, kVecs> sums;
  if constexpr (kCount == 1) {
    for (size_t r = 0; r < kRows; ++r) {
      for (size_t n = 0; n < kVecs; ++n) sums.v[r][n] = hn::Zero(d);
    }
    const float* column = columns + kFirst * steps * kBlock;
    for (size_t step = 0; step < steps; ++step, column += kBlock) {
      F32V key[kVecs];
      for (size_t n = 0; n < kVecs; ++n) key[n] = hn::LoadU(d, column + n * kLanes);
      for (size_t r = 0; r < kRows; ++r) {
        const F32V query = hn::Set(d, q[r * q_stride + step * kChunk + kFirst]);
        for (size_t n = 0; n < kVecs; ++n) sums.v[r][n] = hn::MulAdd(query, key[n], sums.v[r][n]);
      }
    }
  } else {
    constexpr size_t kHalf = kCount / 2;
    sums = SumScores<kFirst, kHalf, kRows, kVecs>(q, q_stride, columns, steps);
    const auto others = SumScores<kFirst + kChunk / kCount, kHalf, kRows, kVecs>(q, q_stride, columns, steps);
    for (size_t r = 0; r < kRows; ++r) {
      for (size_t n = 0; n < kVecs; ++n) sums.v[r][n] = hn::Add(sums.v[r][n], others.v[r][n]);
    }
  }
  return sums;
}

// The same scores from a transposed block.
template <size_t kRows>
HWY_INLINE void ScoresFromColumns(const float* q, size_t q_stride, const float* columns, size_t padded_dim,
                                  float* scores) {
  // With two vectors, the sums that wait for others stay in registers.
  constexpr size_t kVecs = 2;
  for (size_t j = 0; j < kBlock; j += kVecs * kLanes) {
    const auto sums = SumScores<0, kChunk, kRows, kVecs>(q, q_stride, columns + j, padded_dim / kChunk);
    for (size_t r = 0; r < kRows; ++r) {
      for (size_t n = 0; n < kVecs; ++n) hn::StoreU(sums.v[r][n], F32(), scores + r * kBlock + j + n * kLanes);
    }
  }
}

// columns [16, padded_dim / 16, 64], as above, for keys in `wanted`; those of other keys are left as they are.
//   staging [4, padded_dim] fp32 scratch
template <DType kType>
HWY_INLINE void TransposeKeys(const KeyRows& keys, uint64_t wanted, size_t dim, size_t padded_dim, float* staging,
                              float* columns) {
  const size_t steps = padded_dim / kChunk;
  for (size_t j = 0; j < kBlock; j += 4) {
    if (((wanted >> j) & 15) == 0) continue;
    for (size_t k = 0; k < 4; ++k) LoadRow<kType>(keys.At(j + k), dim, staging + k * padded_dim);
    for (size_t i = 0; i < padded_dim; i += 4) {
      Four rows[4];
      for (size_t k = 0; k < 4; ++k) rows[k] = LoadFour(staging + k * padded_dim + i);
      Transpose(rows);
      const size_t column = i % kChunk * steps + i / kChunk;
      for (size_t k = 0; k < 4; ++k) StoreFour(rows[k], columns + (column + k * steps) * kBlock + j);
    }
  }
}

// A partial softmax: exponentials are relative to `max`, and `sum` adds them up. Empty where sum is 0.
struct SoftmaxState {
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0;
};

// What stands between a dot product and its exponential.
struct ScoreOptions {
  float scale = 1;
  float soft_cap = 0;
  const float* bias = nullptr;  // [rows, 64], added last
};

HWY_INLINE ScoreOptions ScoreOptionsOf(const AttentionCall& call, const float* bias) {
  const bool additive = call.options.mask.type != MaskType::kNone && call.options.mask.type != MaskType::kBool;
  return {.scale = call.options.scale, .soft_cap = call.options.soft_cap, .bias = additive ? bias : nullptr};
}

HWY_INLINE hn::Mask<F32> LaneMask(uint64_t set, size_t first) {
  const U32 d;
  const auto lane_bit = hn::Shl(hn::Set(d, 1), hn::Iota(d, 0));
  return hn::RebindMask(F32(), hn::TestBit(hn::Set(d, static_cast<uint32_t>(set >> first)), lane_bit));
}

// What scores are before they are scaled, where that is more than a product: scaled, capped and biased in place. The
// scale that is left.
template <size_t kRows>
HWY_INLINE float FinishScores(const ScoreOptions& options, float* scores) {
  if (HWY_LIKELY(options.scale > 0 && !(options.soft_cap > 0) && options.bias == nullptr)) return options.scale;
  const F32 d;
  const F32V scale = hn::Set(d, options.scale);
  const F32V cap = hn::Set(d, options.soft_cap);
  for (size_t i = 0; i < kRows * kBlock; i += kLanes) {
    F32V score = hn::Mul(hn::LoadU(d, scores + i), scale);
    if (options.soft_cap > 0) score = hn::Mul(cap, hn::Tanh(d, hn::Div(score, cap)));
    if (options.bias != nullptr) score = hn::Add(score, hn::LoadU(d, options.bias + i));
    hn::StoreU(score, d, scores + i);
  }
  return 1;
}

// `kAll`: every query sees every key, so that the sets need not be looked at. It changes no bit.
template <size_t kRows, bool kAll, class Store>
HWY_INLINE void SoftmaxOfRows(const float* scores, const uint64_t* visible, float scale, SoftmaxState* states,
                              const Store& store) {
  const F32 d;
  // Phase by phase for all queries: the reductions of one hide behind those of the others.
  F32V max[kRows];
  for (size_t r = 0; r < kRows; ++r) {
    max[r] = hn::Set(d, -std::numeric_limits<float>::infinity());
    for (size_t j = 0; j < kBlock; j += kLanes) {
      const F32V greater = hn::Max(max[r], hn::LoadU(d, scores + r * kBlock + j));
      max[r] = kAll ? greater : hn::IfThenElse(LaneMask(visible[r], j), greater, max[r]);
    }
  }
  const F32V factor = hn::Set(d, scale);
  for (size_t r = 0; r < kRows; ++r) max[r] = hn::Mul(hn::MaxOfLanes(d, max[r]), factor);
  F32V sum[kRows];
  for (size_t r = 0; r < kRows; ++r) {
    sum[r] = hn::Zero(d);
    for (size_t j = 0; j < kBlock; j += 2 * kLanes) {
      F32V weights[2];
      for (size_t n = 0; n < 2; ++n) {
        const size_t key = j + n * kLanes;
        weights[n] = ExpOfNonPositive(hn::MulSub(hn::LoadU(d, scores + r * kBlock + key), factor, max[r]));
        if constexpr (!kAll) weights[n] = hn::IfThenElseZero(LaneMask(visible[r], key), weights[n]);
        sum[r] = hn::Add(sum[r], weights[n]);
      }
      store(r, j, weights[0], weights[1]);
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    states[r].max = hn::GetLane(max[r]);
    states[r].sum = hn::GetLane(hn::SumOfLanes(d, sum[r]));
  }
}

// The exponentials of scores [kRows, 64], 0 for keys that are not in the query's set: store(r, j, weights of the keys
// from j on, weights of those from j + kLanes on). The scores are overwritten.
template <size_t kRows, class Store>
HWY_INLINE void Softmax(float* scores, const uint64_t* visible, const ScoreOptions& options, SoftmaxState* states,
                        const Store& store) {
  const float scale = FinishScores<kRows>(options, scores);
  if (Intersection<kRows>(visible) == ~uint64_t{0}) {
    SoftmaxOfRows<kRows, true>(scores, visible, scale, states, store);
  } else {
    SoftmaxOfRows<kRows, false>(scores, visible, scale, states, store);
  }
}

// The same in the place of the scores.
template <size_t kRows>
HWY_INLINE void Softmax(float* scores, const uint64_t* visible, const ScoreOptions& options, SoftmaxState* states) {
  Softmax<kRows>(scores, visible, options, states, [scores](size_t r, size_t j, F32V lower, F32V upper) HWY_ATTR {
    hn::StoreU(lower, F32(), scores + r * kBlock + j);
    hn::StoreU(upper, F32(), scores + r * kBlock + j + kLanes);
  });
}

// One pass of AddValues over kVecs vectors of dimensions, from dimension `i`. `kFull`: the row reaches over them all.
template <DType kType, size_t kRows, size_t kVecs, bool kFull>
HWY_INLINE void AddValuesPass(const float* weights, const uint64_t* visible, uint64_t keys, const KeyRows& values,
                              size_t dim, size_t i, float* out, size_t out_stride) {
  const F32 d;
  F32V sums[kRows][kVecs];
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t n = 0; n < kVecs; ++n) sums[r][n] = hn::LoadU(d, out + r * out_stride + i + n * kLanes);
  }
  const auto add_key = [&](size_t j, auto everyone) HWY_ATTR {
    if (i == 0) values.FetchAhead(j);
    const void* row = values.At(j);
    F32V value[kVecs];
    for (size_t n = 0; n < kVecs; n += kVecsPerChunk) {
      const size_t at = i + n * kLanes;
      const Chunk chunk = kFull ? LoadChunk<kType>(row, at) : LoadChunk<kType>(row, at, dim);
      for (size_t m = 0; m < kVecsPerChunk; ++m) value[n + m] = chunk.v[m];
    }
    for (size_t r = 0; r < kRows; ++r) {
      if (!everyone() && ((visible[r] >> j) & 1) == 0) continue;
      const F32V weight = hn::Set(d, weights[r * kBlock + j]);
      for (size_t n = 0; n < kVecs; ++n) sums[r][n] = hn::MulAdd(weight, value[n], sums[r][n]);
    }
  };
  const uint64_t seen = keys & Union<kRows>(visible);
  if (seen == (keys & Intersection<kRows>(visible))) {
    for (uint64_t rest = seen; rest != 0; rest &= rest - 1) {
      add_key(static_cast<size_t>(std::countr_zero(rest)), std::true_type());
    }
  } else {
    for (uint64_t rest = seen; rest != 0; rest &= rest - 1) {
      add_key(static_cast<size_t>(std::countr_zero(rest)), std::false_type());
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t n = 0; n < kVecs; ++n) hn::StoreU(sums[r][n], d, out + r * out_stride + i + n * kLanes);
  }
}

// out[r] += weights[r * 64 + j] * value j, for the keys j of `keys` that are in visible[r], in ascending order.
//   values  rows of `dim` elements; only visible ones are read
//   out     [kRows, out_stride] fp32, up to the next multiple of 16
template <DType kType, size_t kRows>
HWY_INLINE void AddValues(const float* weights, const uint64_t* visible, uint64_t keys, const KeyRows& values,
                          size_t dim, float* out, size_t out_stride) {
  // The sums of one pass fill half of the registers: 32 with AVX-512, else 16.
  constexpr size_t kChunksPerPass = kLanes == 16 ? 4 : 1;
  constexpr size_t kPass = kChunksPerPass * kChunk;
  constexpr size_t kPassVecs = kChunksPerPass * kVecsPerChunk;
  size_t i = 0;
  for (; i + kPass <= dim; i += kPass) {
    AddValuesPass<kType, kRows, kPassVecs, true>(weights, visible, keys, values, dim, i, out, out_stride);
  }
  for (; i < dim; i += kChunk) {
    AddValuesPass<kType, kRows, kVecsPerChunk, false>(weights, visible, keys, values, dim, i, out, out_stride);
  }
}

// Adds a later block of each query (state and weighted sum) to what was accumulated before it; an empty one changes
// nothing. sums: [kRows, padded_dim], padded_dim a multiple of 16; block_sums: [kRows, block_stride].
template <size_t kRows>
HWY_INLINE void Merge(const SoftmaxState* blocks, const float* block_sums, size_t block_stride, size_t padded_dim,
                      SoftmaxState* states, float* sums) {
  static_assert(kRows <= kMaxRows && kMaxRows <= kChunk);
  const F32 d;
  // The side with the lower maximum shrinks by exp(lower - higher).
  alignas(64) float shrink[kChunk] = {};
  for (size_t r = 0; r < kRows; ++r) {
    const float difference = blocks[r].max - states[r].max;
    shrink[r] = blocks[r].max > states[r].max ? -difference : difference;
  }
  for (size_t r = 0; r < kRows; r += kLanes) {
    hn::Store(ExpOfNonPositive(hn::Load(d, shrink + r)), d, shrink + r);
  }
  for (size_t r = 0; r < kRows; ++r) {
    if (blocks[r].sum == 0) continue;
    const bool raises = blocks[r].max > states[r].max;
    const float old_factor = raises ? shrink[r] : 1.0F;
    const float new_factor = raises ? 1.0F : shrink[r];
    states[r].sum = states[r].sum * old_factor + blocks[r].sum * new_factor;
    if (raises) states[r].max = blocks[r].max;
    // One of the factors is 1.
    const F32V factor = hn::Set(d, shrink[r]);
    float* to = sums + r * padded_dim;
    const float* added = block_sums + r * block_stride;
    const float* shrinking = raises ? to : added;
    const float* staying = raises ? added : to;
    for (size_t i = 0; i < padded_dim; i += kLanes) {
      hn::StoreU(hn::MulAdd(hn::LoadU(d, shrinking + i), factor, hn::LoadU(d, staying + i)), d, to + i);
    }
  }
}

// sum / state.sum in place, zeros where the state is empty.
HWY_INLINE void Normalize(const SoftmaxState& state, size_t padded_dim, float* sum) {
  const F32 d;
  const F32V divisor = hn::Set(d, state.sum);
  const bool empty = state.sum == 0;
  for (size_t i = 0; i < padded_dim; i += kLanes) {
    hn::StoreU(empty ? hn::Zero(d) : hn::Div(hn::LoadU(d, sum + i), divisor), d, sum + i);
  }
}

}  // namespace offgraph::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // OFFGRAPH_KERNELS_ATTENTION_BLOCK_INL_H_
