#include "offgraph/pte/file_layout.h"

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "offgraph/pte/bad_file.h"

namespace offgraph::pte {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are read as they lie in the file");

constexpr std::string_view kIdentifier = "ET12";
constexpr std::string_view kHeaderMagic = "eh00";
constexpr size_t kIdentifierOffset = 4;
constexpr size_t kHeaderOffset = 8;
constexpr uint32_t kShortHeader = 24;  // without the size of the segments
constexpr uint32_t kFullHeader = 32;
// Offsets in a FlatBuffer are 32-bit, and its verifier refuses 2 GiB and more.
constexpr uint64_t kLargestFlatBuffer = (uint64_t{1} << 31) - 2;

struct Magic {
  size_t offset;
  std::string_view bytes;
  std::string_view kind;
};
using namespace std::string_view_literals;
constexpr std::array kMagics = {
    Magic{0, "GGUF"sv, "a GGUF model (llama.cpp)"sv},
    Magic{0, "PK\3\4"sv, "a zip archive (a PyTorch .pt or .pt2 file is one)"sv},
    Magic{8, "{\""sv, "a safetensors file"sv},
    Magic{0,
          "\x7f"
          "ELF"sv,
          "a program or a shared library (ELF)"sv},
    Magic{4, "FT01"sv, "an ExecuTorch data file (.ptd), which holds tensors and no program"sv},
    Magic{4, "MLX0"sv, "the bare payload of an MLX delegate, without its ExecuTorch program"sv},
    Magic{4, "ET"sv, "an ExecuTorch program of another format version"sv},
    Magic{4, "TFL3"sv, "a TensorFlow Lite model"sv},
    Magic{0, "version https://git-lfs"sv, "a Git LFS pointer: `git lfs pull` fetches the file itself"sv},
    Magic{0, "\x1f\x8b"sv, "gzip-compressed data"sv},
    Magic{0, "<!"sv, "an HTML page (a download that went wrong?)"sv},
    Magic{0, "<html"sv, "an HTML page (a download that went wrong?)"sv},
    Magic{0, "{"sv, "a JSON text"sv},
};

bool HasBytes(std::span<const std::byte> file, size_t offset, std::string_view bytes) {
  return file.size() >= offset + bytes.size() && std::memcmp(file.data() + offset, bytes.data(), bytes.size()) == 0;
}

// REQUIRES: offset + sizeof(T) <= file.size().
template <typename T>
T ReadAt(std::span<const std::byte> file, size_t offset) {
  T value;
  std::memcpy(&value, file.data() + offset, sizeof(T));
  return value;
}

void CheckProgramSize(uint64_t size, const std::string& name) {
  if (size > kLargestFlatBuffer) {
    throw BadFile(name, "its program takes " + std::to_string(size) + " bytes, expected at most " +
                            std::to_string(kLargestFlatBuffer) + ": weights of this size belong into segments");
  }
}

FileLayout ReadExtendedHeader(std::span<const std::byte> file, const std::string& name) {
  if (file.size() < kHeaderOffset + kShortHeader) {
    throw BadFile(name, "cut short: the extended header ends at byte " + std::to_string(kHeaderOffset + kShortHeader) +
                            ", the file has " + std::to_string(file.size()));
  }
  const auto length = ReadAt<uint32_t>(file, 12);
  if (length < kShortHeader || kHeaderOffset + uint64_t{length} > file.size()) {
    throw BadFile(name, "extended header: length " + std::to_string(length) + ", expected " +
                            std::to_string(kShortHeader) + " to " + std::to_string(file.size() - kHeaderOffset));
  }
  const auto program_size = ReadAt<uint64_t>(file, 16);
  const auto base = ReadAt<uint64_t>(file, 24);
  if (program_size < kHeaderOffset + uint64_t{length} || program_size > file.size()) {
    throw BadFile(name, "extended header: the program takes " + std::to_string(program_size) + " bytes, the file has " +
                            std::to_string(file.size()) + "; it is cut short or damaged");
  }
  CheckProgramSize(program_size, name);
  FileLayout layout{.program = file.first(program_size), .segments = {}};
  if (base == 0) return layout;
  if (base < program_size || base > file.size()) {
    throw BadFile(name, "extended header: segments begin at byte " + std::to_string(base) + ", expected " +
                            std::to_string(program_size) + " (the end of the program) to " +
                            std::to_string(file.size()) + " (the end of the file); it is cut short or damaged");
  }
  const uint64_t rest = file.size() - base;
  uint64_t segments_size = length >= kFullHeader ? ReadAt<uint64_t>(file, 32) : 0;
  if (segments_size == 0) segments_size = rest;
  if (segments_size > rest) {
    throw BadFile(name, "cut short: its segments take " + std::to_string(segments_size) + " bytes from byte " +
                            std::to_string(base) + " on, and " + std::to_string(rest) + " follow");
  }
  layout.segments = file.subspan(base, segments_size);
  return layout;
}

}  // namespace

std::string_view KindOfFile(std::span<const std::byte> file) {
  for (const Magic& magic : kMagics) {
    if (HasBytes(file, magic.offset, magic.bytes)) return magic.kind;
  }
  return {};
}

FileLayout ReadLayout(std::span<const std::byte> file, const std::string& name) {
  if (file.empty()) throw BadFile(name, "the file is empty, expected an ExecuTorch program (.pte)");
  if (!HasBytes(file, kIdentifierOffset, kIdentifier)) {
    const std::string_view kind = KindOfFile(file);
    throw BadFile(name, kind.empty() ? "not an ExecuTorch program (.pte): expected \"ET12\" at byte 4"
                                     : "not an ExecuTorch program (.pte) but " + std::string(kind));
  }
  if (HasBytes(file, kHeaderOffset, kHeaderMagic)) return ReadExtendedHeader(file, name);
  CheckProgramSize(file.size(), name);
  return {.program = file, .segments = {}};
}

}  // namespace offgraph::pte
