// The segments of a file, checked against its bounds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "offgraph/pte/file_layout.h"

namespace executorch_flatbuffer {
struct Program;
}

namespace offgraph::pte {

class Segments {
 public:
  // Throws Error(kBadFile) for a segment that does not lie in the file.
  Segments(const executorch_flatbuffer::Program& program, const FileLayout& layout, const std::string& name);

  size_t count() const { return segments_.size(); }
  // Throws Error(kBadFile) that names `part` (who asks) where there is no such segment.
  std::span<const std::byte> At(uint64_t index, const std::string& part) const;

 private:
  std::string name_;
  std::vector<std::span<const std::byte>> segments_;
};

}  // namespace offgraph::pte
