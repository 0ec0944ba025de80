#include "tests/faults/failing_memory.h"

#include <link.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

#include "offgraph/bytes/mlx_allocator.h"

namespace offgraph::testing {
namespace {

// Allocations until the one that fails; at or below 0: none does.
std::atomic<int64_t> mlx_left = 0;
std::atomic<int64_t> own_left = 0;

struct Range {
  uintptr_t begin = 0;
  uintptr_t end = 0;
};

// Where libmlx.so lies.
Range FindMlx() {
  Range range;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* result) {
        if (std::strstr(info->dlpi_name, "libmlx.so") == nullptr) return 0;
        for (size_t i = 0; i < info->dlpi_phnum; ++i) {
          if (info->dlpi_phdr[i].p_type != PT_LOAD) continue;
          auto& [begin, end] = *static_cast<Range*>(result);
          const uintptr_t from = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
          if (begin == 0) begin = from;
          end = from + info->dlpi_phdr[i].p_memsz;
        }
        return 1;
      },
      &range);
  return range;
}
const Range mlx_code = FindMlx();

bool Refuses(std::atomic<int64_t>& left) { return left.load() > 0 && --left == 0; }

void* Allocate(size_t size, size_t alignment, const void* caller) {
  const auto from = reinterpret_cast<uintptr_t>(caller);
  const bool of_mlx = from >= mlx_code.begin && from < mlx_code.end;
  if (!of_mlx && Refuses(own_left)) throw std::bad_alloc();
  void* memory = alignment == 0 ? std::malloc(size)
                                : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

FailingMemory::FailingMemory(Memory memory, int64_t n) : memory_(memory), n_(n) {
  bytes::SetAllocationProbe([](size_t) {
    if (Refuses(mlx_left)) throw std::bad_alloc();
  });
  (memory == Memory::kMlx ? mlx_left : own_left) = n;
}
FailingMemory::~FailingMemory() {
  mlx_left = 0;
  own_left = 0;
  bytes::SetAllocationProbe(nullptr);
}
int64_t FailingMemory::asked() const { return n_ - (memory_ == Memory::kMlx ? mlx_left : own_left); }

}  // namespace offgraph::testing

void* operator new(size_t size) { return offgraph::testing::Allocate(size, 0, __builtin_return_address(0)); }
void* operator new[](size_t size) { return offgraph::testing::Allocate(size, 0, __builtin_return_address(0)); }
void* operator new(size_t size, std::align_val_t alignment) {
  return offgraph::testing::Allocate(size, static_cast<size_t>(alignment), __builtin_return_address(0));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
