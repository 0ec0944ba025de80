#include "offgraph/kernels/weight_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace offgraph::kernels {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kAlignment = 64;

size_t RoundUp(size_t count, size_t unit) { return (count + unit - 1) / unit * unit; }

std::shared_ptr<uint8_t[]> MapPiece(size_t size) {
  const size_t mapped = size + kHugePage;  // room to begin on a huge page
  void* memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  auto* bytes = static_cast<uint8_t*>(memory);
  const size_t skip = RoundUp(reinterpret_cast<uintptr_t>(bytes), kHugePage) - reinterpret_cast<uintptr_t>(bytes);
#ifdef MADV_HUGEPAGE
  madvise(bytes + skip, size, MADV_HUGEPAGE);  // a wish
#endif
  return {bytes + skip, [memory, mapped](uint8_t* /*bytes*/) { munmap(memory, mapped); }};
}

}  // namespace

std::shared_ptr<uint8_t[]> WeightArena::Allocate(size_t count) {
  count = RoundUp(std::max<size_t>(count, 1), kAlignment);
  if (count > size_ - used_) {
    size_ = std::max(count, piece_size_);
    piece_ = MapPiece(size_);
    used_ = 0;
  }
  std::shared_ptr<uint8_t[]> result(piece_, piece_.get() + used_);
  used_ += count;
  return result;
}

}  // namespace offgraph::kernels
