// WeightArena: memory for weights that are made one after the other and live long.
//
// It comes in large pieces, on huge pages where the system has them: a product that reads every weight once per token
// then misses the TLB hundreds of times less, and taking the memory costs one page fault where it would be 512.
//
// Thread rule: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace offgraph::kernels {

class WeightArena {
 public:
  // `piece`: addresses that are taken at a time; memory comes as it is written. On average half a huge page of a piece
  // stays unused. 0: every allocation is a piece of its own.
  explicit WeightArena(size_t piece = size_t{128} << 20) : piece_size_(piece) {}

  // `count` bytes, aligned to 64, all of them zero. A piece lives as long as anything in it does, with the arena or
  // without. Throws std::bad_alloc.
  std::shared_ptr<uint8_t[]> Allocate(size_t count);

 private:
  size_t piece_size_;
  std::shared_ptr<uint8_t[]> piece_;  // the one that is being filled
  size_t size_ = 0;
  size_t used_ = 0;
};

}  // namespace offgraph::kernels
