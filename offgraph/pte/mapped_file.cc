#include "offgraph/pte/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "offgraph/cache/error.h"

namespace offgraph::pte {
namespace {

Error IoError(const std::string& path, const char* what) {
  return {ErrorCode::kIo, path + ": " + what + ": " + std::generic_category().message(errno)};
}

}  // namespace

MappedFile::Descriptor::~Descriptor() {
  if (fd_ >= 0) close(fd_);
}

// O_NONBLOCK: opening a named pipe must not wait for its writer.
MappedFile::MappedFile(const std::string& path) : file_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (file_.get() < 0) throw IoError(path, "cannot be opened");
  struct stat status = {};
  if (fstat(file_.get(), &status) != 0) throw IoError(path, "its size cannot be read");
  if (!S_ISREG(status.st_mode)) {
    throw Error(ErrorCode::kIo, path + (S_ISDIR(status.st_mode) ? ": is a folder, expected a file"
                                                                : ": is a device or a pipe, expected a file"));
  }
  if (status.st_size == 0) return;
  const auto size = static_cast<size_t>(status.st_size);
  void* mapping = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file_.get(), 0);
  if (mapping == MAP_FAILED) throw IoError(path, "cannot be mapped into memory");
  bytes_ = {static_cast<const std::byte*>(mapping), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void MappedFile::Evict(std::span<const std::byte> part) const {
  if (part.empty()) return;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  // The mapping begins on a page, and nobody can have written to it: its pages equal the file's.
  const auto begin = static_cast<size_t>(part.data() - bytes_.data()) / page * page;
  const auto end = static_cast<size_t>(part.data() - bytes_.data()) + part.size();
  madvise(const_cast<std::byte*>(bytes_.data()) + begin, end - begin, MADV_DONTNEED);
}

void MappedFile::Read(std::span<const std::byte> part, std::byte* to) const {
  while (!part.empty()) {
    const ssize_t count = pread(file_.get(), to, part.size(), part.data() - bytes_.data());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    part = part.subspan(static_cast<size_t>(count));
    to += count;
  }
  std::memcpy(to, part.data(), part.size());  // what could not be read: as the mapping has it
}

}  // namespace offgraph::pte
