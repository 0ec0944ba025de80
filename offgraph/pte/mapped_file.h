// A file mapped into memory, read-only and private.
//
// Thread rule: immutable after construction. The file must not be cut short while it is mapped: reading pages that
// are gone ends the process (SIGBUS), as with every mapping.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace offgraph::pte {

class MappedFile {
 public:
  // Throws Error(kIo) where `path` cannot be opened or is no regular file. An empty file gives empty bytes.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }

  // Gives back the memory of the pages that `part` lies on. The system's cache keeps them, and reading `part`, or what
  // lies beside it, maps them again. REQUIRES: `part` is of bytes().
  void Evict(std::span<const std::byte> part) const;
  // Copies `part` to `to` without mapping its pages. REQUIRES: `part` is of bytes().
  void Read(std::span<const std::byte> part, std::byte* to) const;

 private:
  // An open file, closed at the end.
  class Descriptor {
   public:
    explicit Descriptor(int fd) : fd_(fd) {}
    ~Descriptor();
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    int get() const { return fd_; }

   private:
    int fd_;
  };

  Descriptor file_;
  std::span<const std::byte> bytes_;
};

}  // namespace offgraph::pte
