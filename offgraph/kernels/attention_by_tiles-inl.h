// The products of attention by tile registers, for the tasks of attention.cc. Compiled once per instruction set:
// include it after foreach_target.h.
//
// Memory that was just stored is loaded into a tile only after the stores have left the processor's queue, which takes
// longer than the products. So work is in turns: what a product reads was stored a turn before.
#if defined(OFFGRAPH_KERNELS_ATTENTION_BY_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OFFGRAPH_KERNELS_ATTENTION_BY_TILES_INL_H_
#undef OFFGRAPH_KERNELS_ATTENTION_BY_TILES_INL_H_
#else
#define OFFGRAPH_KERNELS_ATTENTION_BY_TILES_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "offgraph/kernels/attention_block-inl.h"
#include "offgraph/kernels/attention_task.h"
#include "offgraph/kernels/attention_tiles-inl.h"

#if HWY_TARGET == HWY_AVX3_DL
HWY_BEFORE_NAMESPACE();
namespace offgraph::kernels::HWY_NAMESPACE {

HWY_INLINE uint8_t* Bytes(float* tiles) { return reinterpret_cast<uint8_t*>(tiles); }

// Sizes and steps that both kinds of task share.
struct TileSizes {
  const AttentionCall& call;
  size_t k_steps;   // of 32 dimensions
  size_t v_tiles;   // of 16 dimensions
  size_t q_floats;  // of 16 queries in tiles

  explicit TileSizes(const AttentionCall& of_call)
      : call(of_call),
        k_steps(StepsOfDim(static_cast<size_t>(of_call.pool.k_dim))),
        v_tiles(of_call.v_padded / kChunk),
        q_floats(k_steps * kTileFloats) {}

  // `rows` queries from `first` on, to [step] tiles.
  void SetQueries(const Queries& queries, size_t first, size_t rows, float* to) const {
    WithType(call.q.type, [&](auto type) HWY_ATTR {
      PackRows<type()>([&](size_t r) { return QueryAt(call, queries, first + r); }, rows,
                       static_cast<size_t>(call.pool.k_dim), kTileBytes, 0, Bytes(to));
    });
  }

  // [step][tile]
  void SetKeys(const KeyRows& keys, uint64_t wanted, float* to) const {
    WithType(call.pool.k_type, [&](auto type) HWY_ATTR {
      PackKeys<type()>(keys, wanted, static_cast<size_t>(call.pool.k_dim), Bytes(to));
    });
  }

  void SetValues(const KeyRows& values, uint64_t wanted, const uint8_t* ahead, float* to) const {
    WithType(call.pool.v_type, [&](auto type) HWY_ATTR {
      PackValues<type()>(values, wanted, static_cast<size_t>(call.pool.v_dim), v_tiles, ahead, Bytes(to));
    });
  }

  // Exponentials of the scores [kRows, 64], as weights in tiles: row r of them at to[r].
  template <size_t kRows>
  HWY_INLINE void SetWeights(float* scores, const uint64_t* visible, const float* bias, SoftmaxState* states,
                             uint8_t* const* to) const {
    Softmax<kRows>(
        scores, visible, ScoreOptionsOf(call, bias), states, [to](size_t r, size_t j, F32V lower, F32V upper) HWY_ATTR {
          hn::StoreU(RoundToBf16(lower, upper), Halves(), reinterpret_cast<uint16_t*>(to[r] + j / kDepth * kTileBytes));
        });
  }

  // Weighted sums of queries that see the keys of `visible`: weights in tiles, sums [rows, stride]. `packed` holds the
  // values of `wanted` keys.
  //   repair  [16, v_padded] scratch
  template <int kSum, int kAtOnce>
  void SumValues(const KeyRows& values, uint64_t wanted, const uint64_t* visible, const float* weights, size_t rows,
                 float* packed, float* repair, float* sums, size_t stride) const {
    const auto multiply = [&](uint64_t set, float* to, size_t to_stride) HWY_ATTR {
      // Steps that no query sees anything of would add zeros.
      const size_t first = static_cast<uint32_t>(set) == 0 ? 1 : 0;
      const size_t end = (set >> kDepth) == 0 ? 1 : kKeySteps;
      const auto step = static_cast<int64_t>(v_tiles) * kTileBytes;
      MultiplyAllTiles<kSum, kAtOnce, kWeightTile, Side::kLeft>(
          {.data = reinterpret_cast<const uint8_t*>(weights + first * kTileFloats)},
          {.data = Bytes(packed) + static_cast<int64_t>(first) * step, .step = step, .next = kTileBytes}, end - first,
          {.data = Bytes(to), .row = static_cast<int64_t>(to_stride) * 4, .next = 64}, v_tiles);
    };
    multiply(wanted, sums, stride);
    // A key that another query sees was multiplied by 0, and that is NaN where its values are not finite.
    bool repaired = false;
    for (size_t r = 0; r < rows; ++r) {
      if (visible[r] == wanted || visible[r] == 0 || !AnyNaN(sums + r * stride, call.v_padded)) continue;
      SetValues(values, visible[r], nullptr, packed);
      multiply(visible[r], repair, call.v_padded);
      std::copy_n(repair + r * call.v_padded, call.v_padded, sums + r * stride);
      repaired = true;
    }
    if (repaired) SetValues(values, wanted, nullptr, packed);
  }
};

// A block for many queries of one kv head, 16 at a time.
template <class Sink>
class TileBlock {
 public:
  TileBlock(const TileSizes& sizes, const Queries& queries, const BlockKeys& keys, const TaskScratch& scratch,
            const Sink& sink)
      : sizes_(sizes),
        call_(sizes.call),
        queries_(queries),
        keys_(keys),
        scratch_(scratch),
        sink_(sink),
        v_rows_(RowsOfV(sizes.call.pool), keys),
        values_(v_rows_.OfHead(static_cast<size_t>(queries.kv_head))) {}

  void Run() {
    wanted_ = SetVisible(call_, queries_, keys_, visible_);
    if (wanted_ == 0) return;
    SetBlock();
    size_t n = 0;
    size_t turns[kMaxTileRows / kTileRows];  // the first query of each
    for (size_t first = 0; first < queries_.rows; first += kTileRows) {
      const auto* begin = visible_ + first;
      const auto* end = begin + RowsOf(first);
      if (std::any_of(begin, end, [](uint64_t set) { return set != 0; })) turns[n++] = first;
    }
    for (size_t i = 0; i < n + 2; ++i) {
      if (i < n) MultiplyKeys(turns[i], i);
      if (i >= 1 && i < n + 1) MultiplyValues(turns[i - 1], i - 1);
      if (i >= 2) Hand(turns[i - 2], i - 2);
    }
  }

 private:
  size_t RowsOf(size_t first) const { return std::min(kTileRows, queries_.rows - first); }
  float* Scores(size_t turn) const { return scratch_.tile_scores + turn % 2 * kTileRows * kBlock; }
  float* Weights(size_t turn) const { return scratch_.weight_tiles + turn % 2 * kKeySteps * kTileFloats; }
  float* Sums(size_t turn) const { return scratch_.tile_sums + turn % 2 * kTileRows * call_.v_padded; }

  void SetBlock() const {
    const BlockRows k_rows(RowsOfK(call_.pool), keys_);
    float* staging = scratch_.key_tiles + kKeyTiles * sizes_.q_floats;
    sizes_.SetKeys(k_rows.OfHead(static_cast<size_t>(queries_.kv_head)), wanted_, staging);
    for (size_t i = 0; i < kKeyTiles * sizes_.q_floats; i += kTileFloats) {
      TransposeTile(staging + i, scratch_.key_tiles + i, kTileRows);
    }
    sizes_.SetValues(values_, wanted_, nullptr, scratch_.value_tiles);
  }

  void MultiplyKeys(size_t first, size_t turn) const {
    MultiplyTiles<kAllSums, kKeyTiles, kQueryTile, Side::kLeft>(
        {.data = Bytes(scratch_.query_tiles + first / kTileRows * sizes_.q_floats)},
        {.data = Bytes(scratch_.key_tiles), .step = kKeyTiles * kTileBytes, .next = kTileBytes}, sizes_.k_steps,
        {.data = Bytes(Scores(turn)), .row = kBlock * 4, .next = 64});
  }

  void MultiplyValues(size_t first, size_t turn) {
    const size_t rows = RowsOf(first);
    uint8_t* to[kTileRows];
    for (size_t r = 0; r < rows; ++r) to[r] = Bytes(Weights(turn)) + r * 64;
    ForRowGroups(rows, [&](auto n, size_t r) HWY_ATTR {
      MaskRows(call_, queries_, first + r, n(), keys_, visible_ + first + r, scratch_.bias);
      sizes_.template SetWeights<n()>(Scores(turn) + r * kBlock, visible_ + first + r, scratch_.bias,
                                      states_[turn % 2] + r, to + r);
    });
    sizes_.template SumValues<kAllSums, 4>(values_, wanted_, visible_ + first, Weights(turn), rows,
                                           scratch_.value_tiles, scratch_.repair, Sums(turn), call_.v_padded);
  }

  void Hand(size_t first, size_t turn) const {
    ForRowGroups(RowsOf(first), [&](auto n, size_t r) HWY_ATTR {
      if (Union<n()>(visible_ + first + r) == 0) return;
      sink_(n, first + r, states_[turn % 2] + r, Sums(turn) + r * call_.v_padded);
    });
  }

  const TileSizes& sizes_;
  const AttentionCall& call_;
  const Queries& queries_;
  const BlockKeys& keys_;
  const TaskScratch& scratch_;
  const Sink& sink_;
  BlockRows v_rows_;
  KeyRows values_;
  uint64_t wanted_ = 0;
  uint64_t visible_[kMaxTileRows];
  SoftmaxState states_[2][kTileRows];
};

// A block for few queries of every kv head.
class TileStream {
 public:
  TileStream(const AttentionCall& call, const Task& task, const BlockKeys& keys, uint64_t wanted,
             const uint64_t* visible, const TaskScratch& scratch)
      : sizes_(call),
        call_(call),
        task_(task),
        wanted_(wanted),
        visible_(visible),
        scratch_(scratch),
        rows_(task.queries.rows),
        columns_((task.queries.rows + 3) / 4 * 4),
        key_tiles_((64 - static_cast<size_t>(std::countl_zero(wanted)) + kTileRows - 1) / kTileRows),
        k_rows_(RowsOfK(call.pool), keys),
        v_rows_(RowsOfV(call.pool), keys),
        in_place_(LieAsTiles(keys)) {}

  void Run() const {
    const size_t heads = call_.n_kv_heads;
    for (size_t h = 0; h < heads; ++h) SetQueries(h);
    SetKeys(0);
    for (size_t h = 1; h < heads; ++h) {
      SetKeys(h);
      MultiplyKeys(h - 1);
      Fetch(h - 1);
    }
    MultiplyKeys(heads - 1);
    Fetch(heads - 1);
    SetValues(0);
    for (size_t h = 0; h < heads; ++h) {
      // Rows that belong to the next kv head are set after those of this.
      TransposeFours(ScoresByKey(h), columns_, key_tiles_ * kTileRows, columns_, scratch_.scores + h * rows_ * kBlock,
                     kBlock);
      Fetch(heads + h);
    }
    SetWeights();
    Fetch(2 * heads);
    for (size_t h = 1; h < heads; ++h) {
      SetValues(h);
      SumValues(h - 1);
      Fetch(2 * heads + h);
    }
    SumValues(heads - 1);
    Fetch(3 * heads);
  }

 private:
  float* QueryTiles(size_t h) const { return scratch_.query_tiles + h * sizes_.q_floats; }
  float* ScoresByKey(size_t h) const { return scratch_.scores_by_key + h * kBlock * columns_; }
  float* WeightTiles(size_t h) const { return scratch_.weight_tiles + h * kKeySteps * kTileFloats; }
  float* KeyTiles(size_t h) const { return scratch_.key_tiles + h % 2 * kKeyTiles * sizes_.q_floats; }
  float* ValueTiles(size_t h) const { return scratch_.value_tiles + h % 2 * kKeySteps * sizes_.v_tiles * kTileFloats; }

  // Where the next block of K or V lies, as far as that can be guessed.
  static const uint8_t* Next(const BlockRows& rows) { return rows.rows[0] + kBlock * BytesOfRow(rows); }
  static size_t BytesOfRow(const BlockRows& rows) { return static_cast<size_t>(rows.pool.row_bytes); }

  // A part of V's next block is fetched: products wait for each other, and memory should not wait as well.
  void Fetch(size_t part) const {
    if (!in_place_) return;
    const size_t parts = 3 * call_.n_kv_heads + 1;
    const size_t lines = kBlock * BytesOfRow(v_rows_) / 64;
    const uint8_t* next = Next(v_rows_);
    const size_t end = lines * (part + 1) / parts;
    for (size_t line = lines * part / parts; line < end; ++line) __builtin_prefetch(next + line * 64);
  }

  // Whether the rows of K are tiles as they are stored.
  bool LieAsTiles(const BlockKeys& keys) const {
    if (call_.pool.k_type != DType::kBFloat16 || call_.pool.k_dim % static_cast<int64_t>(kDepth) != 0) return false;
    for (size_t j = 1; j < kBlock; ++j) {
      if (keys.row[j] != keys.row[0] + static_cast<int64_t>(j)) return false;
    }
    return true;
  }

  // Transposed.
  void SetQueries(size_t h) const {
    sizes_.SetQueries(OfHead(task_.queries, h), 0, rows_, scratch_.repair);
    for (size_t i = 0; i < sizes_.q_floats; i += kTileFloats) {
      TransposeFours(scratch_.repair + i, kTileRows, columns_, kTileRows, QueryTiles(h) + i, columns_);
    }
  }

  void SetKeys(size_t h) const {
    if (!in_place_) sizes_.SetKeys(k_rows_.OfHeadInTurn(h), wanted_, KeyTiles(h));
  }

  void MultiplyKeys(size_t h) const {
    TilesAt k = {.data = Bytes(KeyTiles(h)), .step = kKeyTiles * kTileBytes, .next = kTileBytes};
    if (in_place_) {
      const int64_t row_bytes = k_rows_.pool.row_bytes;
      k = {.data = static_cast<const uint8_t*>(k_rows_.OfHead(h).At(0)),
           .row = row_bytes,
           .step = 64,
           .next = static_cast<int64_t>(kTileRows) * row_bytes};
    }
    const auto row_bytes = static_cast<int64_t>(columns_ * 4);
    MultiplyAllTiles<kScoreSums, 2, kQueryTile, Side::kRight>(
        {.data = Bytes(QueryTiles(h)), .row = row_bytes}, k, sizes_.k_steps,
        {.data = Bytes(ScoresByKey(h)), .row = row_bytes, .next = static_cast<int64_t>(kTileRows) * row_bytes},
        key_tiles_);
  }

  void SetWeights() const {
    ForRowGroups(rows_ * call_.n_kv_heads, [&](auto n, size_t first) HWY_ATTR {
      SoftmaxState states[n()];
      uint8_t* to[n()];
      for (size_t r = 0; r < n(); ++r) to[r] = Bytes(WeightTiles((first + r) / rows_)) + (first + r) % rows_ * 64;
      sizes_.SetWeights<n()>(scratch_.scores + first * kBlock, visible_ + first, scratch_.bias + first * kBlock, states,
                             to);
      for (size_t r = 0; r < n(); ++r) KeepState(call_, task_.partial + first + r, states[r].max, states[r].sum);
    });
  }

  // A part of the next block is fetched: of K where that is not packed, else of V.
  void SetValues(size_t h) const {
    const BlockRows& rows = in_place_ ? k_rows_ : v_rows_;
    const uint8_t* next = Next(rows) + h * kBlock * (BytesOfRow(rows) / call_.n_kv_heads);
    sizes_.SetValues(v_rows_.OfHead(h), wanted_, next, ValueTiles(h));
  }

  void SumValues(size_t h) const {
    const size_t i = h * rows_;
    sizes_.SumValues<kValueSums, 2>(v_rows_.OfHead(h), wanted_, visible_ + i, WeightTiles(h), rows_, ValueTiles(h),
                                    scratch_.repair, call_.Partial(task_.partial + i), call_.PartialSize());
  }

  TileSizes sizes_;
  const AttentionCall& call_;
  const Task& task_;
  uint64_t wanted_;
  const uint64_t* visible_;
  const TaskScratch& scratch_;
  size_t rows_;
  size_t columns_;    // of scores by key: rows up to a multiple of 4
  size_t key_tiles_;  // up to the last wanted key
  BlockRows k_rows_;
  BlockRows v_rows_;
  bool in_place_;
};

// See ByVectors.
struct ByTiles {
  struct Scope {
    explicit Scope(size_t rows = kTileRows) : tiles(kTileConfigs[rows]) {}
    TileScope tiles;
  };

  static void SetQueries(const AttentionCall& call, const Queries& queries, const TaskScratch& scratch) {
    const TileSizes sizes(call);
    for (size_t first = 0; first < queries.rows; first += kTileRows) {
      sizes.SetQueries(queries, first, std::min(kTileRows, queries.rows - first),
                       scratch.query_tiles + first / kTileRows * sizes.q_floats);
    }
  }

  template <class Sink>
  static void AttendBlock(const AttentionCall& call, const Queries& queries, const BlockKeys& keys,
                          const TaskScratch& scratch, const Sink& sink) {
    TileBlock<Sink>(TileSizes(call), queries, keys, scratch, sink).Run();
  }

  static void AttendStream(const AttentionCall& call, const Task& task, const BlockKeys& keys, uint64_t wanted,
                           const uint64_t* visible, const TaskScratch& scratch) {
    TileStream(call, task, keys, wanted, visible, scratch).Run();
  }
};

}  // namespace offgraph::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // HWY_AVX3_DL

#endif  // OFFGRAPH_KERNELS_ATTENTION_BY_TILES_INL_H_
