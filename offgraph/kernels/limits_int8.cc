#include <cstdint>

#include "offgraph/kernels/amx.h"
#include "offgraph/kernels/limits_job.h"

#if defined(__x86_64__)
#include <hwy/base.h>

#include "offgraph/kernels/packed_intrinsics-inl.h"
#endif

namespace offgraph::kernels {
namespace {

// Independent sums, enough to hide the latency of two multipliers.
constexpr int kSums = 12;

int64_t SpinPortable(int64_t rounds) {
  constexpr int kLanes = 16;
  volatile int8_t source = 3;
  int8_t a[kLanes];
  for (int8_t& value : a) value = source;
  int32_t sums[kSums][kLanes] = {};
  for (int64_t round = 0; round < rounds; ++round) {
    for (auto& sum : sums) {
      for (int i = 0; i < kLanes; ++i) sum[i] += a[i] * static_cast<int8_t>(round);
    }
  }
  int32_t total = 0;
  for (auto& sum : sums) {
    for (const int32_t value : sum) total += value;
  }
  volatile int32_t sink = total;
  static_cast<void>(sink);
  return rounds * kSums * kLanes * 2;
}

}  // namespace

#if defined(__x86_64__)

// The sums are operands of their own products, so that the compiler computes all of them.
HWY_PUSH_ATTRIBUTES("avx2")
static int64_t SpinAvx2(int64_t rounds) {
  const __m256i ones = _mm256_set1_epi16(1);
  const __m256i a = _mm256_set1_epi8(1);
  __m256i sums[kSums];
  for (auto& sum : sums) sum = a;
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (auto& sum : sums) sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(a, sum), ones));
  }
  __m256i total = sums[0];
  for (const auto& sum : sums) total = _mm256_xor_si256(total, sum);
  volatile int sink = _mm256_extract_epi32(total, 0);
  static_cast<void>(sink);
  return rounds * kSums * 32 * 2;
}
HWY_POP_ATTRIBUTES

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw")
static int64_t SpinAvx512(int64_t rounds) {
  const __m512i ones = _mm512_set1_epi16(1);
  const __m512i a = _mm512_set1_epi8(1);
  __m512i sums[kSums];
  for (auto& sum : sums) sum = a;
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (auto& sum : sums) sum = _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_maddubs_epi16(a, sum), ones));
  }
  __m512i total = sums[0];
  for (const auto& sum : sums) total = _mm512_xor_si512(total, sum);
  volatile int sink = _mm_cvtsi128_si32(_mm512_castsi512_si128(total));
  static_cast<void>(sink);
  return rounds * kSums * 64 * 2;
}
HWY_POP_ATTRIBUTES

HWY_PUSH_ATTRIBUTES("avx512f,avx512vnni")
static int64_t SpinVnni(int64_t rounds) {
  const __m512i a = _mm512_set1_epi8(1);
  __m512i sums[kSums];
  for (auto& sum : sums) sum = a;
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (auto& sum : sums) sum = _mm512_dpbusd_epi32(sum, a, a);
  }
  __m512i total = sums[0];
  for (const auto& sum : sums) total = _mm512_xor_si512(total, sum);
  volatile int sink = _mm_cvtsi128_si32(_mm512_castsi512_si128(total));
  static_cast<void>(sink);
  return rounds * kSums * 64 * 2;
}
HWY_POP_ATTRIBUTES

HWY_PUSH_ATTRIBUTES("amx-tile,amx-int8")
static int64_t SpinAmx(int64_t rounds) {
  // Tiles 0 to 3 are sums, 4 and 5 left, 6 and 7 right operands.
  static constexpr TileConfig kConfig = {.row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                                         .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
  _tile_loadconfig(&kConfig);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int64_t round = 0; round < rounds; ++round) {
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  }
  _tile_release();
  return rounds * 4 * 16 * 16 * 64 * 2;
}
HWY_POP_ATTRIBUTES

int64_t SpinInt8(DotIsa isa, int64_t rounds) {
  switch (isa) {
    case DotIsa::kAvx2:
      return SpinAvx2(rounds);
    case DotIsa::kAvx512:
      return SpinAvx512(rounds);
    case DotIsa::kVnni:
      return SpinVnni(rounds);
    case DotIsa::kAmx:
      return SpinAmx(rounds);
    case DotIsa::kPortable:
      break;
  }
  return SpinPortable(rounds);
}

#else

int64_t SpinInt8(DotIsa /*isa*/, int64_t rounds) { return SpinPortable(rounds); }

#endif

}  // namespace offgraph::kernels
