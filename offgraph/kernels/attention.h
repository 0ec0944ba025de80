// Attention over a KV pool, and the store of new rows into it. Raw pointers, counts and strides; no tensor.
//
// Bits: a query's result depends on that query, on the rows that it may see and their logical positions, and on
// nothing else. Positions are cut into blocks [64 b, 64 b + 64). Each block's partial result (maximum, sum of
// exponentials, weighted V) is computed alone, in fp32, and partials are merged in order of position. Chunking,
// layout, threads and neighbours in a step therefore never change a bit on one instruction set.
#pragma once

#include <cstdint>
#include <span>

#include "offgraph/kernels/dtype.h"
#include "offgraph/kernels/thread_pool.h"

namespace offgraph::kernels {

inline constexpr int64_t kAttentionBlock = 64;

// Consecutive positions [position, position + count) in consecutive pool rows [row, row + count).
struct RowRun {
  int64_t row = 0;
  int64_t count = 0;
  int64_t position = 0;
};

// A layer's pool, K and V apart.
struct KvPool {
  void* k = nullptr;  // [rows, n_kv_heads, k_dim], contiguous
  void* v = nullptr;  // [rows, n_kv_heads, v_dim], contiguous
  DType k_type = DType::kFloat32;
  DType v_type = DType::kFloat32;
  int64_t n_kv_heads = 0;
  int64_t k_dim = 0;
  int64_t v_dim = 0;
};

// A tensor [n_heads, tokens, dim] whose innermost axis is contiguous; strides in elements.
struct HeadsView {
  const void* data = nullptr;
  DType type = DType::kFloat32;
  int64_t head_stride = 0;
  int64_t token_stride = 0;
};
struct MutableHeadsView {
  void* data = nullptr;
  DType type = DType::kFloat32;
  int64_t head_stride = 0;
  int64_t token_stride = 0;
  DType round = DType::kFloat32;  // elements are rounded to what this type holds before they are stored
};

// One sequence's part of a step: tokens [token_offset, token_offset + tokens) of the step, at logical positions
// [position, position + tokens).
struct AttentionSegment {
  int64_t token_offset = 0;
  int64_t tokens = 0;
  int64_t position = 0;
  std::span<const RowRun> writes = {};  // rows for the tokens, in token order
  std::span<const RowRun> reads = {};   // rows that may be seen, oldest position first
};

enum class MaskType : uint8_t { kNone, kBool, kFloat32, kFloat16, kBFloat16 };

// An explicit mask [n_heads or 1, tokens, keys]: bool (false hides) or additive. The keys axis follows the reads of
// the segment in order. A stride of 0 broadcasts. Strides in elements.
struct MaskView {
  const void* data = nullptr;
  MaskType type = MaskType::kNone;
  int64_t head_stride = 0;
  int64_t token_stride = 0;
  int64_t key_stride = 1;
};

struct AttentionOptions {
  int64_t n_heads = 0;  // a multiple of the pool's n_kv_heads; head h reads kv head h / (n_heads / n_kv_heads)
  float scale = 1.0F;
  float soft_cap = 0.0F;  // > 0: scores become soft_cap * tanh(score / soft_cap), before the mask
  bool causal = true;     // key j is visible to the query at position i only where j <= i
  int64_t window = 0;     // > 0: and only where j > i - window, or j < sinks
  int64_t sinks = 0;
  MaskView mask = {};  // applies on top of the above
  // Queries and the weights of V may be rounded to bf16, where that is faster: what a program that computes in bf16
  // does.
  bool round_to_bf16 = false;
};

// Where StoreRows found a value that the pool's type cannot hold.
struct StoreFault {
  bool found = false;
  bool in_v = false;     // in V, else in K
  int64_t position = 0;  // logical position
  int64_t head = 0;
  float value = 0;
};

// Writes the K and V rows of `segment` into the pool, converting to its types (round to nearest even). A finite value
// that would become infinite is a fault: the first one (by position) is reported; rows before and after it may have
// been written. NaN and infinity that come in are stored as they are.
StoreFault StoreRows(const KvPool& pool, const AttentionSegment& segment, const HeadsView& k, const HeadsView& v,
                     ThreadPool& threads);

// out[h, t, :] = softmax(scale * q[h, t, :] . K) V over the visible rows, for all segments of a step.
// A query that sees no key gives zeros. Rows that are not in a segment's reads are never touched.
//   q   [n_heads, T, k_dim]    out [n_heads, T, v_dim]
// The segments may run concurrently. REQUIRES: the segments' rows are stored.
void Attend(const KvPool& pool, std::span<const AttentionSegment> segments, const HeadsView& q,
            const MutableHeadsView& out, const AttentionOptions& options, ThreadPool& threads);

}  // namespace offgraph::kernels
