// Reads a delegate payload, bytes that nobody vouches for, into a Graph.
//
// A payload is a header of 24 bytes (4 zero bytes, "MLX0", the offset and the size of a data segment as two uint64,
// little endian), a FlatBuffer with root MLXGraph of ExecuTorch's backends/mlx/serialization/schema.fbs, and the data
// segment, which is empty: weights come by key from the container's named data.
//
// The ops' fields are decoded through the schema's own description (reflection), so that all ops are read by one piece
// of code, and a schema with more ops than this build handles still builds.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "offgraph/program/graph.h"

namespace offgraph::program {

// Decodes and checks what is local to one part: the FlatBuffer's own structure, slot numbers, chain numbers, element
// types, shapes. Time and memory are linear in the size of the payload.
// Throws Error(kBadFile), or Error(kUnsupported) for an op that the schema does not know; the message starts with
// `name`.
Graph ReadPayload(std::span<const std::byte> payload, const std::string& name);

// Every op of the schema that this was built with, in the schema's order: "NoopNode", "IdCopyNode", ...
std::vector<std::string> SchemaOps();

}  // namespace offgraph::program
