#if defined(__x86_64__)
#include <hwy/base.h>

#include <algorithm>
#include <cstring>

#include "offgraph/kernels/packed_intrinsics-inl.h"
#include "offgraph/kernels/packed_job.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")
#include "offgraph/kernels/packed_avx512-inl.h"
#include "offgraph/kernels/packed_kernel-inl.h"

namespace offgraph::kernels {
namespace {

struct Avx512 : Avx512Base {
  template <int kBits>
  static Int Dot(Int sum, Bytes codes, const int8_t* x) {
    const __m512i quads = Broadcast(x);
    if constexpr (kBits < 8) {
      // At most 2 * 15 * 128: the pairs fit 16 bits.
      return _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_maddubs_epi16(codes, quads), _mm512_set1_epi16(1)));
    } else {
      // Two codes of 8 bits times int8 may not fit: even and odd columns apart, as 16-bit numbers.
      const __m512i even = _mm512_madd_epi16(_mm512_and_si512(codes, _mm512_set1_epi16(255)),
                                             _mm512_srai_epi16(_mm512_slli_epi16(quads, 8), 8));
      const __m512i odd = _mm512_madd_epi16(_mm512_srli_epi16(codes, 8), _mm512_srai_epi16(quads, 8));
      return _mm512_add_epi32(sum, _mm512_add_epi32(even, odd));
    }
  }
};

}  // namespace

void MultiplyAvx512(const PackedJob& job, const PackedTask& task) { Multiply<Avx512>(job, task); }

}  // namespace offgraph::kernels
HWY_POP_ATTRIBUTES
#endif  // __x86_64__
