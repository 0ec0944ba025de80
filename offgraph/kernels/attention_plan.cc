#include "offgraph/kernels/attention_plan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace offgraph::kernels {
namespace {

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

}  // namespace offgraph::kernels
