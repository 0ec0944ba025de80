// HostMemory: a range of addresses whose memory is taken from the system bit by bit, from the front.
//
// What was taken never moves, so growing copies nothing.
#pragma once

#include <cstddef>

namespace offgraph::bytes {

class HostMemory {
 public:
  HostMemory() = default;
  // Reserves addresses for `bytes`; no memory yet. Throws Error(kOutOfMemory).
  explicit HostMemory(size_t bytes);
  ~HostMemory();
  HostMemory(HostMemory&& other) noexcept;
  HostMemory& operator=(HostMemory&& other) noexcept;

  void* data() const { return data_; }
  // Bytes taken: whole pages.
  size_t size() const { return size_; }
  // What Grow(bytes) would make of size().
  static size_t RoundToPages(size_t bytes);

  // Makes [0, bytes) readable and writable. Throws Error(kOutOfMemory) where the system refuses; then nothing changed.
  // REQUIRES: bytes is within the reservation.
  void Grow(size_t bytes);
  // Gives all memory back; the addresses stay reserved.
  void Release();

 private:
  void* data_ = nullptr;
  size_t reserved_ = 0;
  size_t size_ = 0;
};

}  // namespace offgraph::bytes
