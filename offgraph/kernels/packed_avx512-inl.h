// The class V of packed_kernel-inl.h for AVX-512, but for its dot product. Include it under the compiler target.
#pragma once

#include <cstring>

#include "offgraph/kernels/packed_intrinsics-inl.h"
#include "offgraph/kernels/packed_job.h"

namespace offgraph::kernels {
namespace {

struct Avx512Base {
  using Int = __m512i;
  using Float = __m512;
  using Bytes = __m512i;

  static Int Zero() { return _mm512_setzero_si512(); }
  static Float ZeroFloat() { return _mm512_setzero_ps(); }
  static Int SetInt(int32_t value) { return _mm512_set1_epi32(value); }
  static Float SetFloat(float value) { return _mm512_set1_ps(value); }
  static Bytes Load(const uint8_t* p) { return _mm512_loadu_si512(p); }
  template <int kBits>
  static Bytes Codes(Bytes bytes, int j) {
    if constexpr (kBits == 8) return bytes;
    return _mm512_and_si512(_mm512_srli_epi16(bytes, kBits * j), _mm512_set1_epi8((1 << kBits) - 1));
  }
  static __m512i Broadcast(const int8_t* x) {
    int32_t quad;
    std::memcpy(&quad, x, sizeof(quad));
    return _mm512_set1_epi32(quad);
  }
  static Int Combine(Int hi, Int lo) { return _mm512_add_epi32(_mm512_slli_epi32(hi, 4), lo); }
  static Float ToFloat(Int value) { return _mm512_cvtepi32_ps(value); }
  static Float MulAdd(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
  static Float LoadFloats(DType type, const uint8_t* p) {
    if (type == DType::kFloat32) return _mm512_loadu_ps(p);
    const __m256i narrow = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    if (type == DType::kFloat16) return _mm512_cvtph_ps(narrow);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
  }
  static void Store(float* p, Float value) { _mm512_storeu_ps(p, value); }
};

}  // namespace
}  // namespace offgraph::kernels
