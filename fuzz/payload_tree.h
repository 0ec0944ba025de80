// A delegate payload as a tree, for mutators.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "fuzz/flatbuffer_tree.h"

namespace offgraph::fuzz {

const TreeCodec& PayloadCodec();

// The graph of a payload; absent where the bytes are none.
std::optional<Node> ReadPayloadTree(std::span<const uint8_t> payload);
// A payload, with its header.
std::vector<uint8_t> WritePayloadTree(const Node& graph);

}  // namespace offgraph::fuzz
