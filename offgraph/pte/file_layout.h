// The outermost layer of a .pte file: which bytes are the FlatBuffer, and which are segments.
//
//   offset 0   uint32    offset of the FlatBuffer's root table
//          4   char[4]   "ET12"
//          8   char[4]   "eh00"; where it is something else, there is no extended header and no segment
//         12   uint32    length of the extended header, 24 or more
//         16   uint64    bytes of the FlatBuffer, counted from offset 0
//         24   uint64    offset of the first segment, 0 where there is none
//         32   uint64    bytes of all segments (a header of 32 bytes or more; else they go to the end of the file)
//
// Numbers are little-endian. ExecuTorch writes it in exir/_serialize/_program.py (_ExtendedHeader).
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace offgraph::pte {

struct FileLayout {
  std::span<const std::byte> program;   // the FlatBuffer, from offset 0
  std::span<const std::byte> segments;  // offsets of segments count from its start; empty where there are none
};

// Throws Error(kBadFile): an empty file, another kind of file (named where it is a known one), a header whose ranges
// do not lie in the file.
FileLayout ReadLayout(std::span<const std::byte> file, const std::string& name);

// What files that begin like this are, in words ("a GGUF model"); empty where it is not known.
std::string_view KindOfFile(std::span<const std::byte> file);

}  // namespace offgraph::pte
