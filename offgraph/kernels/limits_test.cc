#include "offgraph/kernels/limits.h"

#include <gtest/gtest.h>

#include "offgraph/kernels/limits_job.h"

namespace offgraph::kernels {
namespace {

TEST(LimitsTest, AreThoseOfAMachine) {
  ThreadPool threads(2);
  const MachineLimits limits = MeasureLimits(threads, size_t{4} << 20);
  EXPECT_EQ(limits.threads, threads.threads());
  // Bounds that no computer of this century misses, and none reaches yet: they catch a wrong unit or an empty loop.
  EXPECT_GT(limits.read_bytes_per_s, 1e8);
  EXPECT_LT(limits.read_bytes_per_s, 1e14);
  EXPECT_GT(limits.int8_ops_per_s, 1e8);
  EXPECT_LT(limits.int8_ops_per_s, 1e16);
  EXPECT_GT(limits.fp32_flops_per_s, 1e7);
  EXPECT_LT(limits.fp32_flops_per_s, 1e15);
}

TEST(LimitsTest, EveryInstructionSetCountsItsOperations) {
  for (const DotIsa isa : AvailableDotIsas()) {
    const int64_t one = SpinInt8(isa, 1);
    EXPECT_GT(one, 0) << DotIsaName(isa);
    EXPECT_EQ(SpinInt8(isa, 7), 7 * one) << DotIsaName(isa);
  }
}

}  // namespace
}  // namespace offgraph::kernels
