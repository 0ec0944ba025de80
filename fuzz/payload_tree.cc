#include "fuzz/payload_tree.h"

#include <cstring>

#include "offgraph/program/schema/schema_bfbs_generated.h"
#include "offgraph/program/schema/schema_generated.h"

namespace offgraph::fuzz {
namespace {

constexpr size_t kHeader = 24;  // see offgraph/program/payload.h

}  // namespace

const TreeCodec& PayloadCodec() {
  static const TreeCodec codec(*reflection::GetSchema(mlx_delegate::MLXGraphBinarySchema::data()),
                               mlx_delegate::VerifyMLXGraphBuffer);
  return codec;
}

std::optional<Node> ReadPayloadTree(std::span<const uint8_t> payload) {
  if (payload.size() <= kHeader) return std::nullopt;
  return PayloadCodec().Read(payload.subspan(kHeader));
}

std::vector<uint8_t> WritePayloadTree(const Node& graph) {
  std::vector<uint8_t> payload = PayloadCodec().Write(graph);
  payload.insert(payload.begin(), kHeader, 0);
  const uint64_t end = payload.size();
  std::memcpy(payload.data() + 4, "MLX0", 4);
  std::memcpy(payload.data() + 8, &end, sizeof(end));
  return payload;
}

}  // namespace offgraph::fuzz
