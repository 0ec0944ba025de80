// What a rendering may still use (see RenderLimits in jinja.h). Whatever loops or allocates in proportion to a value
// pays here first, so that no template hangs or exhausts the memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "offgraph/cache/error.h"

namespace offgraph::llm::jinja {

class Budget {
 public:
  Budget(int64_t steps, int64_t bytes) : steps_left_(steps), bytes_left_(bytes) {}

  // `count` elements are about to be visited.
  void Steps(uint64_t count = 1) { Take(count, &steps_left_, "takes too many steps"); }
  // `count` bytes are about to be made or scanned.
  void Bytes(uint64_t count) { Take(count, &bytes_left_, "makes or scans too much text"); }

 private:
  static void Take(uint64_t count, int64_t* left, const char* what) {
    if (count > static_cast<uint64_t>(*left)) {
      throw Error(ErrorCode::kOutOfRange,
                  std::string("the template ") + what + "; if it is meant to, raise the limits of the rendering");
    }
    *left -= static_cast<int64_t>(count);
  }

  int64_t steps_left_;
  int64_t bytes_left_;
};

}  // namespace offgraph::llm::jinja
