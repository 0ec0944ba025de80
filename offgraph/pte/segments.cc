#include "offgraph/pte/segments.h"

#include "offgraph/pte/bad_file.h"
#include "offgraph/pte/schema/program_generated.h"

namespace offgraph::pte {

Segments::Segments(const executorch_flatbuffer::Program& program, const FileLayout& layout, const std::string& name)
    : name_(name) {
  const auto* table = program.segments();
  if (table == nullptr) return;
  const uint64_t available = layout.segments.size();
  segments_.reserve(table->size());
  for (uint32_t i = 0; i < table->size(); ++i) {
    const uint64_t offset = table->Get(i)->offset();
    const uint64_t size = table->Get(i)->size();
    if (offset > available || size > available - offset) {
      throw BadFile(name, "segment " + std::to_string(i) + ": " + std::to_string(size) + " bytes at offset " +
                              std::to_string(offset) + ", but all segments together have " + std::to_string(available));
    }
    segments_.push_back(layout.segments.subspan(offset, size));
  }
}

std::span<const std::byte> Segments::At(uint64_t index, const std::string& part) const {
  if (index >= segments_.size()) {
    throw BadFile(
        name_, part + ": segment " + std::to_string(index) + ", but the file has " + std::to_string(segments_.size()));
  }
  return segments_[index];
}

}  // namespace offgraph::pte
