// Builds payloads for tests, valid and broken ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "offgraph/program/program.h"
#include "offgraph/program/schema/schema_generated.h"

namespace offgraph::program::testing {

namespace fbs = mlx_delegate;

struct Counts {
  uint32_t constants = 0;
  uint32_t inputs = 0;
  uint32_t outputs = 0;
  uint32_t buffers = 0;
  uint32_t temps = 0;
  uint32_t values = 0;
};

// A payload with what the builder finished as its graph.
inline std::vector<std::byte> WithHeader(const flatbuffers::FlatBufferBuilder& graph) {
  constexpr size_t kHeader = 24;
  std::vector<std::byte> payload(kHeader + graph.GetSize());
  std::memcpy(payload.data() + 4, "MLX0", 4);
  const uint64_t end = payload.size();
  std::memcpy(payload.data() + 8, &end, sizeof(end));
  std::memcpy(payload.data() + kHeader, graph.GetBufferPointer(), graph.GetSize());
  return payload;
}

class PayloadBuilder {
 public:
  explicit PayloadBuilder(const Counts& counts) : counts_(counts) {
    // What most tests want: every tensor that is no temporary is fp32 [2], constants are named w0, w1, ...
    const uint32_t declared = counts.constants + counts.inputs + counts.outputs + counts.buffers;
    for (uint32_t i = 0; i < declared; ++i) Declare(i, ScalarType::kFloat, {2});
    for (uint32_t i = 0; i < counts.inputs; ++i) inputs_.push_back(Slot(counts.constants + i));
    for (uint32_t i = 0; i < counts.outputs; ++i) outputs_.push_back(Slot(counts.constants + counts.inputs + i));
    for (uint32_t i = 0; i < counts.buffers; ++i) {
      buffers_.push_back(Slot(counts.constants + counts.inputs + counts.outputs + i));
    }
  }

  flatbuffers::FlatBufferBuilder& fbb() { return fbb_; }

  // A dimension of -1 is dynamic and unbounded.
  void Declare(uint32_t slot, ScalarType type, const std::vector<int32_t>& shape) {
    std::vector<flatbuffers::Offset<fbs::ShapeDim>> dims;
    dims.reserve(shape.size());
    for (int32_t dim : shape) dims.push_back(fbs::CreateShapeDim(fbb_, dim));
    metas_[slot] = fbs::CreateTensorMetaDirect(fbb_, &dims, static_cast<int8_t>(type));
  }

  // Appends an instruction; chains appear as they are named.
  template <typename Node>
  void Emit(size_t chain, fbs::OpNode op, flatbuffers::Offset<Node> node) {
    if (chains_.size() <= chain) chains_.resize(chain + 1);
    chains_[chain].push_back(fbs::CreateInstruction(fbb_, op, node.Union()));
  }
  void AddChain() { chains_.emplace_back(); }

  void Add(size_t chain, uint32_t a, uint32_t b, uint32_t out) {
    const fbs::Tid tids[] = {fbs::Tid(a), fbs::Tid(b), fbs::Tid(out)};
    Emit(chain, fbs::OpNode_AddNode, fbs::CreateAddNode(fbb_, &tids[0], &tids[1], &tids[2]));
  }
  void Copy(size_t chain, uint32_t x, uint32_t out) {
    const fbs::Tid tids[] = {fbs::Tid(x), fbs::Tid(out)};
    Emit(chain, fbs::OpNode_IdCopyNode, fbs::CreateIdCopyNode(fbb_, &tids[0], &tids[1]));
  }
  void If(size_t chain, flatbuffers::Offset<fbs::IntOrVid> cond, uint32_t then_chain, uint32_t else_chain) {
    Emit(chain, fbs::OpNode_IfNode, fbs::CreateIfNode(fbb_, cond, then_chain, else_chain));
  }
  void Item(size_t chain, uint32_t x, uint32_t value) {
    const fbs::Tid tid(x);
    const fbs::Vid vid(value);
    Emit(chain, fbs::OpNode_ItemIntNode, fbs::CreateItemIntNode(fbb_, &tid, &vid));
  }
  flatbuffers::Offset<fbs::IntOrVid> Literal(int64_t value) { return fbs::CreateIntOrVid(fbb_, value); }
  flatbuffers::Offset<fbs::IntOrVid> FromSlot(uint32_t value) {
    const fbs::Vid vid(value);
    return fbs::CreateIntOrVid(fbb_, 0, &vid, true);
  }

  void set_init_chain(int32_t chain) { init_chain_ = chain; }

  std::vector<std::byte> Finish() {
    std::vector<flatbuffers::Offset<fbs::InstructionChain>> chains;
    for (const auto& chain : chains_) chains.push_back(fbs::CreateInstructionChainDirect(fbb_, &chain));
    std::vector<flatbuffers::Offset<fbs::NamedSlot>> names;
    for (uint32_t i = 0; i < counts_.constants; ++i) {
      names.push_back(fbs::CreateNamedSlotDirect(fbb_, ("w" + std::to_string(i)).c_str(), Slot(i)));
    }
    std::vector<flatbuffers::Offset<fbs::TensorMeta>> metas;
    for (const auto& [slot, meta] : metas_) metas.push_back(meta);
    fbb_.Finish(fbs::CreateMLXGraphDirect(fbb_, "1", counts_.constants, counts_.inputs, counts_.outputs,
                                          counts_.buffers, counts_.temps, counts_.values, &chains, 0, init_chain_,
                                          &inputs_, &outputs_, &buffers_, &names, &metas));
    return WithHeader(fbb_);
  }

 private:
  flatbuffers::Offset<fbs::SlotVariant> Slot(uint32_t index) { return fbs::CreateSlotVariant(fbb_, index); }

  Counts counts_;
  flatbuffers::FlatBufferBuilder fbb_;
  int32_t init_chain_ = -1;
  std::vector<std::vector<flatbuffers::Offset<fbs::Instruction>>> chains_;
  std::map<uint32_t, flatbuffers::Offset<fbs::TensorMeta>> metas_;
  std::vector<flatbuffers::Offset<fbs::SlotVariant>> inputs_;
  std::vector<flatbuffers::Offset<fbs::SlotVariant>> outputs_;
  std::vector<flatbuffers::Offset<fbs::SlotVariant>> buffers_;
};

// A tensor that owns its numbers.
template <typename T>
HostTensor MakeTensor(ScalarType type, std::vector<int64_t> shape, std::vector<T> values) {
  auto owner = std::make_shared<std::vector<T>>(std::move(values));
  return {type, std::move(shape), std::shared_ptr<const void>(owner, owner->data())};
}
inline HostTensor Floats(std::vector<float> values) {
  const auto count = static_cast<int64_t>(values.size());
  return MakeTensor<float>(ScalarType::kFloat, {count}, std::move(values));
}

// Weights by key, in memory.
inline WeightSource Weights(std::map<std::string, std::vector<float>, std::less<>> tensors) {
  auto owner = std::make_shared<std::map<std::string, std::vector<float>, std::less<>>>(std::move(tensors));
  return [owner](std::string_view key) -> std::optional<WeightBytes> {
    const auto found = owner->find(key);
    if (found == owner->end()) return std::nullopt;
    return WeightBytes{std::as_bytes(std::span(found->second)), owner};
  };
}

// The program of a payload whose only weight is w0.
inline std::shared_ptr<const Program> Load(PayloadBuilder& builder) {
  return Program::Load(builder.Finish(), Weights({{"w0", {1, 2}}}), "test");
}

}  // namespace offgraph::program::testing
