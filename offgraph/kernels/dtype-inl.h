// Loads and stores of the storage types as fp32 vectors. Compiled once per instruction set: include it after
// foreach_target.h.
//
// Conversions are exact (to fp32) or round to nearest even (from fp32) on every instruction set; infinities stay, and
// a NaN stays a NaN.
#if defined(OFFGRAPH_KERNELS_DTYPE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OFFGRAPH_KERNELS_DTYPE_INL_H_
#undef OFFGRAPH_KERNELS_DTYPE_INL_H_
#else
#define OFFGRAPH_KERNELS_DTYPE_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "offgraph/kernels/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace offgraph::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Kernels count in chunks of 16 lanes on every instruction set, so that their order of summation is the same on all:
// a chunk is one vector of AVX-512, two of AVX2, four of 128 bits.
inline constexpr size_t kChunk = 16;

using F32 = hn::CappedTag<float, kChunk>;
using F32V = hn::Vec<F32>;
using U32 = hn::Rebind<uint32_t, F32>;
using U16 = hn::Rebind<uint16_t, F32>;
inline constexpr size_t kLanes = hn::MaxLanes(F32());
inline constexpr size_t kVecsPerChunk = kChunk / kLanes;

// Whether Highway's fp16 conversions are those of the hardware, which are exact for all values; its emulations on
// other instruction sets are not.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL || \
    (HWY_TARGET == HWY_NEON && HWY_ARCH_ARM_A64)
inline constexpr bool kHasF16 = true;
#else
inline constexpr bool kHasF16 = false;
#endif

HWY_INLINE F32V F32FromF16(hn::Vec<U16> half) {
  const F32 d;
  const U32 du;
  if constexpr (kHasF16) {
    return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, F32>(), half));
  } else {
    const auto bits = hn::PromoteTo(du, half);
    const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000)));
    const auto magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(du, 0x7FFF)));
    // The product moves the exponent's bias from 15 to 127, and makes subnormals normal.
    const auto finite = hn::BitCast(du, hn::Mul(hn::BitCast(d, magnitude), hn::Set(d, 0x1p112F)));
    const auto is_special = hn::Gt(magnitude, hn::Set(du, 0x0F7FFFFF));
    const auto special = hn::Or(finite, hn::Set(du, 0x7F800000));
    return hn::BitCast(d, hn::Or(sign, hn::IfThenElse(is_special, special, finite)));
  }
}

HWY_INLINE hn::Vec<U16> U16FromU32(hn::Vec<U32> bits) {
  return hn::DemoteTo(U16(), hn::BitCast(hn::RebindToSigned<U32>(), bits));
}

HWY_INLINE hn::Vec<U16> F16FromF32(F32V value) {
  const F32 d;
  const U32 du;
  if constexpr (kHasF16) {
    return hn::BitCast(U16(), hn::DemoteTo(hn::Rebind<hwy::float16_t, F32>(), value));
  } else {
    const auto bits = hn::BitCast(du, value);
    const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 0x8000));
    const auto magnitude = hn::And(bits, hn::Set(du, 0x7FFFFFFF));
    // Normal: half of the last place less one, plus one where the last bit kept is odd, carries exactly when it must.
    const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1));
    const auto normal =
        hn::ShiftRight<13>(hn::Add(hn::Add(magnitude, hn::Set(du, 0xC8000FFF)), odd));  // -112 << 23, + 0xFFF
    // Subnormal: adding 0.5 lets the adder round at the place where fp16 ends.
    const auto subnormal =
        hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5F))), hn::Set(du, 0x3F000000));
    const auto finite = hn::IfThenElse(hn::Gt(hn::Set(du, 0x38800000), magnitude), subnormal, normal);
    const auto infinite =
        hn::IfThenElse(hn::Gt(magnitude, hn::Set(du, 0x7F800000)), hn::Set(du, 0x7E00), hn::Set(du, 0x7C00));
    const auto half = hn::IfThenElse(hn::Gt(magnitude, hn::Set(du, 0x477FFFFF)), infinite, finite);
    return U16FromU32(hn::Or(sign, half));
  }
}

HWY_INLINE hn::Vec<U16> BF16FromF32(F32V value) {
  const U32 du;
  const auto bits = hn::BitCast(du, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(du, 0x7FFF)), odd);
  const auto quiet_nan = hn::Or(bits, hn::Set(du, 0x00400000));
  const auto is_nan = hn::Not(hn::Eq(value, value));
  return U16FromU32(hn::ShiftRight<16>(hn::IfThenElse(hn::RebindMask(du, is_nan), quiet_nan, rounded)));
}

// kLanes elements of type kType from element `i` of `data`.
template <DType kType>
HWY_INLINE F32V LoadF32(const void* data, size_t i) {
  const F32 d;
  if constexpr (kType == DType::kFloat32) {
    return hn::LoadU(d, static_cast<const float*>(data) + i);
  } else {
    const auto half = hn::LoadU(U16(), static_cast<const uint16_t*>(data) + i);
    if constexpr (kType == DType::kFloat16) {
      return F32FromF16(half);
    } else {
      return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(U32(), half)));
    }
  }
}

template <DType kType>
HWY_INLINE void StoreF32(F32V value, void* data, size_t i) {
  if constexpr (kType == DType::kFloat32) {
    hn::StoreU(value, F32(), static_cast<float*>(data) + i);
  } else if constexpr (kType == DType::kFloat16) {
    hn::StoreU(F16FromF32(value), U16(), static_cast<uint16_t*>(data) + i);
  } else {
    hn::StoreU(BF16FromF32(value), U16(), static_cast<uint16_t*>(data) + i);
  }
}

// A vector, rounded to what the type holds.
template <DType kRound>
HWY_INLINE F32V Round(F32V v) {
  const F32 d;
  if constexpr (kRound == DType::kFloat32) {
    return v;
  } else if constexpr (kRound == DType::kFloat16) {
    return F32FromF16(F16FromF32(v));
  } else {
    const U32 du;
    const auto bits = hn::BitCast(du, v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    const auto rounded = hn::And(hn::Add(hn::Add(bits, hn::Set(du, 0x7FFF)), odd), hn::Set(du, 0xFFFF0000));
    return hn::IfThenElse(hn::Eq(v, v), hn::BitCast(d, rounded), hn::BitCast(d, hn::Set(du, 0x7FC00000)));
  }
}

// A chunk as fp32 vectors.
struct Chunk {
  F32V v[kVecsPerChunk];
};

// Elements [i, i + 16) of a row.
template <DType kType>
HWY_INLINE Chunk LoadChunk(const void* row, size_t i) {
  Chunk chunk;
  for (size_t n = 0; n < kVecsPerChunk; ++n) chunk.v[n] = LoadF32<kType>(row, i + n * kLanes);
  return chunk;
}

// The same of a row of `count` elements: those past the end are not read and count as 0. REQUIRES: i < count.
template <DType kType>
HWY_INLINE Chunk LoadChunk(const void* row, size_t i, size_t count) {
  if (i + kChunk <= count) return LoadChunk<kType>(row, i);
  alignas(64) uint8_t padded[kChunk * SizeOf(kType)] = {};
  std::memcpy(padded, static_cast<const uint8_t*>(row) + i * SizeOf(kType), (count - i) * SizeOf(kType));
  return LoadChunk<kType>(padded, 0);
}

// Calls f(std::integral_constant<DType, type>) so that the type becomes a constant.
template <class F>
HWY_INLINE void WithType(DType type, const F& f) {
  switch (type) {
    case DType::kFloat32:
      return f(std::integral_constant<DType, DType::kFloat32>());
    case DType::kFloat16:
      return f(std::integral_constant<DType, DType::kFloat16>());
    case DType::kBFloat16:
      return f(std::integral_constant<DType, DType::kBFloat16>());
  }
}

// to[0, count) = from[0, padded count): fp32, zeros up to a multiple of a chunk.
template <DType kType>
HWY_INLINE void LoadRow(const void* from, size_t count, float* to) {
  for (size_t i = 0; i < count; i += kChunk) {
    const Chunk chunk = LoadChunk<kType>(from, i, count);
    for (size_t n = 0; n < kVecsPerChunk; ++n) hn::StoreU(chunk.v[n], F32(), to + i + n * kLanes);
  }
}

// to[0, count) = from[0, count), converted. REQUIRES: `from` is readable up to a multiple of a chunk.
template <DType kType>
HWY_INLINE void StoreRow(const float* from, size_t count, void* to) {
  const F32 d;
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) StoreF32<kType>(hn::LoadU(d, from + i), to, i);
  if (i < count) {
    alignas(64) uint8_t padded[kLanes * SizeOf(kType)];
    StoreF32<kType>(hn::LoadU(d, from + i), padded, 0);
    std::memcpy(static_cast<uint8_t*>(to) + i * SizeOf(kType), padded, (count - i) * SizeOf(kType));
  }
}

}  // namespace offgraph::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // OFFGRAPH_KERNELS_DTYPE_INL_H_
