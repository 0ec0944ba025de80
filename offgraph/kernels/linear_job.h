// What linear.cc and the code compiled per instruction set share. Not for other files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "offgraph/kernels/linear.h"
#include "offgraph/kernels/quantized.h"

namespace offgraph::kernels {

// y = x w^T or y = x w; exactly one of `dense` and `quantized` is the weight.
struct LinearJob {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  MatrixView x;
  const MatrixView* dense = nullptr;
  const QuantizedView* quantized = nullptr;
  MutableMatrixView y;
  Epilogue epilogue;
  DType round = DType::kFloat32;  // see LinearPart
};

// Memory that a thread keeps from call to call. One buffer for each tag type; its content is lost at every Get.
template <class Tag>
class ThreadScratch {
 public:
  // At least `count` objects, aligned to a cache line, valid until the thread's next Get with this tag.
  template <class T>
  static T* Get(size_t count) {
    ThreadScratch& scratch = mine_;
    if (scratch.bytes_ < count * sizeof(T)) {
      scratch.memory_.reset(::operator new(count * sizeof(T), kAlignment));
      scratch.bytes_ = count * sizeof(T);
    }
    return static_cast<T*>(scratch.memory_.get());
  }

  ThreadScratch(const ThreadScratch&) = delete;
  ThreadScratch& operator=(const ThreadScratch&) = delete;

 private:
  static constexpr std::align_val_t kAlignment{64};

  struct Delete {
    void operator()(void* memory) const {
      // The analyzer loses sight of what a thread's object holds, and sees the memory freed twice.
      ::operator delete(memory, kAlignment);  // NOLINT(clang-analyzer-cplusplus.NewDelete)
    }
  };

  ThreadScratch() = default;

  static thread_local ThreadScratch mine_;

  std::unique_ptr<void, Delete> memory_;
  size_t bytes_ = 0;
};

template <class Tag>
thread_local ThreadScratch<Tag> ThreadScratch<Tag>::mine_;

}  // namespace offgraph::kernels
