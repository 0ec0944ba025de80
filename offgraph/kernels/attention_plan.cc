#include "offgraph/kernels/attention_plan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace offgraph::kernels {
namespace {

// Segments with at most so many queries per kv head are split over blocks; with more, there is enough to do in
// parallel without.
constexpr size_t kMaxSplitRows = 64;

// With more queries on a kv head than this it pays to transpose a block of K, so that keys lie in the lanes.
constexpr size_t kMaxStreamedRows = 8;

// Neighbouring blocks that one thread reads, at most.
constexpr size_t kMaxStreamedBlocks = 16;

constexpr size_t PaddedTo16(int64_t n) { return (static_cast<size_t>(n) + 15) / 16 * 16; }

// The lowest `count` keys of a block.
uint64_t Lowest(int64_t count) {
  if (count <= 0) return 0;
  return count >= kAttentionBlock ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
}

float F32FromF16Bits(uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1F;
  const int mantissa = bits & 0x3FF;
  float magnitude = 0;
  if (exponent == 0x1F) {
    magnitude = mantissa == 0 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(mantissa), -24);
  } else {
    magnitude = std::ldexp(static_cast<float>(mantissa + 0x400), exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

float Additive(const MaskView& mask, int64_t offset) {
  switch (mask.type) {
    case MaskType::kFloat32:
      return static_cast<const float*>(mask.data)[offset];
    case MaskType::kFloat16:
      return F32FromF16Bits(static_cast<const uint16_t*>(mask.data)[offset]);
    case MaskType::kBFloat16:
      return std::bit_cast<float>(static_cast<uint32_t>(static_cast<const uint16_t*>(mask.data)[offset]) << 16);
    case MaskType::kNone:
    case MaskType::kBool:
      break;
  }
  return 0;
}

}  // namespace

void ListBlocks(std::span<const RowRun> reads, std::vector<BlockRef>& blocks) {
  int64_t key = 0;
  for (size_t run = 0; run < reads.size(); ++run) {
    const int64_t end = reads[run].position + reads[run].count;
    int64_t first = reads[run].position / kAttentionBlock * kAttentionBlock;
    if (!blocks.empty() && blocks.back().first == first) first += kAttentionBlock;
    for (; first < end; first += kAttentionBlock) blocks.push_back({.first = first, .run = run, .key = key});
    key += reads[run].count;
  }
}

void FindKeys(std::span<const RowRun> reads, const BlockRef& block, BlockKeys& keys) {
  keys.first = block.first;
  keys.present = 0;
  int64_t key = block.key;
  for (size_t i = block.run; i < reads.size() && reads[i].position < block.first + kAttentionBlock; ++i) {
    const RowRun& run = reads[i];
    const int64_t begin = std::max(run.position, block.first);
    const int64_t end = std::min(run.position + run.count, block.first + kAttentionBlock);
    for (int64_t position = begin; position < end; ++position) {
      keys.row[position - block.first] = run.row + (position - run.position);
      keys.key[position - block.first] = key + (position - run.position);
    }
    keys.present |= Lowest(end - block.first) & ~Lowest(begin - block.first);
    key += run.count;
  }
  if (keys.present == 0 || keys.present == ~uint64_t{0}) return;
  const int some = std::countr_zero(keys.present);
  for (int64_t j = 0; j < kAttentionBlock; ++j) {
    if (((keys.present >> j) & 1) != 0) continue;
    keys.row[j] = keys.row[some];
    keys.key[j] = keys.key[some];
  }
}

uint64_t VisibleByPosition(int64_t first, int64_t position, const AttentionOptions& options) {
  uint64_t visible = options.causal ? Lowest(position - first + 1) : ~uint64_t{0};
  if (options.window > 0) {
    visible &= ~Lowest(position - options.window + 1 - first) | Lowest(options.sinks - first);
  }
  return visible;
}

bool BlockMatters(int64_t first, int64_t first_query, int64_t last_query, const AttentionOptions& options) {
  if (options.causal && first > last_query) return false;
  return options.window == 0 || first < options.sinks || first + kAttentionBlock > first_query - options.window + 1;
}

uint64_t ApplyMask(const MaskView& mask, int64_t head, int64_t token, const BlockKeys& keys, uint64_t visible,
                   float* bias) {
  const int64_t start = head * mask.head_stride + token * mask.token_stride;
  uint64_t kept = 0;
  for (uint64_t rest = visible; rest != 0; rest &= rest - 1) {
    const int j = std::countr_zero(rest);
    const int64_t offset = start + keys.key[j] * mask.key_stride;
    bool keep = false;
    if (mask.type == MaskType::kBool) {
      keep = static_cast<const uint8_t*>(mask.data)[offset] != 0;
    } else {
      bias[j] = Additive(mask, offset);
      keep = bias[j] != -std::numeric_limits<float>::infinity();
    }
    if (keep) kept |= uint64_t{1} << j;
  }
  return kept;
}

AttentionCall::AttentionCall(const KvPool& kv_pool, std::span<const AttentionSegment> all, const HeadsView& queries,
                             const MutableHeadsView& output, const AttentionOptions& attention_options, size_t threads)
    : pool(kv_pool),
      segments(all),
      q(queries),
      out(output),
      options(attention_options),
      n_kv_heads(static_cast<size_t>(kv_pool.n_kv_heads)),
      group(static_cast<size_t>(attention_options.n_heads / kv_pool.n_kv_heads)),
      k_padded(PaddedTo16(kv_pool.k_dim)),
      v_padded(PaddedTo16(kv_pool.v_dim)),
      blocks(all.size()) {
  size_t all_rows = 0;
  for (const AttentionSegment& segment : segments) all_rows += static_cast<size_t>(segment.tokens) * group * n_kv_heads;
  // Small tiles where large ones would leave threads without work.
  const size_t tile_rows = std::clamp<size_t>(all_rows / (8 * threads) / 4 * 4, 32, kMaxTileRows);
  bool streams_only = true;
  for (size_t s = 0; s < segments.size(); ++s) {
    const AttentionSegment& segment = segments[s];
    ListBlocks(segment.reads, blocks[s]);
    const int64_t last = segment.position + segment.tokens - 1;
    std::erase_if(blocks[s],
                  [&](const BlockRef& block) { return !BlockMatters(block.first, segment.position, last, options); });
    const size_t rows = static_cast<size_t>(segment.tokens) * group;
    if (rows > kMaxSplitRows) {
      AddTiles(s, rows, tile_rows);
    } else {
      AddBlocks(s, rows);
    }
    streams_only = streams_only && rows <= kMaxStreamedRows;
  }
  if (streams_only) task_grain = std::clamp<size_t>(tasks.size() / (2 * threads), 1, kMaxStreamedBlocks);
}

void AttentionCall::AddTiles(size_t segment, size_t rows, size_t tile_rows) {
  for (size_t row = 0; row < rows; row += tile_rows) {
    for (size_t head = 0; head < n_kv_heads; ++head) {
      tasks.push_back({.queries = {segment, static_cast<int64_t>(head), row, std::min(tile_rows, rows - row)}});
    }
  }
}

void AttentionCall::AddBlocks(size_t segment, size_t rows) {
  const bool streams = rows <= kMaxStreamedRows && rows * n_kv_heads <= kMaxTileRows;
  for (size_t block = 0; block < blocks[segment].size(); ++block) {
    for (size_t head = 0; head < (streams ? 1 : n_kv_heads); ++head) {
      tasks.push_back({.kind = streams ? TaskKind::kStream : TaskKind::kBlock,
                       .queries = {segment, static_cast<int64_t>(head), 0, rows},
                       .block = block,
                       .partial = partials + (block * n_kv_heads + head) * rows});
    }
  }
  for (size_t head = 0; head < n_kv_heads; ++head) {
    for (size_t row = 0; row < rows; row += kMaxReducedRows) {
      reductions.push_back(
          {.queries = {segment, static_cast<int64_t>(head), row, std::min(kMaxReducedRows, rows - row)},
           .partial = partials + head * rows + row,
           .blocks = blocks[segment].size(),
           .stride = n_kv_heads * rows});
    }
  }
  partials += blocks[segment].size() * n_kv_heads * rows;
}

}  // namespace offgraph::kernels
