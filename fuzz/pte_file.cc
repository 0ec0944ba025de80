#include "fuzz/pte_file.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "fuzz/payload_tree.h"
#include "offgraph/pte/schema/program_generated.h"
#include "program_bfbs_generated.h"

namespace offgraph::fuzz {
namespace {

// See offgraph/pte/file_layout.h.
constexpr size_t kHeaderAt = 8;
constexpr size_t kHeaderSize = 32;  // with padding
constexpr size_t kNumbersAt = 16;
constexpr char kIdentifier[] = "ET12";
constexpr char kHeaderMagic[] = {'e', 'h', '0', '0'};
constexpr std::string_view kPayloadMagic("\0\0\0\0MLX0", 8);

const TreeCodec& Codec() {
  static const TreeCodec codec(*reflection::GetSchema(executorch_flatbuffer::ProgramBinarySchema::data()),
                               executorch_flatbuffer::VerifyProgramBuffer);
  return codec;
}

Node& FieldOf(Node& table, std::string_view name) {
  for (const reflection::Field* field : *table.object->fields()) {
    if (field->name()->string_view() == name) return table.items[field->id()];
  }
  return table.items.front();
}

}  // namespace

std::optional<PteFile> ReadPte(std::span<const uint8_t> bytes) {
  if (bytes.size() < kHeaderAt + kHeaderSize) return std::nullopt;
  PteFile file;
  size_t end = bytes.size();
  if (std::memcmp(bytes.data() + kHeaderAt, kHeaderMagic, sizeof(kHeaderMagic)) == 0) {
    std::memcpy(file.numbers.emplace().data(), bytes.data() + kNumbersAt, sizeof(*file.numbers));
    end = std::min<uint64_t>((*file.numbers)[0], bytes.size());
  }
  std::optional<Node> program = Codec().Read(bytes.first(end));
  if (!program) return std::nullopt;
  file.program = *std::move(program);
  file.segments.assign(bytes.begin() + static_cast<ptrdiff_t>(end), bytes.end());
  return file;
}

std::vector<uint8_t> WritePte(const PteFile& file) {
  std::vector<uint8_t> bytes = Codec().Write(file.program, kIdentifier);
  if (file.numbers) {
    // The header lies between the root's offset, which counts from the file's start, and what it leads to.
    bytes.insert(bytes.begin() + kHeaderAt, kHeaderSize, 0);
    uint32_t root = 0;
    std::memcpy(&root, bytes.data(), sizeof(root));
    root += kHeaderSize;
    std::memcpy(bytes.data(), &root, sizeof(root));
    std::memcpy(bytes.data() + kHeaderAt, kHeaderMagic, sizeof(kHeaderMagic));
    bytes[kHeaderAt + sizeof(kHeaderMagic)] = kHeaderSize;
    std::array<uint64_t, 3> numbers = *file.numbers;
    if (!file.keep_numbers) numbers = {bytes.size(), bytes.size(), file.segments.size()};
    std::memcpy(bytes.data() + kNumbersAt, numbers.data(), sizeof(numbers));
  }
  bytes.insert(bytes.end(), file.segments.begin(), file.segments.end());
  return bytes;
}

void MutatePte(PteFile* file, Random& random) {
  const size_t changes = 1 + Below(4, random);
  for (size_t i = 0; i < changes; ++i) Codec().Mutate(&file->program, random);
  if (!OneIn(8, random)) return;
  if (!file->numbers) file->numbers.emplace();
  file->keep_numbers = true;
  (*file->numbers)[Below(3, random)] = OneIn(2, random) ? Below(2 * file->segments.size() + 1, random)
                                                        : static_cast<uint64_t>(InterestingInteger(random));
}

void MutatePayloadOf(PteFile* file, Random& random) {
  const auto found =
      std::search(file->segments.begin(), file->segments.end(), kPayloadMagic.begin(), kPayloadMagic.end());
  const auto begin = static_cast<size_t>(found - file->segments.begin());
  for (Node& segment : FieldOf(file->program, "segments").items) {
    Node& offset = FieldOf(segment, "offset");
    Node& size = FieldOf(segment, "size");
    if (static_cast<uint64_t>(offset.bits) != begin ||
        begin + static_cast<uint64_t>(size.bits) > file->segments.size()) {
      continue;
    }
    std::optional<Node> tree =
        ReadPayloadTree(std::span(file->segments).subspan(begin, static_cast<size_t>(size.bits)));
    if (!tree) return;
    const size_t changes = 1 + Below(4, random);
    for (size_t i = 0; i < changes; ++i) PayloadCodec().Mutate(&*tree, random);
    const std::vector<uint8_t> payload = WritePayloadTree(*tree);
    // It goes behind all others, where its size is free, and the old one is no longer found.
    file->segments[begin + kPayloadMagic.size() - 1] = 'X';
    file->segments.resize((file->segments.size() + 15) / 16 * 16);
    offset.bits = static_cast<int64_t>(file->segments.size());
    size.bits = static_cast<int64_t>(payload.size());
    offset.present = size.present = true;
    file->segments.insert(file->segments.end(), payload.begin(), payload.end());
    return;
  }
}

void SplicePte(PteFile* file, const PteFile& other, Random& random) {
  Codec().Splice(&file->program, other.program, random);
}

size_t WritePte(const PteFile& file, uint8_t* to, size_t max_size) {
  const std::vector<uint8_t> bytes = WritePte(file);
  if (bytes.size() > max_size) return 0;
  std::memcpy(to, bytes.data(), bytes.size());
  return bytes.size();
}

}  // namespace offgraph::fuzz
