#include "offgraph/kernels/amx.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace offgraph::kernels {
namespace {

#if defined(__x86_64__)
// Bits of leaf 7 (Intel SDM, CPUID): edx of subleaf 0, and eax of subleaf 1.
constexpr unsigned kBf16 = 1U << 22;
constexpr unsigned kTiles = 1U << 24;
constexpr unsigned kInt8 = 1U << 25;
constexpr unsigned kBf16Vectors = 1U << 5;

// The bits of tile registers, or none where Linux does not let this process have tile data.
unsigned Detect() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || (edx & kTiles) == 0) return 0;
  constexpr int64_t kRequestPermission = 0x1023;
  constexpr int64_t kTileData = 18;
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0) return 0;
  const unsigned bits = edx;
  if (__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) == 0) eax = 0;
  return (eax & kBf16Vectors) != 0 ? bits : bits & ~kBf16;
}

bool Has(unsigned bit) {
  static const unsigned bits = Detect();
  return (bits & bit) != 0;
}
#endif

}  // namespace

#if defined(__x86_64__)
bool AmxInt8Available() { return Has(kInt8); }
bool AmxBf16Available() { return Has(kBf16); }
#else
bool AmxInt8Available() { return false; }
bool AmxBf16Available() { return false; }
#endif

}  // namespace offgraph::kernels
