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

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace offgraph::pte
