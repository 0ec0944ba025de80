// What the tasks of one call of Attend work with, the same on all instruction sets. Not for other files.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "offgraph/kernels/attention_plan.h"

namespace offgraph::kernels {

// Memory of a task. Without `memory` it counts what that must hold.
struct TaskScratch {
  float* sums;  // [kMaxTileRows, v_padded]
  float* bias;  // [kMaxTileRows, 64]
  // By vectors:
  float* q;        // [kMaxTileRows, k_padded]
  float* scores;   // [kMaxTileRows, 64]; by tiles, of a stream, with room behind it for 4 rows
  float* columns;  // [k_padded, 64]
  float* staging;  // [4, k_padded]
  float* values;   // [64, v_padded]
  float* block;    // [4, v_padded]
  // By tiles: a tile is 16 rows of 32 numbers in two bytes each.
  float* query_tiles;    // of kMaxTileRows queries, or of those of a stream for every kv head
  float* key_tiles;      // of two blocks
  float* value_tiles;    // of two blocks
  float* weight_tiles;   // of twice 16 queries, or of those of a stream for every kv head
  float* tile_scores;    // twice [16, 64]
  float* tile_sums;      // twice [16, v_padded]
  float* scores_by_key;  // [n_kv_heads, 64, 16]
  float* repair;         // [16, v_padded], or 16 queries
  size_t size = 0;

  TaskScratch(float* memory, const AttentionCall& call) {
    const auto take = [&](bool wanted, size_t rows, size_t row_floats) {
      float* piece = memory == nullptr ? nullptr : memory + size;
      if (wanted) size += rows * row_floats;
      return piece;
    };
    const bool tiles = call.tiles;
    sums = take(true, kMaxTileRows, call.v_padded);
    bias = take(true, kMaxTileRows, kAttentionBlock);
    scores = take(true, kMaxTileRows + 4, kAttentionBlock);
    q = take(!tiles, kMaxTileRows, call.k_padded);
    columns = take(!tiles, kAttentionBlock, call.k_padded);
    staging = take(!tiles, 4, call.k_padded);
    values = take(!tiles, kAttentionBlock, call.v_padded);
    block = take(!tiles, 4, call.v_padded);
    const size_t key_floats = (call.k_padded + 31) / 32 * 16;
    query_tiles = take(tiles, std::max<size_t>(kMaxTileRows, call.n_kv_heads * 16), key_floats);
    key_tiles = take(tiles, size_t{2} * kAttentionBlock, key_floats);
    value_tiles = take(tiles, size_t{2} * kAttentionBlock, call.v_padded / 2);
    weight_tiles = take(tiles, std::max<size_t>(2, call.n_kv_heads) * 16, kAttentionBlock / 2);
    tile_scores = take(tiles, size_t{2} * 16, kAttentionBlock);
    tile_sums = take(tiles, size_t{2} * 16, call.v_padded);
    scores_by_key = take(tiles, call.n_kv_heads * kAttentionBlock, 16);
    repair = take(tiles, 16, std::max(call.v_padded, key_floats));
  }
};

// A pool's rows, K or V.
struct PoolRows {
  const uint8_t* data;
  int64_t head_bytes;
  int64_t row_bytes;

  PoolRows(const void* pool, int64_t n_kv_heads, int64_t dim, DType type)
      : data(static_cast<const uint8_t*>(pool)),
        head_bytes(dim * static_cast<int64_t>(SizeOf(type))),
        row_bytes(n_kv_heads * head_bytes) {}
  const uint8_t* At(int64_t row, int64_t kv_head) const { return data + row * row_bytes + kv_head * head_bytes; }
};
inline PoolRows RowsOfK(const KvPool& pool) { return {pool.k, pool.n_kv_heads, pool.k_dim, pool.k_type}; }
inline PoolRows RowsOfV(const KvPool& pool) { return {pool.v, pool.n_kv_heads, pool.v_dim, pool.v_type}; }

// Where the rows of a block lie, K or V of one kv head.
struct KeyRows {
  const uint8_t* const* rows = nullptr;  // [64]
  size_t offset = 0;                     // bytes from there to the row
  size_t ahead = 0;                      // bytes from a row to one that is read soon, if not 0: it is fetched early, so
  size_t ahead_bytes = 0;                // that memory is never idle; and its size

  const void* At(size_t key) const { return rows[key] + offset; }
  void FetchAhead(size_t key) const {
    if (ahead_bytes == 0) return;
    const uint8_t* at = rows[key] + offset + ahead;
    for (size_t i = 0; i < ahead_bytes; i += 64) __builtin_prefetch(at + i);
  }
};

// Rows of a block in a pool, of kv head 0.
struct BlockRows {
  PoolRows pool;
  const uint8_t* rows[kAttentionBlock];

  BlockRows(const PoolRows& of_pool, const BlockKeys& keys) : pool(of_pool) {
    for (int64_t j = 0; j < kAttentionBlock; ++j) rows[j] = pool.At(keys.row[j], 0);
  }
  KeyRows OfHead(size_t kv_head) const {
    return {.rows = rows, .offset = kv_head * static_cast<size_t>(pool.head_bytes)};
  }
  // The same for who reads all heads, one after the other: the next block is fetched meanwhile, as far as it can be
  // guessed where it lies.
  KeyRows OfHeadInTurn(size_t kv_head) const {
    KeyRows of_head = OfHead(kv_head);
    of_head.ahead = kAttentionBlock * static_cast<size_t>(pool.row_bytes);
    of_head.ahead_bytes = static_cast<size_t>(pool.head_bytes);
    return of_head;
  }
};

// The keys of a block that each query may see, by position. Returns their union.
inline uint64_t SetVisible(const AttentionCall& call, const Queries& queries, const BlockKeys& keys,
                           uint64_t* visible) {
  const auto seen_by = [&](size_t row) {
    return keys.present & VisibleByPosition(keys.first, call.Position(queries, row), call.options);
  };
  // What the first and the last query see entirely, all between them do.
  if ((seen_by(0) & seen_by(queries.rows - 1)) == keys.present) {
    std::fill_n(visible, queries.rows, keys.present);
    return keys.present;
  }
  uint64_t any = 0;
  for (size_t r = 0; r < queries.rows; ++r) any |= visible[r] = seen_by(r);
  return any;
}

// Applies the explicit mask, if there is one, to `rows` queries from row `first` on. bias: [rows, 64].
inline void MaskRows(const AttentionCall& call, const Queries& queries, size_t first, size_t rows,
                     const BlockKeys& keys, uint64_t* visible, float* bias) {
  if (call.options.mask.type == MaskType::kNone) return;
  for (size_t r = 0; r < rows; ++r) {
    visible[r] = ApplyMask(call.options.mask, call.Head(queries, first + r), call.Token(queries, first + r), keys,
                           visible[r], bias + r * kAttentionBlock);
  }
}

// Row `row` of a group of queries, as it comes.
inline const uint8_t* QueryAt(const AttentionCall& call, const Queries& queries, size_t row) {
  const int64_t element = call.Head(queries, row) * call.q.head_stride + call.Token(queries, row) * call.q.token_stride;
  return static_cast<const uint8_t*>(call.q.data) + element * static_cast<int64_t>(SizeOf(call.q.type));
}

// The same queries of another kv head.
inline Queries OfHead(Queries queries, size_t kv_head) {
  queries.kv_head = static_cast<int64_t>(kv_head);
  return queries;
}

inline void KeepState(const AttentionCall& call, size_t partial, float max, float sum) {
  call.Partial(partial)[call.v_padded] = max;
  call.Partial(partial)[call.v_padded + 1] = sum;
}

}  // namespace offgraph::kernels
