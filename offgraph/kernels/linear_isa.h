// The instruction sets that have an int8 dot product of their own here, beside what Highway chooses for all else.
#pragma once

#include <cstdint>
#include <vector>

namespace offgraph::kernels {

// From the slowest to the fastest.
enum class DotIsa : uint8_t {
  kPortable,  // plain C++
  kAvx2,      // 32 products an instruction, in 16-bit pairs
  kAvx512,    // 64 likewise (AVX-512 BW)
  kVnni,      // 64 products added to 32 bits in one instruction (AVX-512 VNNI)
  kAmx,       // tiles of 16 x 16 x 64 (AMX-INT8), beside VNNI for single rows
};

const char* DotIsaName(DotIsa isa);

// Whether the processor has it and the system lets this process use it. AMX is asked of the kernel at the first call,
// for the whole process.
bool DotIsaAvailable(DotIsa isa);

// Those that are available, from the slowest to the fastest; never empty.
const std::vector<DotIsa>& AvailableDotIsas();

}  // namespace offgraph::kernels
