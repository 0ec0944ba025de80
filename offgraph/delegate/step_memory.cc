#include "offgraph/delegate/step_memory.h"

#include <atomic>
#include <string>

#include "offgraph/cache/error.h"

namespace offgraph::delegate {
namespace {

std::atomic<int64_t> limit = 0;

}  // namespace

void SetStepMemoryLimit(int64_t bytes) {
  if (bytes < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "a call's memory is limited to " + std::to_string(bytes) + " bytes; expected 0 (no limit) or more");
  }
  limit = bytes;
}

int64_t StepMemoryLimit() { return limit; }

}  // namespace offgraph::delegate
