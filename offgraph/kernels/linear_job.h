// What linear.cc and the code compiled per instruction set share. Not for other files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

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
};

// Memory that a thread keeps from call to call. One buffer for each tag type; its content is lost at every Get.
template <class Tag>
class ThreadScratch {
 public:
  // At least `count` objects, aligned to a cache line, valid until the thread's next Get with this tag.
  template <class T>
  static T* Get(size_t count) {
    thread_local ThreadScratch scratch;
    if (scratch.bytes_ < count * sizeof(T)) {
      scratch.bytes_ = 0;
      Memory larger(static_cast<std::byte*>(::operator new(count * sizeof(T), kAlignment)));
      scratch.memory_ = std::move(larger);
      scratch.bytes_ = count * sizeof(T);
    }
    return reinterpret_cast<T*>(scratch.memory_.get());
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Delete {
    void operator()(std::byte* p) const { ::operator delete(p, kAlignment); }
  };
  using Memory = std::unique_ptr<std::byte, Delete>;
  Memory memory_;
  size_t bytes_ = 0;
};

}  // namespace offgraph::kernels
