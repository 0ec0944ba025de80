// An ExecuTorch program file in parts, for mutators.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "fuzz/flatbuffer_tree.h"

namespace offgraph::fuzz {

struct PteFile {
  Node program;
  // Of the extended header: bytes of the FlatBuffer, offset of the segments, bytes of the segments. Absent: no header.
  std::optional<std::array<uint64_t, 3>> numbers;
  bool keep_numbers = false;      // write them as they are; else those of the parts are written
  std::vector<uint8_t> segments;  // what follows the FlatBuffer
};

std::optional<PteFile> ReadPte(std::span<const uint8_t> bytes);
std::vector<uint8_t> WritePte(const PteFile& file);
// To memory of `max_size` bytes; returns how many were written, 0 where they do not fit.
size_t WritePte(const PteFile& file, uint8_t* to, size_t max_size);

// Changes a few tables and fields of the program (segments, offsets, indices of delegates and values), now and then
// a number of the header.
void MutatePte(PteFile* file, Random& random);
// Changes the first delegate's payload, where it is in a segment.
void MutatePayloadOf(PteFile* file, Random& random);
// Replaces a part of the program by one of `other`.
void SplicePte(PteFile* file, const PteFile& other, Random& random);

}  // namespace offgraph::fuzz
