#include "offgraph/pte/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "offgraph/cache/error.h"

namespace offgraph::pte {
namespace {

Error IoError(const std::string& path, const char* what) {
  return {ErrorCode::kIo, path + ": " + what + ": " + std::generic_category().message(errno)};
}

// Closes a descriptor at the end of a scope: a mapping does not need it.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  // O_NONBLOCK: opening a named pipe must not wait for its writer.
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) throw IoError(path, "cannot be opened");
  struct stat status = {};
  if (fstat(file.get(), &status) != 0) throw IoError(path, "its size cannot be read");
  if (!S_ISREG(status.st_mode)) {
    throw Error(ErrorCode::kIo, path + (S_ISDIR(status.st_mode) ? ": is a folder, expected a file"
                                                                : ": is a device or a pipe, expected a file"));
  }
  if (status.st_size == 0) return;
  const auto size = static_cast<size_t>(status.st_size);
  void* mapping = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
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

}  // namespace offgraph::pte
