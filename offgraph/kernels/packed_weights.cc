#include "offgraph/kernels/packed_weights.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <vector>

#include "offgraph/kernels/packed_job.h"

namespace offgraph::kernels {
namespace {

// Where row `row` of the whole is: its part, and its row there. A part is null behind the last row.
struct Place {
  const QuantizedRows* part;
  int64_t row;
};
Place Find(std::span<const QuantizedRows> parts, int64_t row) {
  for (const QuantizedRows& part : parts) {
    if (row < part.rows) return {&part, row};
    row -= part.rows;
  }
  return {nullptr, 0};
}

// The bits that a code of `bits` bits takes in memory.
constexpr int CodeBits(int bits) { return bits <= 2 ? 2 : bits <= 4 ? 4 : 8; }

// The four lowest bytes of x, as the lower bytes of four 16-bit numbers.
uint64_t SpreadBytes(uint64_t x) {
  x = (x & 0xFFFF) | (x & 0xFFFF0000) << 16;
  return (x | x << 8) & 0x00FF00FF00FF00FF;
}

// 32 codes of a row, from the stream that quantized.h describes: the row's lanes of a tile, vector by vector.
template <int kBits>
std::array<uint32_t, CodeBits(kBits)> PackTileRow(const uint32_t* words) {
  constexpr int kCodeBits = CodeBits(kBits);
  std::array<uint32_t, kCodeBits> lanes = {};
  if constexpr (kBits == 8) {
    std::memcpy(lanes.data(), words, sizeof(lanes));
  } else if constexpr (kBits == 4) {
    // Codes 16 to 31 go above codes 0 to 15: first all with an even number, then all with an odd one.
    constexpr uint64_t kLow = 0x0F0F0F0F0F0F0F0F;
    const uint64_t first = words[0] | uint64_t{words[1]} << 32;
    const uint64_t second = words[2] | uint64_t{words[3]} << 32;
    const uint64_t even = (first & kLow) | (second & kLow) << 4;
    const uint64_t odd = (first >> 4 & kLow) | (second & ~kLow);
    for (int i = 0; i < 2; ++i) {
      const uint64_t pair = SpreadBytes(even >> (32 * i)) | SpreadBytes(odd >> (32 * i)) << 8;
      lanes[2 * i] = static_cast<uint32_t>(pair);
      lanes[2 * i + 1] = static_cast<uint32_t>(pair >> 32);
    }
  } else {
    uint8_t codes[kPackedTile];
    for (int i = 0; i < kPackedTile; ++i) {
      const int word = i * kBits / 32;
      const int shift = i * kBits % 32;
      uint64_t window = words[word];
      if (shift + kBits > 32) window |= static_cast<uint64_t>(words[word + 1]) << 32;
      codes[i] = static_cast<uint8_t>(window >> shift & ((1U << kBits) - 1));
    }
    for (int i = 0; i < kPackedTile; i += 4) {
      uint32_t four;  // none of them leaves its byte when they are shifted
      std::memcpy(&four, codes + i, sizeof(four));
      lanes[i / 4 % kCodeBits] |= four << (i / 4 / kCodeBits * kCodeBits);
    }
  }
  return lanes;
}

// The codes of row i of a block, to the tiles that packed_weights.h describes; zeros where there is no row.
template <int kBits>
void PackCodes(const Place& place, int64_t i, int64_t k, uint8_t* tile) {
  constexpr int64_t kVectors = CodeBits(kBits);  // of 64 bytes, in a tile
  const uint32_t* words = nullptr;
  if (place.part != nullptr) words = place.part->view.codes + place.row * place.part->view.code_stride;
  std::array<uint32_t, kVectors> lanes = {};
  for (tile += i * 4; k > 0; k -= kPackedTile, tile += kVectors * 64) {
    if (words != nullptr) {
      lanes = PackTileRow<kBits>(words);
      words += kBits;
    }
    for (int64_t vector = 0; vector < kVectors; ++vector) std::memcpy(tile + vector * 64, &lanes[vector], 4);
  }
}

using PackCodesFunction = void (*)(const Place& place, int64_t i, int64_t k, uint8_t* tile);
PackCodesFunction PackCodesOf(int bits) {
  constexpr PackCodesFunction kFunctions[] = {nullptr,      PackCodes<1>, PackCodes<2>, PackCodes<3>, PackCodes<4>,
                                              PackCodes<5>, PackCodes<6>, nullptr,      PackCodes<8>};
  return kFunctions[bits];
}

// Whether the biases of a row are -zero * scale, to the bit. With a type: that of both, known to the compiler.
template <DType... kType>
bool IsSymmetricRow(MatrixView scales, MatrixView biases, int64_t row, int64_t groups, int zero) {
  ((scales.type = biases.type = kType), ...);
  for (int64_t group = 0; group < groups; ++group) {
    const float scale = ElementAsFloat(scales, row, group);
    if (ElementAsFloat(biases, row, group) != -static_cast<float>(zero) * scale) return false;
  }
  return true;
}
bool IsSymmetric(const QuantizedView& view, int64_t row, int64_t groups, int zero) {
  const auto both = [&](DType type) { return view.scales.type == type && view.biases.type == type; };
  const auto function = both(DType::kBFloat16)  ? IsSymmetricRow<DType::kBFloat16>
                        : both(DType::kFloat16) ? IsSymmetricRow<DType::kFloat16>
                                                : IsSymmetricRow<>;
  return function(view.scales, view.biases, row, groups, zero);
}

// Element (row i of the block, group) goes to to[group * 16 + i].
template <typename T, typename Read>
void PackRow(int64_t i, int64_t groups, uint8_t* to, const Read& read) {
  for (int64_t group = 0; group < groups; ++group) {
    const T element = read(group);
    std::memcpy(to + (group * kPackedBlock + i) * static_cast<int64_t>(sizeof(T)), &element, sizeof(T));
  }
}

// The scales of a block of rows, or its biases, in `type`; zeros where there is no row.
void PackFactors(const Place* places, MatrixView QuantizedView::*factors, int64_t groups, DType type, uint8_t* to) {
  for (int64_t i = 0; i < kPackedBlock; ++i) {
    if (places[i].part == nullptr) {
      if (SizeOf(type) == 2) {
        PackRow<uint16_t>(i, groups, to, [](int64_t) { return uint16_t{0}; });
      } else {
        PackRow<uint32_t>(i, groups, to, [](int64_t) { return uint32_t{0}; });
      }
      continue;
    }
    const MatrixView& view = places[i].part->view.*factors;
    const int64_t row = places[i].row;
    if (view.type == type && SizeOf(type) == 2) {
      const auto* from = static_cast<const uint16_t*>(view.data) + row * view.row_stride;
      PackRow<uint16_t>(i, groups, to, [&](int64_t group) { return from[group * view.col_stride]; });
    } else {
      PackRow<float>(i, groups, to, [&](int64_t group) { return ElementAsFloat(view, row, group); });
    }
  }
}

}  // namespace

PackedWeights::PackedWeights(std::span<const QuantizedRows> parts, int64_t k, ThreadPool& threads, PartOrder order)
    : PackedWeights(parts, k, threads, *std::make_unique<WeightArena>(0), order) {}

PackedWeights::PackedWeights(std::span<const QuantizedRows> parts, int64_t k, ThreadPool& threads, WeightArena& arena,
                             PartOrder order)
    : k_(k), bits_(parts[0].view.bits), group_size_(parts[0].view.group_size) {
  code_bits_ = CodeBits(bits_);
  scale_type_ = parts[0].view.scales.type;
  const int64_t groups = k_ / group_size_;
  const int symmetric_zero = 1 << (bits_ - 1);
  std::atomic<bool> symmetric = true;
  for (const QuantizedRows& part : parts) {
    n_ += part.rows;
    if (part.view.scales.type != scale_type_ || part.view.biases.type != scale_type_) scale_type_ = DType::kFloat32;
    threads.ParallelFor(static_cast<size_t>(part.rows), 256, [&](size_t begin, size_t end) {
      for (size_t row = begin; row < end && symmetric; ++row) {
        if (!IsSymmetric(part.view, static_cast<int64_t>(row), groups, symmetric_zero)) symmetric = false;
      }
    });
  }
  zero_ = symmetric ? symmetric_zero : 0;
  const int64_t blocks = (n_ + kPackedBlock - 1) / kPackedBlock;
  code_bytes_ = static_cast<size_t>(blocks * kPackedBlock * k_ * code_bits_ / 8);
  scale_bytes_ = static_cast<size_t>(blocks * kPackedBlock * groups) * SizeOf(scale_type_);
  codes_ = arena.Allocate(code_bytes_);
  scales_ = arena.Allocate(scale_bytes_);
  if (!symmetric) biases_ = arena.Allocate(scale_bytes_);
  threads.ParallelFor(static_cast<size_t>(blocks), 4, [&](size_t begin, size_t end) {
    for (size_t block = begin; block < end; ++block) PackBlock(parts, order, static_cast<int64_t>(block));
  });
}

void PackedWeights::PackBlock(std::span<const QuantizedRows> parts, PartOrder order, int64_t block) {
  Place places[kPackedBlock];
  const auto count = static_cast<int64_t>(parts.size());
  for (int64_t i = 0; i < kPackedBlock; ++i) {
    places[i] = order == PartOrder::kSequence
                    ? Find(parts, block * kPackedBlock + i)
                    : Place{&parts[static_cast<size_t>(block % count)], block / count * kPackedBlock + i};
  }
  uint8_t* tile = codes_.get() + block * kPackedBlock * k_ * code_bits_ / 8;
  for (int64_t i = 0; i < kPackedBlock; ++i) PackCodesOf(bits_)(places[i], i, k_, tile);
  const int64_t groups = k_ / group_size_;
  const int64_t factor_bytes = kPackedBlock * groups * static_cast<int64_t>(SizeOf(scale_type_));
  PackFactors(places, &QuantizedView::scales, groups, scale_type_, scales_.get() + block * factor_bytes);
  if (biases_ == nullptr) return;
  PackFactors(places, &QuantizedView::biases, groups, scale_type_, biases_.get() + block * factor_bytes);
}

}  // namespace offgraph::kernels
