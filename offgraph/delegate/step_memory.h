// The limit on a call's memory, for all methods of the process.
//
// Thread rule: any thread.
#pragma once

#include <cstdint>

namespace offgraph::delegate {

// 0: no limit. Throws Error(kInvalidArgument) for a negative number.
void SetStepMemoryLimit(int64_t bytes);
int64_t StepMemoryLimit();

}  // namespace offgraph::delegate
