// BufferUndo: gives a program's mutable buffers back as they were where a step fails.
//
// A buffer of which a step writes slices, a cache inside the graph above all, is updated in place: MLX writes into an
// array's memory where nobody else holds the array. So nobody may hold it while the step is evaluated, and what makes
// the step undone is a copy of the slices that it will overwrite, taken before. Any other buffer that a step replaces
// is held as it is: MLX writes the new one to memory of its own.
//
// Thread rule: one thread at a time.
#pragma once

#include <mlx/array.h>

#include <cstddef>
#include <optional>
#include <vector>

namespace offgraph::program {

class BufferUndo {
 public:
  // The buffers before the step, evaluated. Holds them, so that nothing is updated in place.
  explicit BufferUndo(std::vector<mlx::core::array> before);
  ~BufferUndo();
  BufferUndo(const BufferUndo&) = delete;
  BufferUndo& operator=(const BufferUndo&) = delete;

  // `after`: what will be in the buffers' places, not evaluated. Where that is a chain of slice updates of the buffer,
  // copies the slices and lets the buffer go. Where it throws, nothing changed.
  void AllowUpdatesInPlace(const std::vector<mlx::core::array>& after);

  // Buffer `i` as it was before the step; `now` is what is in its place: what AllowUpdatesInPlace was told where that
  // was called, and else anything. REQUIRES: nothing of the step runs any more.
  mlx::core::array Restored(size_t i, const mlx::core::array& now) const noexcept;

 private:
  struct SavedSlice;
  struct Buffer;
  std::vector<Buffer> buffers_;
};

}  // namespace offgraph::program
