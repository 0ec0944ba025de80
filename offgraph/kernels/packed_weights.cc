#include "offgraph/kernels/packed_weights.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <vector>

#include "offgraph/kernels/packed_job.h"

namespace offgraph::kernels {
namespace {

constexpr std::align_val_t kAlignment{64};

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

// 32 codes of `bits` bits, the stream that quantized.h describes.
void Unpack(const uint32_t* words, int bits, uint8_t* codes) {
  const uint32_t mask = (1U << bits) - 1;
  for (int i = 0; i < 32; ++i) {
    const int word = i * bits / 32;
    const int shift = i * bits % 32;
    uint64_t window = words[word];
    if (shift + bits > 32) window |= static_cast<uint64_t>(words[word + 1]) << 32;
    codes[i] = static_cast<uint8_t>(window >> shift & mask);
  }
}
void Unpack4(const uint32_t* words, uint8_t* codes) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(words);
  for (int64_t i = 0; i < 16; ++i) {
    codes[2 * i] = bytes[i] & 15;
    codes[2 * i + 1] = bytes[i] >> 4;
  }
}

// Whether the biases of a row are -zero * scale, to the bit.
bool IsSymmetric(const QuantizedView& view, int64_t row, int64_t groups, int zero) {
  for (int64_t group = 0; group < groups; ++group) {
    const float scale = ElementAsFloat(view.scales, row, group);
    if (ElementAsFloat(view.biases, row, group) != -static_cast<float>(zero) * scale) return false;
  }
  return true;
}

void CopyElement(const MatrixView& from, int64_t row, int64_t col, DType to_type, uint8_t* to) {
  if (from.type == to_type) {
    const auto* p = static_cast<const uint8_t*>(from.data) +
                    (row * from.row_stride + col * from.col_stride) * static_cast<int64_t>(SizeOf(to_type));
    std::memcpy(to, p, SizeOf(to_type));
  } else {
    const float value = ElementAsFloat(from, row, col);
    std::memcpy(to, &value, sizeof(value));
  }
}

}  // namespace

void PackedWeights::Free::operator()(uint8_t* p) const { ::operator delete(p, kAlignment); }

PackedWeights::Bytes PackedWeights::Allocate(size_t count) {
  return Bytes(static_cast<uint8_t*>(::operator new(std::max<size_t>(count, 1), kAlignment)));
}

PackedWeights::PackedWeights(std::span<const QuantizedRows> parts, int64_t k, ThreadPool& threads)
    : k_(k), bits_(parts[0].view.bits), group_size_(parts[0].view.group_size) {
  code_bits_ = bits_ <= 2 ? 2 : bits_ <= 4 ? 4 : 8;
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
  codes_ = Allocate(code_bytes_);
  scales_ = Allocate(scale_bytes_);
  if (!symmetric) biases_ = Allocate(scale_bytes_);
  threads.ParallelFor(static_cast<size_t>(blocks), 4, [&](size_t begin, size_t end) {
    for (size_t block = begin; block < end; ++block) PackBlock(parts, static_cast<int64_t>(block));
  });
}

void PackedWeights::PackBlock(std::span<const QuantizedRows> parts, int64_t block) {
  Place places[kPackedBlock];
  for (int64_t i = 0; i < kPackedBlock; ++i) places[i] = Find(parts, block * kPackedBlock + i);

  uint8_t* tile = codes_.get() + block * kPackedBlock * k_ * code_bits_ / 8;
  const int64_t vectors = code_bits_;  // of 64 bytes, in a tile
  for (int64_t k = 0; k < k_; k += kPackedTile, tile += vectors * 64) {
    std::memset(tile, 0, vectors * 64);
    for (int64_t i = 0; i < kPackedBlock; ++i) {
      const Place& place = places[i];
      if (place.part == nullptr) continue;
      const QuantizedView& view = place.part->view;
      const uint32_t* words = view.codes + place.row * view.code_stride + k / 32 * bits_;
      uint8_t codes[kPackedTile];
      if (bits_ == 4) {
        Unpack4(words, codes);
      } else {
        Unpack(words, bits_, codes);
      }
      // Four codes at once: none of them leaves its byte.
      for (int64_t quad = 0; quad < 8; ++quad) {
        uint8_t* out = tile + quad % vectors * 64 + i * 4;
        uint32_t bytes;
        uint32_t four;
        std::memcpy(&bytes, out, sizeof(bytes));
        std::memcpy(&four, codes + quad * 4, sizeof(four));
        bytes |= four << (quad / vectors * code_bits_);
        std::memcpy(out, &bytes, sizeof(bytes));
      }
    }
  }

  const int64_t groups = k_ / group_size_;
  const size_t size = SizeOf(scale_type_);
  for (int64_t group = 0; group < groups; ++group) {
    for (int64_t i = 0; i < kPackedBlock; ++i) {
      const size_t at = static_cast<size_t>((block * groups + group) * kPackedBlock + i) * size;
      const Place& place = places[i];
      if (place.part == nullptr) {
        std::memset(scales_.get() + at, 0, size);
        if (biases_) std::memset(biases_.get() + at, 0, size);
        continue;
      }
      const QuantizedView& view = place.part->view;
      CopyElement(view.scales, place.row, group, scale_type_, scales_.get() + at);
      if (biases_) CopyElement(view.biases, place.row, group, scale_type_, biases_.get() + at);
    }
  }
}

}  // namespace offgraph::kernels
