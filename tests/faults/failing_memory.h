// Refuses memory, once, at a chosen allocation.
#pragma once

#include <cstdint>

namespace offgraph::testing {

enum class Memory : uint8_t {
  kMlx,  // what MLX's allocator gives: the memory of arrays
  kOwn   // what `new` gives to the project's own code, on any thread. MLX's own bookkeeping is left out: it cannot go
         // on without.
};

// From its making to its end, the `n`-th allocation (counted from 1) of this kind fails. One at a time.
class FailingMemory {
 public:
  FailingMemory(Memory memory, int64_t n);
  ~FailingMemory();
  FailingMemory(const FailingMemory&) = delete;
  FailingMemory& operator=(const FailingMemory&) = delete;

  // Allocations of this kind so far, the refused one included.
  int64_t asked() const;

 private:
  Memory memory_;
  int64_t n_;
};

}  // namespace offgraph::testing
