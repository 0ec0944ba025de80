// What the linear operations share: element types that have kernels, and refusals. Not for other files.
#pragma once

#include <mlx/array.h>

#include <sstream>
#include <string>

#include "offgraph/cache/error.h"
#include "offgraph/kernels/dtype.h"

namespace offgraph::bytes {

inline bool HasKernel(mlx::core::Dtype type) {
  return type == mlx::core::float32 || type == mlx::core::float16 || type == mlx::core::bfloat16;
}

// REQUIRES: HasKernel(type).
inline kernels::DType KernelType(mlx::core::Dtype type) {
  if (type == mlx::core::float16) return kernels::DType::kFloat16;
  return type == mlx::core::bfloat16 ? kernels::DType::kBFloat16 : kernels::DType::kFloat32;
}

inline std::string ShapeText(const mlx::core::array& a) {
  std::ostringstream text;
  text << '[';
  for (int i = 0; i < static_cast<int>(a.ndim()); ++i) text << (i == 0 ? "" : ", ") << a.shape(i);
  text << ']';
  return text.str();
}

[[noreturn]] inline void Refuse(const char* op, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, std::string("[") + op + "] " + what);
}

}  // namespace offgraph::bytes
