#include "offgraph/pte/file_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "offgraph/cache/error.h"

namespace offgraph::pte {
namespace {

using testing::HasSubstr;

std::span<const std::byte> Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

template <typename T>
void Append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// A file of `size` bytes that begins with an extended header of these fields.
std::string FileWithHeader(size_t size, uint32_t length, uint64_t program, uint64_t base, uint64_t segments) {
  std::string file;
  Append<uint32_t>(file, 60);
  file += "ET12eh00";
  Append(file, length);
  Append(file, program);
  Append(file, base);
  Append(file, segments);
  file.resize(size);
  return file;
}

std::string Refusal(const std::string& file) {
  try {
    ReadLayout(Bytes(file), "some.pte");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadFile);
    return error.what();
  }
  ADD_FAILURE() << "was accepted";
  return {};
}

TEST(FileLayout, TakesProgramAndSegmentsFromTheHeader) {
  const std::string file = FileWithHeader(1000, 32, 200, 256, 700);
  const FileLayout layout = ReadLayout(Bytes(file), "some.pte");
  EXPECT_EQ(layout.program.size(), 200);
  EXPECT_EQ(layout.program.data(), Bytes(file).data());
  EXPECT_EQ(layout.segments.size(), 700);
  EXPECT_EQ(layout.segments.data(), Bytes(file).data() + 256);
}

TEST(FileLayout, AShortHeaderLeavesTheRestOfTheFileToTheSegments) {
  EXPECT_EQ(ReadLayout(Bytes(FileWithHeader(1000, 24, 200, 256, 1)), "f").segments.size(), 744);
  EXPECT_EQ(ReadLayout(Bytes(FileWithHeader(1000, 32, 200, 256, 0)), "f").segments.size(), 744);
}

TEST(FileLayout, WithoutHeaderAllBytesAreTheProgram) {
  std::string file = FileWithHeader(1000, 32, 200, 256, 700);
  file[8] = 'x';
  const FileLayout layout = ReadLayout(Bytes(file), "some.pte");
  EXPECT_EQ(layout.program.size(), 1000);
  EXPECT_TRUE(layout.segments.empty());
}

TEST(FileLayout, HeadersThatPointOutOfTheFileAreRefused) {
  constexpr uint64_t kHuge = ~uint64_t{0};
  EXPECT_THAT(Refusal(FileWithHeader(1000, 23, 200, 256, 0)), HasSubstr("length 23, expected 24 to 992"));
  EXPECT_THAT(Refusal(FileWithHeader(1000, 993, 200, 256, 0)), HasSubstr("length 993"));
  EXPECT_THAT(Refusal(FileWithHeader(1000, 0xFFFFFFFF, 200, 256, 0)), HasSubstr("length 4294967295"));
  EXPECT_THAT(Refusal(FileWithHeader(1000, 32, 1001, 0, 0)), HasSubstr("takes 1001 bytes, the file has 1000"));
  EXPECT_THAT(Refusal(FileWithHeader(1000, 32, kHuge, 0, 0)), HasSubstr("the file has 1000"));
  EXPECT_THAT(Refusal(FileWithHeader(1000, 32, 39, 0, 0)), HasSubstr("takes 39 bytes"));
  EXPECT_THAT(Refusal(FileWithHeader(1000, 32, 200, 199, 0)), HasSubstr("begin at byte 199, expected 200"));
  EXPECT_THAT(Refusal(FileWithHeader(1000, 32, 200, 1001, 0)), HasSubstr("begin at byte 1001"));
  EXPECT_THAT(Refusal(FileWithHeader(1000, 32, 200, kHuge, 0)), HasSubstr("begin at byte"));
  EXPECT_THAT(Refusal(FileWithHeader(1000, 32, 200, 256, 745)),
              HasSubstr("745 bytes from byte 256 on, and 744 follow"));
  EXPECT_THAT(Refusal(FileWithHeader(1000, 32, 200, 256, kHuge)), HasSubstr("cut short"));
}

TEST(FileLayout, EveryShorterFileIsRefused) {
  const std::string file = FileWithHeader(956, 32, 200, 256, 700);
  for (size_t size = 0; size < file.size(); ++size) {
    // Cut inside "eh00" it looks like a file without a header, whose FlatBuffer is damaged.
    if (size < 8 || size >= 12) Refusal(file.substr(0, size));
  }
}

TEST(FileLayout, OtherKindsOfFilesAreNamed) {
  EXPECT_THAT(Refusal(""), HasSubstr("some.pte: the file is empty"));
  EXPECT_THAT(Refusal("GGUF\3\0\0\0"), HasSubstr("a GGUF model"));
  EXPECT_THAT(Refusal("PK\3\4 and so on"), HasSubstr("zip archive"));
  EXPECT_THAT(Refusal("\x7f"
                      "ELF\2\1"),
              HasSubstr("shared library"));
  EXPECT_THAT(Refusal(std::string("\x40\0\0\0\0\0\0\0{\"a\":", 13)), HasSubstr("safetensors"));
  EXPECT_THAT(Refusal(std::string("\x20\0\0\0MLX0", 8)), HasSubstr("payload of an MLX delegate"));
  EXPECT_THAT(Refusal(std::string("\x20\0\0\0FT01", 8)), HasSubstr(".ptd"));
  EXPECT_THAT(Refusal(std::string("\x20\0\0\0ET13", 8)), HasSubstr("another format version"));
  EXPECT_THAT(Refusal("version https://git-lfs.github.com/spec/v1"), HasSubstr("git lfs pull"));
  EXPECT_THAT(Refusal("<!DOCTYPE html>"), HasSubstr("HTML"));
  EXPECT_THAT(Refusal("{\"model\": 1}"), HasSubstr("JSON"));
  EXPECT_THAT(Refusal("ET1"), HasSubstr("expected \"ET12\" at byte 4"));
  EXPECT_THAT(Refusal("no magic at all"), HasSubstr("not an ExecuTorch program"));
}

}  // namespace
}  // namespace offgraph::pte
