// Rows of any element type read as fp32 and written from fp32. Compiled once per instruction set (Highway).
#if defined(OFFGRAPH_KERNELS_LINEAR_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OFFGRAPH_KERNELS_LINEAR_ROWS_INL_H_
#undef OFFGRAPH_KERNELS_LINEAR_ROWS_INL_H_
#else
#define OFFGRAPH_KERNELS_LINEAR_ROWS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "offgraph/kernels/linear.h"
#include "offgraph/kernels/quantized.h"

// The targets without instructions of their own: one lane, or loops over a few.
#undef OFFGRAPH_PORTABLE_TARGET
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
#define OFFGRAPH_PORTABLE_TARGET 1
#else
#define OFFGRAPH_PORTABLE_TARGET 0
#endif

HWY_BEFORE_NAMESPACE();
namespace offgraph::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::CappedTag<float, 16>;
using Float = hn::Vec<FloatTag>;

// Highway's portable fp16 conversions do not know infinity and NaN; these do.
inline float FloatFromHalf(uint16_t half) {
  // Multiplying by 2^112 moves the exponent's bias from 15 to 127 and makes subnormals right.
  float value = std::bit_cast<float>(static_cast<uint32_t>(half & 0x7FFF) << 13) * 0x1p112F;
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((half & 0x7C00) == 0x7C00) bits |= 0x7F800000;
  return std::bit_cast<float>(bits | static_cast<uint32_t>(half & 0x8000) << 16);
}

inline uint16_t HalfFromFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return sign | 0x7E00;   // NaN
  if (magnitude >= 0x477FF000) return sign | 0x7C00;  // 65520 and above round to infinity
  if (magnitude < 0x38800000) {
    // Below 2^-14: adding 0.5 lets the addition round at the place value of a subnormal, 2^-24.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(shifted) - 0x3F000000);
  }
  const uint32_t rounded = magnitude + 0xFFF + (magnitude >> 13 & 1) - (112U << 23);
  return sign | static_cast<uint16_t>(rounded >> 13);
}

template <class D>
HWY_INLINE hn::Vec<D> LoadAsFloat(D d, const float* p) {
  return hn::LoadU(d, p);
}
template <class D>
HWY_INLINE hn::Vec<D> LoadAsFloat(D d, const hwy::bfloat16_t* p) {
  return hn::PromoteTo(d, hn::LoadU(hn::Rebind<hwy::bfloat16_t, D>(), p));
}
template <class D>
HWY_INLINE hn::Vec<D> LoadAsFloat(D d, const hwy::float16_t* p) {
#if OFFGRAPH_PORTABLE_TARGET
  alignas(64) float lanes[hn::MaxLanes(d)];
  for (size_t i = 0; i < hn::Lanes(d); ++i) {
    uint16_t half;
    std::memcpy(&half, p + i, sizeof(half));
    lanes[i] = FloatFromHalf(half);
  }
  return hn::Load(d, lanes);
#else
  return hn::PromoteTo(d, hn::LoadU(hn::Rebind<hwy::float16_t, D>(), p));
#endif
}

template <class D>
HWY_INLINE void StoreFloat(D d, hn::Vec<D> v, float* p) {
  hn::StoreU(v, d, p);
}
// Highway's own demotion to bf16 cuts bits off; this rounds to nearest even and keeps NaN.
template <class D>
HWY_INLINE void StoreFloat(D d, hn::Vec<D> v, hwy::bfloat16_t* p) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFF)));
  const auto quiet_nan = hn::Or(bits, hn::Set(du, 0x00400000));
  const auto result = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), quiet_nan, rounded);
  hn::StoreU(hn::DemoteTo(hn::Rebind<hwy::bfloat16_t, D>(), hn::BitCast(d, result)), hn::Rebind<hwy::bfloat16_t, D>(),
             p);
}
template <class D>
HWY_INLINE void StoreFloat(D d, hn::Vec<D> v, hwy::float16_t* p) {
#if OFFGRAPH_PORTABLE_TARGET
  alignas(64) float lanes[hn::MaxLanes(d)];
  hn::Store(v, d, lanes);
  for (size_t i = 0; i < hn::Lanes(d); ++i) {
    const uint16_t half = HalfFromFloat(lanes[i]);
    std::memcpy(p + i, &half, sizeof(half));
  }
#else
  const hn::Rebind<hwy::float16_t, D> dh;
  hn::StoreU(hn::DemoteTo(dh, v), dh, p);
#endif
}

// Calls f(pointer to the view's element type).
template <class F>
HWY_INLINE void WithElements(const void* data, DType type, const F& f) {
  switch (type) {
    case DType::kFloat32:
      return f(static_cast<const float*>(data));
    case DType::kFloat16:
      return f(static_cast<const hwy::float16_t*>(data));
    case DType::kBFloat16:
      return f(static_cast<const hwy::bfloat16_t*>(data));
  }
}

// out[j] = elements (row, begin + j) of `view` for j in [0, count).
inline void ReadRow(const MatrixView& view, int64_t row, int64_t begin, int64_t count, float* HWY_RESTRICT out) {
  WithElements(view.data, view.type, [&](const auto* data) {
    const FloatTag d;
    const hn::CappedTag<float, 1> d1;
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    const auto* p = data + row * view.row_stride + begin * view.col_stride;
    int64_t j = 0;
    if (view.col_stride == 1) {
      for (; j + lanes <= count; j += lanes) hn::StoreU(LoadAsFloat(d, p + j), d, out + j);
    }
    for (; j < count; ++j) hn::StoreU(LoadAsFloat(d1, p + j * view.col_stride), d1, out + j);
  });
}

// Elements (row, begin + j) of `view` = in[j], rounded to its type.
inline void WriteRow(const MutableMatrixView& view, int64_t row, int64_t begin, int64_t count,
                     const float* HWY_RESTRICT in) {
  WithElements(view.data, view.type, [&](const auto* data) {
    using T = std::remove_cv_t<std::remove_pointer_t<decltype(data)>>;
    const FloatTag d;
    const hn::CappedTag<float, 1> d1;
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    T* p = static_cast<T*>(view.data) + row * view.row_stride + begin;
    int64_t j = 0;
    for (; j + lanes <= count; j += lanes) StoreFloat(d, hn::LoadU(d, in + j), p + j);
    for (; j < count; ++j) StoreFloat(d1, hn::LoadU(d1, in + j), p + j);
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
#if !OFFGRAPH_PORTABLE_TARGET
template <>
HWY_INLINE void UnpackCodes<4>(const uint32_t* HWY_RESTRICT words, uint8_t* HWY_RESTRICT codes) {
  const hn::FixedTag<uint8_t, 16> d;
  const auto packed = hn::LoadU(d, reinterpret_cast<const uint8_t*>(words));
  const auto low = hn::And(packed, hn::Set(d, 15));
  const auto high =
      hn::And(hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(hn::FixedTag<uint16_t, 8>(), packed))), hn::Set(d, 15));
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
  const FloatTag d;
  const hn::Rebind<int32_t, FloatTag> di32;
  const hn::Rebind<uint8_t, FloatTag> du8;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
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
      const Float scale = hn::Set(d, scales[group - first]);
      const Float bias = hn::Set(d, biases[group - first]);
      const int64_t group_end = std::min((group + 1) * view.group_size, end);
      for (; position < group_end; position += kUnit) {
        UnpackCodes<kBits>(words + position / kUnit * kBits, codes);
        for (int64_t j = 0; j < kUnit; j += lanes) {
          const Float code = hn::ConvertTo(d, hn::PromoteTo(di32, hn::LoadU(du8, codes + j)));
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

}  // namespace HWY_NAMESPACE
}  // namespace offgraph::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
