#include "offgraph/apps/npy_file.h"

#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "offgraph/cache/error.h"

namespace offgraph::apps {
namespace {

static_assert(std::endian::native == std::endian::little, "the format's \"<f4\" is written as memory has it");

// Magic, version, length of the description, description. Padded so that the numbers start at a multiple of 64.
std::string Header(int64_t rows, int64_t columns) {
  constexpr size_t kPrefix = 10;
  constexpr size_t kAlignment = 64;
  std::string text = "{'descr': '<f4', 'fortran_order': False, 'shape': (" + std::to_string(rows) + ", " +
                     std::to_string(columns) + "), }";
  text.append(kAlignment - 1 - (kPrefix + text.size()) % kAlignment, ' ').push_back('\n');
  std::string header = "\x93NUMPY";
  for (const size_t byte : {size_t{1}, size_t{0}, text.size() % 256, text.size() / 256}) {
    header.push_back(static_cast<char>(byte));
  }
  return header + text;
}

}  // namespace

NpyFile::NpyFile(std::string path, int64_t rows, int64_t columns)
    : path_(std::move(path)), stream_(path_, std::ios::binary | std::ios::trunc) {
  if (!stream_) Fail();
  stream_ << Header(rows, columns);
}

NpyFile::~NpyFile() {
  if (finished_ || !stream_.is_open()) return;
  stream_.close();
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path_, ignored)) std::filesystem::remove(path_, ignored);
}

void NpyFile::WriteRow(std::span<const float> row) {
  stream_.write(reinterpret_cast<const char*>(row.data()), static_cast<std::streamsize>(row.size_bytes()));
  if (!stream_) Fail();
}

void NpyFile::Finish() {
  stream_.close();
  if (!stream_) Fail();
  finished_ = true;
}

void NpyFile::Fail() const { throw Error(ErrorCode::kIo, path_ + ": cannot be written: " + std::strerror(errno)); }

}  // namespace offgraph::apps
