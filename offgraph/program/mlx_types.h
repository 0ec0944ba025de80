// Between ExecuTorch's element types and host tensors, and MLX arrays.
#pragma once

#include <mlx/array.h>

#include <cstdint>
#include <span>
#include <string>

#include "offgraph/program/host_tensor.h"

namespace offgraph::program {

// REQUIRES: SizeOf(type) != 0.
mlx::core::Dtype ToMlx(ScalarType type);
// Throws Error(kUnsupported) for complex numbers, which ExecuTorch's MLX schema does not have.
ScalarType FromMlx(mlx::core::Dtype type);

// "[1, 3, 64]"
std::string ShapeText(const mlx::core::Shape& shape);
std::string ShapeText(std::span<const int64_t> shape);

// Checks dimensions that come from a file or a caller: each in [0, 2^31), and the bytes of the whole within the
// address space. Throws Error(kInvalidArgument) that starts with `what`.
mlx::core::Shape ToShape(std::span<const int64_t> shape, int64_t item_size, const std::string& what);

// An array with the values of `tensor`, in memory of MLX's own. REQUIRES: the shape fits the memory behind `data`.
mlx::core::array FromHost(const HostTensor& tensor);
// An array that lies where `tensor` lies, and keeps it alive. MLX never writes to it. Where the default device is no
// CPU it is a copy. REQUIRES: as FromHost; the data are aligned to their elements.
mlx::core::array Borrow(const HostTensor& tensor);

// The same memory as a HostTensor, which keeps the array alive. REQUIRES: evaluated, row-contiguous.
HostTensor ToHost(const mlx::core::array& array);

// Throws Error(kOutOfMemory) where an array of this many bytes cannot be: it is larger than the machine's memory. MLX
// does not check whether it got the memory that it asked for.
void CheckFitsMachine(int64_t bytes, const std::string& what);

// A zeroed array that owns its memory, so that updates may happen in place.
mlx::core::array Zeros(const mlx::core::Shape& shape, mlx::core::Dtype type);

}  // namespace offgraph::program
