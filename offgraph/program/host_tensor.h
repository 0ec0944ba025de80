// Tensors in host memory, as they go in and out of a program. No MLX here: llm/ and delegate/ speak this.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace offgraph::program {

// ExecuTorch's numbers of element types (those that the MLX schema uses).
enum class ScalarType : int8_t {
  kByte = 0,
  kChar = 1,
  kShort = 2,
  kInt = 3,
  kLong = 4,
  kHalf = 5,
  kFloat = 6,
  kDouble = 7,
  kBool = 11,
  kBFloat16 = 15,
  kUInt16 = 27,
  kUInt32 = 28,
  kUInt64 = 29,
};

// Name as people write it ("fp32", "int64"), or "type 42".
std::string Name(ScalarType type);
// Bytes of one element; 0 for a number that is not listed above.
int64_t SizeOf(ScalarType type);

// A contiguous, row-major tensor. `data` is shared, so that a result can outlive the step that made it.
struct HostTensor {
  ScalarType type = ScalarType::kFloat;
  std::vector<int64_t> shape;
  std::shared_ptr<const void> data;
};

}  // namespace offgraph::program
