// Element types that the kernels read and write.
#pragma once

#include <cstddef>
#include <cstdint>

namespace offgraph::kernels {

enum class DType : uint8_t { kFloat32, kFloat16, kBFloat16 };

constexpr size_t SizeOf(DType type) { return type == DType::kFloat32 ? 4 : 2; }

}  // namespace offgraph::kernels
