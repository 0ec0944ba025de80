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

// Bytes per second when all threads together read a buffer of `buffer_bytes`, rounded down to MiB but one at least,
// from end to end, again and again. What fits into caches is read faster, so the buffer is to be as large as what is
// read by that which the rate is a limit of. Takes about 0.1 s.
double MeasureReadRate(ThreadPool& threads, size_t buffer_bytes);

// Takes about a third of a second. Reads a buffer of `buffer_bytes` several times, and gives it back: make it larger
// than the caches, and not larger than what may be taken from the machine.
MachineLimits MeasureLimits(ThreadPool& threads, size_t buffer_bytes = size_t{128} << 20);

}  // namespace offgraph::kernels
