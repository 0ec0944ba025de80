// What the kernels of rows.h hand to the code of an instruction set.
#pragma once

#include "offgraph/kernels/rows.h"

namespace offgraph::kernels {

struct NormJob {
  Block x;
  Block out;
  const float* weight = nullptr;
  const float* bias = nullptr;
  float eps = 0;
  bool center = false;  // take the mean off first
  DType round = DType::kFloat32;
};
struct RotaryJob {
  Block x;
  Block out;
  const float* cos = nullptr;
  const float* sin = nullptr;
  DType round = DType::kFloat32;
};
struct GateJob {
  Block gate;
  Block up = {};
  Block out;
  Activation activation = Activation::kCopy;
  bool gated = false;  // multiply by `up`
  DType round = DType::kFloat32;
};
struct CombineJob {
  Block a = {};
  Block b;
  Block out;
  Arithmetic op = Arithmetic::kAdd;
  DType round = DType::kFloat32;
};
struct ConvertJob {
  Block block;
  DType type = DType::kFloat32;
  const void* from = nullptr;
  void* to = nullptr;
};
struct GroupJob {
  const float* codes = nullptr;
  float* out = nullptr;
  int64_t count = 0;
  float scale = 0;
  float bias = 0;
  DType round = DType::kFloat32;
};

inline float* HeadOf(const Block& block, int64_t row, int64_t head) {
  return block.data + row * block.row_stride + head * block.head_stride;
}

}  // namespace offgraph::kernels
