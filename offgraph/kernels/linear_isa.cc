#include "offgraph/kernels/linear_isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <array>

namespace offgraph::kernels {
namespace {

#if defined(__x86_64__)
// Bits of leaf 7, subleaf 0, edx (Intel SDM, CPUID).
constexpr unsigned kAmxTile = 1U << 24;
constexpr unsigned kAmxInt8 = 1U << 25;

bool AmxAvailable() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  if ((edx & kAmxTile) == 0 || (edx & kAmxInt8) == 0) return false;
  // The tile registers are 8 KiB of state that Linux saves only for processes that asked (x86/xstate.rst).
  constexpr int64_t kRequestPermission = 0x1023;
  constexpr int64_t kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool Detect(DotIsa isa) {
  switch (isa) {
    case DotIsa::kPortable:
      return true;
    case DotIsa::kAvx2:
      return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
    case DotIsa::kAvx512:
      return Detect(DotIsa::kAvx2) && __builtin_cpu_supports("avx512f") != 0 &&
             __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
             __builtin_cpu_supports("avx512dq") != 0;
    case DotIsa::kVnni:
      return Detect(DotIsa::kAvx512) && __builtin_cpu_supports("avx512vnni") != 0;
    case DotIsa::kAmx:
      return Detect(DotIsa::kVnni) && AmxAvailable();
  }
  return false;
}
#else
bool Detect(DotIsa isa) { return isa == DotIsa::kPortable; }
#endif

}  // namespace

const char* DotIsaName(DotIsa isa) {
  constexpr std::array<const char*, 5> kNames = {"portable", "avx2", "avx512", "vnni", "amx"};
  return kNames[static_cast<size_t>(isa)];
}

const std::vector<DotIsa>& AvailableDotIsas() {
  static const std::vector<DotIsa> available = [] {
    std::vector<DotIsa> found;
    for (const DotIsa isa : {DotIsa::kPortable, DotIsa::kAvx2, DotIsa::kAvx512, DotIsa::kVnni, DotIsa::kAmx}) {
      if (Detect(isa)) found.push_back(isa);
    }
    return found;
  }();
  return available;
}

bool DotIsaAvailable(DotIsa isa) {
  for (const DotIsa available : AvailableDotIsas()) {
    if (available == isa) return true;
  }
  return false;
}

}  // namespace offgraph::kernels
