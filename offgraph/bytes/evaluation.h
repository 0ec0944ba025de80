// What is left to do where an evaluation of MLX's threw.
#pragma once

#include <mlx/array.h>

#include <cstdint>

namespace offgraph::bytes {

// Returns when nothing of an evaluation that threw on this thread runs any more, and MLX can evaluate again. Until then
// its work may read and write memory.
void WaitForEvaluation() noexcept;

// After an evaluation that threw: `array`, or where it was not computed, the array that it is an update of (its first
// operand), and so on, at most `updates` times. What is returned can be used as if nothing had happened.
// REQUIRES: nothing of that evaluation runs any more.
mlx::core::array NewestComputed(const mlx::core::array& array, int64_t updates) noexcept;

}  // namespace offgraph::bytes
