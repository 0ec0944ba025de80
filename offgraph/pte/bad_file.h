// How this room reports a damaged file, and the limit on the work that a file may ask for.
#pragma once

#include <cstdint>
#include <string>

#include "offgraph/cache/error.h"

namespace offgraph::pte {

// Error(kBadFile) with the message "FILE: WHAT".
inline Error BadFile(const std::string& file, const std::string& what) {
  return {ErrorCode::kBadFile, file + ": " + what};
}

// Counts the elements that a reader visits. A FlatBuffer may point to one vector from many tables, so that a small
// file asks for endless work. An honest file shares next to nothing: each element that is visited has bytes of its
// own, and the count stays below the file's size.
class Budget {
 public:
  Budget(std::string file, uint64_t file_size)
      : file_(std::move(file)), limit_(kShare * file_size), left_(kShare * file_size) {}

  // Throws Error(kBadFile) where more was charged than the file's size justifies.
  void Charge(uint64_t elements) {
    if (elements > left_) {
      throw BadFile(file_, "damaged: reading it would visit more than " + std::to_string(limit_) +
                               " elements, which no file of this size holds; its tables point to the same data again "
                               "and again");
    }
    left_ -= elements;
  }

 private:
  static constexpr uint64_t kShare = 4;
  std::string file_;
  uint64_t limit_;
  uint64_t left_;
};

}  // namespace offgraph::pte
