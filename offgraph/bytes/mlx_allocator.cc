#include "offgraph/bytes/mlx_allocator.h"

#include <dlfcn.h>
#include <mlx/allocator.h>

#include <atomic>
#include <new>

#include "offgraph/cache/error.h"

namespace offgraph::bytes {
namespace {

using mlx::core::allocator::Allocator;
using mlx::core::allocator::Buffer;

std::atomic<void (*)(size_t)> allocation_probe = nullptr;

class CheckedAllocator : public Allocator {
 public:
  explicit CheckedAllocator(Allocator& allocator) : allocator_(allocator) {}

  Buffer malloc(size_t size) override {
    if (auto* probe = allocation_probe.load(std::memory_order_relaxed)) probe(size);
    Buffer buffer = allocator_.malloc(size);
    if (size > 0 && buffer.ptr() == nullptr) throw std::bad_alloc();
    return buffer;
  }
  void free(Buffer buffer) override { allocator_.free(buffer); }
  size_t size(Buffer buffer) const override { return allocator_.size(buffer); }
  Buffer make_buffer(void* memory, size_t size) override { return allocator_.make_buffer(memory, size); }
  void release(Buffer buffer) override { allocator_.release(buffer); }

 private:
  Allocator& allocator_;
};

// MLX's own definition of the function below: the next one in the order of look-up.
Allocator& MlxAllocator() {
  void* found = dlsym(RTLD_NEXT, "_ZN3mlx4core9allocator9allocatorEv");
  if (found == nullptr) throw Error(ErrorCode::kInternal, "MLX's allocator is not found; is MLX a shared library?");
  return reinterpret_cast<Allocator& (*)()>(found)();
}

}  // namespace

void SetAllocationProbe(void (*probe)(size_t bytes)) { allocation_probe = probe; }

}  // namespace offgraph::bytes

namespace mlx::core::allocator {

Allocator& allocator() {
  // Never destroyed: arrays with static storage may be freed after it.
  static auto& checked = *new offgraph::bytes::CheckedAllocator(offgraph::bytes::MlxAllocator());
  return checked;
}

}  // namespace mlx::core::allocator
