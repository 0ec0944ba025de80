#if defined(__x86_64__)
#include <hwy/base.h>

#include <algorithm>
#include <cstring>

#include "offgraph/kernels/packed_intrinsics-inl.h"
#include "offgraph/kernels/packed_job.h"

HWY_PUSH_ATTRIBUTES("avx2,fma,f16c")
#include "offgraph/kernels/packed_kernel-inl.h"

namespace offgraph::kernels {
namespace {

// 16 lanes are two registers.
struct Avx2 {
  struct Int {
    __m256i half[2];
  };
  struct Float {
    __m256 half[2];
  };
  using Bytes = Int;

  static Int Zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  static Float ZeroFloat() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static Int SetInt(int32_t value) { return {_mm256_set1_epi32(value), _mm256_set1_epi32(value)}; }
  static Float SetFloat(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
  static Bytes Load(const uint8_t* p) {
    const auto* vectors = reinterpret_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(vectors), _mm256_loadu_si256(vectors + 1)};
  }
  template <int kBits>
  static Bytes Codes(const Bytes& bytes, int j) {
    if constexpr (kBits == 8) return bytes;
    const __m256i mask = _mm256_set1_epi8((1 << kBits) - 1);
    return {_mm256_and_si256(_mm256_srli_epi16(bytes.half[0], kBits * j), mask),
            _mm256_and_si256(_mm256_srli_epi16(bytes.half[1], kBits * j), mask)};
  }
  template <int kBits>
  static __m256i DotHalf(__m256i sum, __m256i codes, __m256i x) {
    if constexpr (kBits < 8) {
      // At most 2 * 15 * 128: the pairs fit 16 bits.
      const __m256i pairs = _mm256_maddubs_epi16(codes, x);
      return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    } else {
      // Two codes of 8 bits times int8 may not fit: even and odd columns apart, as 16-bit numbers.
      const __m256i even = _mm256_madd_epi16(_mm256_and_si256(codes, _mm256_set1_epi16(255)),
                                             _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8));
      const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(codes, 8), _mm256_srai_epi16(x, 8));
      return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
    }
  }
  template <int kBits>
  static Int Dot(const Int& sum, const Bytes& codes, const int8_t* x) {
    int32_t quad;
    std::memcpy(&quad, x, sizeof(quad));
    const __m256i quads = _mm256_set1_epi32(quad);
    return {DotHalf<kBits>(sum.half[0], codes.half[0], quads), DotHalf<kBits>(sum.half[1], codes.half[1], quads)};
  }
  static Int Combine(const Int& hi, const Int& lo) {
    return {_mm256_add_epi32(_mm256_slli_epi32(hi.half[0], 4), lo.half[0]),
            _mm256_add_epi32(_mm256_slli_epi32(hi.half[1], 4), lo.half[1])};
  }
  static Float ToFloat(const Int& value) {
    return {_mm256_cvtepi32_ps(value.half[0]), _mm256_cvtepi32_ps(value.half[1])};
  }
  static Float MulAdd(const Float& a, const Float& b, const Float& c) {
    return {_mm256_fmadd_ps(a.half[0], b.half[0], c.half[0]), _mm256_fmadd_ps(a.half[1], b.half[1], c.half[1])};
  }
  static __m256 LoadHalf(DType type, const uint8_t* p) {
    if (type == DType::kFloat32) return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
    const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    if (type == DType::kFloat16) return _mm256_cvtph_ps(narrow);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16));
  }
  static Float LoadFloats(DType type, const uint8_t* p) {
    return {LoadHalf(type, p), LoadHalf(type, p + 8 * SizeOf(type))};
  }
  static void Store(float* p, const Float& value) {
    _mm256_storeu_ps(p, value.half[0]);
    _mm256_storeu_ps(p + 8, value.half[1]);
  }
};

}  // namespace

void MultiplyAvx2(const PackedJob& job, const PackedTask& task) { Multiply<Avx2>(job, task); }

}  // namespace offgraph::kernels
HWY_POP_ATTRIBUTES
#endif  // __x86_64__
