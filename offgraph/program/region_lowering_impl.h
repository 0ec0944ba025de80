// How a region's instructions become kernel calls: what the files of the lowering share. Not for other files.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "offgraph/program/region.h"
#include "offgraph/program/rewrite.h"

namespace offgraph::program {

// How a value's axes lie in the program's tensor. In the arena it is always [T, heads, dim].
enum class Layout : uint8_t {
  kRows,         // [1, T, dim], one head
  kTokensHeads,  // [1, T, heads, dim]
  kHeadsTokens,  // [1, heads, T, dim]
};

struct LoweredValue {
  bytes::RegionValue at;
  Layout layout = Layout::kRows;
  mlx::core::Dtype type = mlx::core::float32;
};

// Thrown inside these files only, where an instruction cannot be lowered.
struct NotLowered {
  std::string why;
};

// The kernels' name of a type; refuses one that is not floating.
inline kernels::DType RoundOf(mlx::core::Dtype type) {
  if (!bytes::IsRegionType(type)) throw NotLowered{"the type is not a floating one"};
  return bytes::ToKernelType(type);
}

// Of an op, or of what a GatedActivation names; refuses others.
kernels::Activation ActivationByName(std::string_view name);

// Lowers the instructions of one region, in order, for a step of some number of tokens. Throws NotLowered.
class Lowering {
 public:
  Lowering(const Graph& graph, const Frame& frame, int64_t tokens) : graph_(graph), frame_(frame), tokens_(tokens) {}

  // Takes the layers of `body` that are laid out already.
  void Take(const Chain& body) {
    Begin(body);
    if (frame_.packed == nullptr) return;
    for (const Instruction& instruction : body) packed_.layers.insert(frame_.packed->layers.extract(&instruction));
  }
  // Lays out the layers of `body`, and gives them away.
  PackedLayers LayOut(const Chain& body);

  void Lower(const Instruction& instruction);
  void SaveOutput(Tid out);
  std::unique_ptr<LoweredRegion> Finish();

 private:
  using Method = void (Lowering::*)(const Instruction&);
  struct Row {
    std::string_view op;
    Method method;
  };
  static const std::array<Row, 23> kRows;

  void Embedding(const Instruction& i);
  void QuantizedEmbedding(const Instruction& i);
  void Norm(const Instruction& i);
  void Linears(const Instruction& i);
  void Rotary(const Instruction& i);
  void Gate(const Instruction& i);
  void Activate(const Instruction& i);
  void Binary(const Instruction& i);
  void AsType(const Instruction& i);
  void Copy(const Instruction& i);
  void Reshape(const Instruction& i);
  void Transpose(const Instruction& i);
  void Slice(const Instruction& i);
  void Split(const Instruction& i);
  void Concatenate(const Instruction& i);
  void Attend(const Instruction& i);

  bool IsConstant(std::optional<Tid> tid) const { return tid && graph_.IsConstant(*tid); }
  const mlx::core::array& Constant(std::optional<Tid> tid) const {
    if (!IsConstant(tid)) throw NotLowered{"an operand is not a constant"};
    return frame_.Get(*tid);
  }
  // Null for a constant that was computed, or lies in memory of its own.
  const WeightBytes* InFile(Tid constant) const {
    if (frame_.weights == nullptr || constant.index >= frame_.weights->size()) return nullptr;
    // The slot may have been given another value since.
    const WeightBytes& in_file = (*frame_.weights)[constant.index];
    return in_file.bytes.data() == frame_.Get(constant).data<std::byte>() ? &in_file : nullptr;
  }
  const LoweredValue& In(const Instruction& i, std::string_view field) const {
    const std::optional<Tid> tid = TidOf(i, field);
    const auto found = tid ? values_.find(tid->index) : values_.end();
    if (found == values_.end()) throw NotLowered{"operand " + std::string(field) + " is not a value of the region"};
    return found->second;
  }
  void Out(const Instruction& i, LoweredValue value) { values_[TidOf(i, "out")->index] = value; }
  // The number of an input from outside, added at its first use.
  size_t Input(Tid tid) {
    const auto found = std::find(result_->inputs.begin(), result_->inputs.end(), tid);
    if (found != result_->inputs.end()) return static_cast<size_t>(found - result_->inputs.begin());
    result_->inputs.push_back(tid);
    return result_->inputs.size() - 1;
  }
  // What a result is rounded to that the program gives a type.
  kernels::DType ResultOf(mlx::core::Dtype type) const {
    const kernels::DType round = RoundOf(type);
    return fp32_results_ ? kernels::DType::kFloat32 : round;
  }
  size_t IndexInput(Tid tid, int64_t rows);
  bytes::RegionValue AngleTable(Tid tid, int64_t dim);
  LinearWeights WeightsOf(const Instruction& i, std::optional<int64_t> dim) const;
  void LayOutLayer(const Instruction& i, const LinearWeights& linear);
  void Begin(const Chain& body);
  const Instruction* GateOf(const Instruction& i, const LinearWeights& linear) const;
  TableMatrix TableOf(Tid constant) const;
  void Evict(const Instruction& i);
  void EvictNeighbours() const;
  int64_t Resolve(const IntOperand& operand);
  static int64_t RankOf(const LoweredValue& value) { return value.layout == Layout::kRows ? 3 : 4; }
  static void RequireLastAxis(const Instruction& i, const LoweredValue& value) {
    const std::optional<int64_t> axis = IntOf(i, "axis");
    if (axis != -1 && axis != RankOf(value) - 1) throw NotLowered{"the axis is not the last one"};
  }

  const Graph& graph_;
  const Frame& frame_;
  int64_t tokens_;
  bool fp32_results_ = false;
  bool fast_ = false;  // layers round their activations, so attention may round too
  bytes::RegionBuilder builder_;
  kernels::WeightArena arena_;  // of all layers
  PackedLayers packed_;
  // Gated activations that alone read the two results of a layer, by the layer.
  std::unordered_map<const Instruction*, const Instruction*> gates_;
  std::unordered_set<const Instruction*> done_;  // lowered together with an earlier instruction
  std::vector<const WeightBytes*> evicted_;
  std::unordered_map<uint32_t, LoweredValue> values_;
  std::unordered_map<uint32_t, bytes::RegionValue> angle_tables_;
  std::unique_ptr<LoweredRegion> result_ = std::make_unique<LoweredRegion>();
};

}  // namespace offgraph::program
