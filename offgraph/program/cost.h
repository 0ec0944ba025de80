// What one token costs at least, whoever computes it: the yardstick that a measured speed is held against.
#pragma once

#include <cstdint>

#include "offgraph/program/program.h"

namespace offgraph::program {

struct StepCost {
  // Constants that a step reads in full. Tables that rows are looked up in (embeddings) do not count, unless a product
  // uses them as well. Where only some of a program's matrices are used per token (experts), this is an upper bound.
  int64_t weight_bytes = 0;
  // Multiplications and additions of one token with the matrices among them.
  int64_t matrix_ops = 0;
  // Most of matrix_ops are with quantized matrices.
  bool quantized = false;
};

StepCost CostOfStep(const Program& program);

}  // namespace offgraph::program
