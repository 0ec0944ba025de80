#include "offgraph/bytes/host_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "offgraph/cache/error.h"

namespace offgraph::bytes {
namespace {

size_t PageSize() {
  static const auto size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

[[noreturn]] void Fail(const char* what, size_t bytes) {
  const std::string why = std::strerror(errno);
  throw Error(ErrorCode::kOutOfMemory, std::string("the system refused to ") + what + " " + std::to_string(bytes) +
                                           " bytes for the KV cache (" + why + "); a smaller capacity needs less");
}

}  // namespace

size_t HostMemory::RoundToPages(size_t bytes) { return (bytes + PageSize() - 1) / PageSize() * PageSize(); }

HostMemory::HostMemory(size_t bytes) : reserved_(RoundToPages(bytes)) {
  if (reserved_ == 0) return;
  void* data = mmap(nullptr, reserved_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) Fail("reserve addresses for", reserved_);
  data_ = data;
}

HostMemory::~HostMemory() {
  if (data_ != nullptr) munmap(data_, reserved_);
}

HostMemory::HostMemory(HostMemory&& other) noexcept { *this = std::move(other); }

HostMemory& HostMemory::operator=(HostMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(reserved_, other.reserved_);
  std::swap(size_, other.size_);
  return *this;
}

void HostMemory::Grow(size_t bytes) {
  const size_t wanted = RoundToPages(bytes);
  if (wanted <= size_) return;
  if (mprotect(data_, wanted, PROT_READ | PROT_WRITE) != 0) Fail("give", wanted - size_);
  size_ = wanted;
}

void HostMemory::Release() {
  if (size_ == 0) return;
  // A fresh mapping in place of the old one: the pages go back, and count no longer.
  void* data = mmap(data_, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (data == MAP_FAILED) Fail("take back", size_);
  size_ = 0;
}

}  // namespace offgraph::bytes
