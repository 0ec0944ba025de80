#if defined(__x86_64__)
#include <hwy/base.h>

#include <algorithm>
#include <cstring>

#include "offgraph/kernels/packed_intrinsics-inl.h"
#include "offgraph/kernels/packed_job.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")
#include "offgraph/kernels/packed_avx512-inl.h"
#include "offgraph/kernels/packed_kernel-inl.h"

namespace offgraph::kernels {
namespace {

struct Vnni : Avx512Base {
  template <int kBits>
  static Int Dot(Int sum, Bytes codes, const int8_t* x) {
    return _mm512_dpbusd_epi32(sum, codes, Broadcast(x));
  }
};

}  // namespace

void MultiplyVnni(const PackedJob& job, const PackedTask& task) { Multiply<Vnni>(job, task); }

}  // namespace offgraph::kernels
HWY_POP_ATTRIBUTES
#endif  // __x86_64__
