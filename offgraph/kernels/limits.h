// What this machine can do at most, measured: benchmarks print their figures as a share of it.
//
// Thread rule: one measurement at a time, with nothing else running, or the limits come out too low.
#pragma once

#include <cstddef>

#include "offgraph/kernels/thread_pool.h"

namespace offgraph::kernels {

struct MachineLimits {
  size_t threads = 0;           // those of the pool that measured
  double read_bytes_per_s = 0;  // reading memory from end to end, all threads together
  double int8_ops_per_s = 0;    // multiplications and additions of int8, in registers, by the best instruction here
  double fp32_flops_per_s = 0;  // fused multiply-adds, each two operations, in registers
};

// Takes about a third of a second. Reads a buffer of `buffer_bytes` several times, and gives it back: make it larger
// than the caches, and not larger than what may be taken from the machine.
MachineLimits MeasureLimits(ThreadPool& threads, size_t buffer_bytes = size_t{128} << 20);

}  // namespace offgraph::kernels
