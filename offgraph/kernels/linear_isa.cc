#include "offgraph/kernels/linear_isa.h"

#include <array>
#include <cstddef>

#include "offgraph/kernels/amx.h"

namespace offgraph::kernels {
namespace {

#if defined(__x86_64__)
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
      return Detect(DotIsa::kVnni) && AmxInt8Available();
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
