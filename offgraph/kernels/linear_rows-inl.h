// Rows of dense and quantized matrices read as fp32, and rows of results written. Compiled once per instruction set:
// include it after foreach_target.h.
#if defined(OFFGRAPH_KERNELS_LINEAR_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OFFGRAPH_KERNELS_LINEAR_ROWS_INL_H_
#undef OFFGRAPH_KERNELS_LINEAR_ROWS_INL_H_
#else
#define OFFGRAPH_KERNELS_LINEAR_ROWS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "offgraph/kernels/dtype-inl.h"
#include "offgraph/kernels/linear.h"
#include "offgraph/kernels/quantized.h"

HWY_BEFORE_NAMESPACE();
namespace offgraph::kernels::HWY_NAMESPACE {

// out[j] = elements (row, begin + j) of `view` for j in [0, count).
inline void ReadRow(const MatrixView& view, int64_t row, int64_t begin, int64_t count, float* HWY_RESTRICT out) {
  WithType(view.type, [&](auto type) {
    constexpr DType kType = decltype(type)();
    constexpr auto kStep = static_cast<int64_t>(kLanes);
    const auto* p = static_cast<const uint8_t*>(view.data) +
                    (row * view.row_stride + begin * view.col_stride) * static_cast<int64_t>(SizeOf(kType));
    int64_t j = 0;
    if (view.col_stride == 1) {
      for (; j + kStep <= count; j += kStep) hn::StoreU(LoadF32<kType>(p, j), F32(), out + j);
    }
    for (; j < count; j += kStep) {
      const int64_t some = std::min(kStep, count - j);
      alignas(64) uint8_t elements[kLanes * SizeOf(kType)] = {};
      alignas(64) float values[kLanes];
      for (int64_t i = 0; i < some; ++i) {
        std::memcpy(elements + i * SizeOf(kType), p + (j + i) * view.col_stride * SizeOf(kType), SizeOf(kType));
      }
      hn::StoreU(LoadF32<kType>(elements, 0), F32(), values);
      std::copy_n(values, some, out + j);
    }
  });
}

// Elements (row, begin + j) of `y` = in[j], rounded to kRound and then to kType.
template <DType kType, DType kRound>
HWY_INLINE void WriteRow(const MutableMatrixView& y, int64_t row, int64_t begin, int64_t count,
                         const float* HWY_RESTRICT in) {
  constexpr auto kStep = static_cast<int64_t>(kLanes);
  auto* p = static_cast<uint8_t*>(y.data) + (row * y.row_stride + begin) * static_cast<int64_t>(SizeOf(kType));
  int64_t j = 0;
  for (; j + kStep <= count; j += kStep) StoreF32<kType>(Round<kRound>(hn::LoadU(F32(), in + j)), p, j);
  if (j < count) {
    alignas(64) float values[kLanes] = {};
    alignas(64) uint8_t elements[kLanes * SizeOf(kType)];
    std::copy_n(in + j, count - j, values);
    StoreF32<kType>(Round<kRound>(hn::LoadU(F32(), values)), elements, 0);
    std::memcpy(p + j * SizeOf(kType), elements, (count - j) * SizeOf(kType));
  }
}

// Sums of rows [row, row + rows), columns [begin, begin + count): sum (i, j) is sums[i * stride + j].
struct Sums {
  int64_t row = 0;
  int64_t rows = 1;
  int64_t begin = 0;
  int64_t count = 0;
  float* sums = nullptr;
  int64_t stride = 0;
};

// Applies the epilogue, rounds to `round` and stores the results. `addend` is a buffer of `count`; its content and the
// sums are lost.
inline void FinishRows(const Epilogue& e, DType round, const MutableMatrixView& y, const Sums& s,
                       float* HWY_RESTRICT addend) {
  for (int64_t i = 0; i < s.rows && (e.alpha != 1.0F || e.addend.data != nullptr); ++i) {
    float* HWY_RESTRICT sums = s.sums + i * s.stride;
    if (e.alpha != 1.0F) {
      for (int64_t j = 0; j < s.count; ++j) sums[j] *= e.alpha;
    }
    if (e.addend.data != nullptr) {
      ReadRow(e.addend, s.row + i, s.begin, s.count, addend);
      for (int64_t j = 0; j < s.count; ++j) sums[j] += e.beta * addend[j];
    }
  }
  WithType(y.type, [&](auto type) {
    WithType(round, [&](auto round_type) {
      for (int64_t i = 0; i < s.rows; ++i) {
        WriteRow<type(), round_type()>(y, s.row + i, s.begin, s.count, s.sums + i * s.stride);
      }
    });
  });
}

// 32 codes of kBits bits each, from kBits words.
template <int kBits>
HWY_INLINE void UnpackCodes(const uint32_t* HWY_RESTRICT words, uint8_t* HWY_RESTRICT codes) {
  constexpr uint64_t kMask = (1U << kBits) - 1;
  for (int i = 0; i < 32; ++i) {
    const int word = i * kBits / 32;
    const int shift = i * kBits % 32;
    const uint64_t window = words[word] | (shift + kBits > 32 ? static_cast<uint64_t>(words[word + 1]) << 32 : 0);
    codes[i] = static_cast<uint8_t>(window >> shift & kMask);
  }
}
#if HWY_TARGET != HWY_SCALAR
template <>
HWY_INLINE void UnpackCodes<4>(const uint32_t* HWY_RESTRICT words, uint8_t* HWY_RESTRICT codes) {
  const hn::FixedTag<uint8_t, 16> d;
  const hn::FixedTag<uint16_t, 8> d16;
  const auto packed = hn::LoadU(d, reinterpret_cast<const uint8_t*>(words));
  const auto nibble = hn::Set(d, 15);
  const auto low = hn::And(packed, nibble);
  const auto high = hn::And(hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(d16, packed))), nibble);
  hn::StoreU(hn::InterleaveLower(d, low, high), d, codes);
  hn::StoreU(hn::InterleaveUpper(d, low, high), d, codes + 16);
}
#endif
template <>
HWY_INLINE void UnpackCodes<8>(const uint32_t* HWY_RESTRICT words, uint8_t* HWY_RESTRICT codes) {
  std::memcpy(codes, words, 32);
}

// As ReadRow. REQUIRES: begin and count are multiples of 32.
template <int kBits>
HWY_NOINLINE void ReadQuantizedRow(const QuantizedView& view, int64_t row, int64_t begin, int64_t count,
                                   float* HWY_RESTRICT out) {
  constexpr int64_t kUnit = 32;
  constexpr int64_t kGroupsAtOnce = 64;
  const F32 d;
  const hn::Rebind<int32_t, F32> di32;
  const hn::Rebind<uint8_t, F32> du8;
  alignas(64) float scales[kGroupsAtOnce];
  alignas(64) float biases[kGroupsAtOnce];
  alignas(64) uint8_t codes[kUnit];
  const uint32_t* words = view.codes + row * view.code_stride;
  const int64_t end = begin + count;
  for (int64_t position = begin; position < end;) {
    const int64_t first = position / view.group_size;
    const int64_t last = std::min((end + view.group_size - 1) / view.group_size, first + kGroupsAtOnce);
    ReadRow(view.scales, row, first, last - first, scales);
    ReadRow(view.biases, row, first, last - first, biases);
    for (int64_t group = first; group < last; ++group) {
      const F32V scale = hn::Set(d, scales[group - first]);
      const F32V bias = hn::Set(d, biases[group - first]);
      const int64_t group_end = std::min((group + 1) * view.group_size, end);
      for (; position < group_end; position += kUnit) {
        UnpackCodes<kBits>(words + position / kUnit * kBits, codes);
        for (size_t j = 0; j < kUnit; j += kLanes) {
          const F32V code = hn::ConvertTo(d, hn::PromoteTo(di32, hn::LoadU(du8, codes + j)));
          hn::StoreU(hn::MulAdd(scale, code, bias), d, out + position - begin + j);
        }
      }
    }
  }
}

inline void ReadRow(const QuantizedView& view, int64_t row, int64_t begin, int64_t count, float* HWY_RESTRICT out) {
  switch (view.bits) {
    case 1:
      return ReadQuantizedRow<1>(view, row, begin, count, out);
    case 2:
      return ReadQuantizedRow<2>(view, row, begin, count, out);
    case 3:
      return ReadQuantizedRow<3>(view, row, begin, count, out);
    case 4:
      return ReadQuantizedRow<4>(view, row, begin, count, out);
    case 5:
      return ReadQuantizedRow<5>(view, row, begin, count, out);
    case 6:
      return ReadQuantizedRow<6>(view, row, begin, count, out);
    default:
      return ReadQuantizedRow<8>(view, row, begin, count, out);
  }
}

}  // namespace offgraph::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
