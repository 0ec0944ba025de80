// NpyFile: a matrix of fp32 in NumPy's .npy format (version 1.0, NEP 1), written row by row.
#pragma once

#include <cstdint>
#include <fstream>
#include <span>
#include <string>

namespace offgraph::apps {

class NpyFile {
 public:
  // Creates the file, over one that is there. Throws Error(kIo) where it cannot be written, as the others do.
  NpyFile(std::string path, int64_t rows, int64_t columns);
  // A file that was not finished is removed; a device or a pipe stays.
  ~NpyFile();
  NpyFile(const NpyFile&) = delete;
  NpyFile& operator=(const NpyFile&) = delete;

  // REQUIRES: `columns` numbers; called `rows` times in all.
  void WriteRow(std::span<const float> row);
  void Finish();

 private:
  [[noreturn]] void Fail() const;

  std::string path_;
  std::ofstream stream_;
  bool finished_ = false;
};

}  // namespace offgraph::apps
