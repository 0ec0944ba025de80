#include "offgraph/program/buffer_undo.h"

#include <mlx/primitives.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "offgraph/bytes/evaluation.h"

namespace offgraph::program {
namespace {

namespace mx = mlx::core;

// Elements [start, stop) by stride of an array, by axis.
struct Slice {
  mx::Shape start;
  mx::Shape stop;
  mx::Shape stride;

  int64_t Count(size_t axis) const { return std::max(0, stop[axis] - start[axis] + stride[axis] - 1) / stride[axis]; }
  size_t Elements() const {
    size_t elements = 1;
    for (size_t axis = 0; axis < start.size(); ++axis) elements *= static_cast<size_t>(Count(axis));
    return elements;
  }
};

// Calls move(offset in bytes from the array's first element, bytes) for the pieces of a slice that lie together, in
// row-major order.
template <typename Move>
void ForEachPiece(const Slice& slice, const mx::array& array, size_t axis, int64_t offset, const Move& move) {
  const auto item = static_cast<int64_t>(array.itemsize());
  if (axis == slice.start.size()) {
    move(offset * item, static_cast<size_t>(item));
    return;
  }
  const int64_t stride = array.strides()[axis];
  offset += slice.start[axis] * stride;
  if (slice.Count(axis) == 0) return;
  if (axis + 1 == slice.start.size() && stride == 1 && slice.stride[axis] == 1) {
    move(offset * item, static_cast<size_t>(slice.Count(axis) * item));
    return;
  }
  for (int64_t i = 0; i < slice.Count(axis); ++i) {
    ForEachPiece(slice, array, axis + 1, offset + i * slice.stride[axis] * stride, move);
  }
}

// The slices of `before` that differ in `after`; absent where `after` is no chain of slice updates of it.
std::optional<std::vector<Slice>> UpdatedSlices(const mx::array& before, const mx::array& after) {
  std::vector<Slice> slices;
  for (const mx::array* array = &after; array->id() != before.id(); array = &array->inputs()[0]) {
    const bool computed = array->status() != mx::array::Status::unscheduled || !array->has_primitive();
    // An update that replaces elements; those that add to them have longer names.
    if (computed || std::string_view(array->primitive().name()) != "SliceUpdate") return std::nullopt;
    auto [reduce, start, stop, stride] = static_cast<const mx::SliceUpdate&>(array->primitive()).state();
    if (std::any_of(stride.begin(), stride.end(), [](int step) { return step <= 0; })) return std::nullopt;
    slices.push_back({std::move(start), std::move(stop), std::move(stride)});
  }
  return slices;
}

}  // namespace

struct BufferUndo::SavedSlice {
  Slice slice;
  std::vector<std::byte> bytes;  // row-major

  SavedSlice(Slice of, const mx::array& array) : slice(std::move(of)), bytes(slice.Elements() * array.itemsize()) {
    std::byte* to = bytes.data();
    const auto* from = array.data<std::byte>();
    ForEachPiece(slice, array, 0, 0, [&](int64_t offset, size_t size) {
      std::memcpy(to, from + offset, size);
      to += size;
    });
  }
  void WriteTo(mx::array array) const noexcept {
    const std::byte* from = bytes.data();
    auto* to = array.data<std::byte>();
    ForEachPiece(slice, array, 0, 0, [&](int64_t offset, size_t size) {
      std::memcpy(to + offset, from, size);
      from += size;
    });
  }
};

struct BufferUndo::Buffer {
  std::optional<mx::array> held;
  std::vector<SavedSlice> slices;  // where it is not held
};

BufferUndo::BufferUndo(std::vector<mx::array> before) {
  buffers_.reserve(before.size());
  for (mx::array& buffer : before) buffers_.push_back({std::move(buffer), {}});
}

BufferUndo::~BufferUndo() = default;

void BufferUndo::AllowUpdatesInPlace(const std::vector<mx::array>& after) {
  std::vector<std::vector<SavedSlice>> saved(buffers_.size());
  for (size_t i = 0; i < buffers_.size(); ++i) {
    std::optional<std::vector<Slice>> slices = UpdatedSlices(*buffers_[i].held, after[i]);
    if (!slices) continue;
    saved[i].reserve(slices->size());
    for (Slice& slice : *slices) saved[i].emplace_back(std::move(slice), *buffers_[i].held);
  }
  for (size_t i = 0; i < buffers_.size(); ++i) {
    if (saved[i].empty()) continue;
    buffers_[i].slices = std::move(saved[i]);
    buffers_[i].held.reset();
  }
}

mx::array BufferUndo::Restored(size_t i, const mx::array& now) const noexcept {
  const Buffer& buffer = buffers_[i];
  if (buffer.held) return *buffer.held;
  mx::array array = bytes::NewestComputed(now, static_cast<int64_t>(buffer.slices.size()));
  // MLX writes in place only where memory is its own; other memory may not even be writable.
  if (!array.data_shared_ptr()->is_owned()) return array;
  for (const SavedSlice& slice : buffer.slices) slice.WriteTo(array);
  return array;
}

}  // namespace offgraph::program
