// Layers and tables: what a region reads of the program's constants.
#include <mlx/ops.h>

#include <utility>

#include "offgraph/program/mlx_types.h"
#include "offgraph/program/region_lowering_impl.h"

namespace offgraph::program {

namespace mx = mlx::core;
using bytes::RegionValue;
using kernels::Activation;

namespace {

// The columns of a quantized matrix [rows, columns]; refuses one that no kernel knows or whose parts do not fit.
int64_t QuantizedColumns(const mx::array& w, const mx::array& scales, const mx::array& biases, int bits, int group) {
  if (!kernels::IsQuantizedBits(bits) || group <= 0 || group % 32 != 0)
    throw NotLowered{"the quantization has no kernel"};
  for (const mx::array* array : {&w, &scales, &biases}) {
    if (array->ndim() != 2 || !array->flags().row_contiguous || array->shape(0) != w.shape(0)) {
      throw NotLowered{"the quantized weight is not a plain matrix"};
    }
  }
  const int64_t columns = int64_t{w.shape(1)} * 32 / bits;
  const bool fits = columns % group == 0 && columns * bits == int64_t{w.shape(1)} * 32 &&
                    scales.shape(1) == columns / group && biases.shape(1) == columns / group;
  if (w.dtype() != mx::uint32 || !fits) throw NotLowered{"codes, scales and biases do not fit each other"};
  RoundOf(scales.dtype());
  RoundOf(biases.dtype());
  return columns;
}

}  // namespace

void Lowering::Embedding(const Instruction& i) {
  const mx::array& table = Constant(TidOf(i, "x"));
  if (table.ndim() != 2 || !table.flags().row_contiguous) throw NotLowered{"the table is not a plain matrix"};
  RoundOf(table.dtype());
  const size_t input = IndexInput(*TidOf(i, "index"), table.shape(0));
  const RegionValue out = builder_.Embed(input, table.shape(1), DenseLookup(TableOf(*TidOf(i, "x"))));
  Out(i, {out, Layout::kRows, table.dtype()});
}

void Lowering::QuantizedEmbedding(const Instruction& i) {
  const mx::array w = Constant(TidOf(i, "w"));
  const mx::array scales = Constant(TidOf(i, "scales"));
  const mx::array biases = Constant(TidOf(i, "biases"));
  const auto bits = static_cast<int>(*IntOf(i, "bits"));
  const auto group = static_cast<int>(*IntOf(i, "group_size"));
  const int64_t width = QuantizedColumns(w, scales, biases, bits, group);
  const std::optional<int64_t> declared = IntOf(i, "dtype");
  const mx::Dtype type = declared ? ToMlx(static_cast<ScalarType>(*declared)) : scales.dtype();
  if (biases.dtype() != scales.dtype() || type != scales.dtype()) throw NotLowered{"the table's types differ"};
  const size_t input = IndexInput(*TidOf(i, "index"), w.shape(0));
  const RegionValue out = builder_.Embed(
      input, width,
      QuantizedLookup({TableOf(*TidOf(i, "w")), TableOf(*TidOf(i, "scales")), TableOf(*TidOf(i, "biases"))}, bits,
                      group, ResultOf(type)));
  Out(i, {out, Layout::kRows, type});
}

// The weights of a linear layer; refuses those that do not fit each other, or an input of `dim` columns.
LinearWeights Lowering::WeightsOf(const Instruction& i, std::optional<int64_t> dim) const {
  LinearWeights linear;
  const bool quantized = i.op == "QuantizedLinears";
  linear.bits = quantized ? static_cast<int>(*IntOf(i, "bits")) : 0;
  linear.group_size = quantized ? static_cast<int>(*IntOf(i, "group_size")) : 0;
  linear.fast = FlagOf(i, "fast");
  for (const auto& [field, list] :
       {std::pair("weights", &linear.weights), {"scales", &linear.scales}, {"biases", &linear.biases}}) {
    for (Tid tid : TidsOf(i, field)) list->push_back(Constant(tid));
  }
  for (size_t n = 0; n < linear.weights.size(); ++n) {
    const mx::array& w = linear.weights[n];
    if (quantized) {
      const int64_t columns = QuantizedColumns(w, linear.scales[n], linear.biases[n], linear.bits, linear.group_size);
      if (columns != dim.value_or(columns)) throw NotLowered{"a weight does not fit its input"};
      dim = columns;
      continue;
    }
    RoundOf(w.dtype());
    if (w.ndim() != 2 || w.shape(1) != dim || !w.flags().row_contiguous) {
      throw NotLowered{"a weight does not fit its input"};
    }
    if (linear.biases.empty()) continue;
    const mx::array& bias = linear.biases[n];
    RoundOf(bias.dtype());
    if (bias.ndim() != 1 || bias.shape(0) != w.shape(0)) throw NotLowered{"a bias does not fit its weight"};
  }
  return linear;
}

void Lowering::Linears(const Instruction& i) {
  const LoweredValue x = In(i, "x");
  if (x.layout != Layout::kRows) throw NotLowered{"the input has heads"};
  LinearWeights linear = WeightsOf(i, x.at.dim);
  mx::Dtype type = x.type;
  for (const std::vector<mx::array>* list : {&linear.weights, &linear.scales, &linear.biases}) {
    for (const mx::array& array : *list) {
      if (array.dtype() != mx::uint32) type = mx::promote_types(type, array.dtype());
    }
  }
  // Dense kernels rely on what the type says of x.
  const bool round_input = linear.bits == 0 && fp32_results_;
  const RegionValue input = round_input ? builder_.Activate(x.at, Activation::kCopy, RoundOf(x.type)) : x.at;
  linear.round = linear.bits == 0 ? RoundOf(type) : ResultOf(type);
  int64_t width = 0;
  for (const mx::array& w : linear.weights) width += w.shape(0);
  if (IsLaidOutAnew(linear)) LayOutLayer(i, linear);
  if (const Instruction* gate = GateOf(i, linear); gate != nullptr) {
    const Activation activation = ActivationByName(TextOf(*gate, "activation"));
    Out(*gate,
        {builder_.Linear(input, width / 2, PackedGatedLinear(packed_.layers[&i], activation)), Layout::kRows, type});
    done_.insert(gate);
    return;
  }
  const RegionValue all = builder_.Linear(
      input, width, IsLaidOutAnew(linear) ? PackedLinear(packed_.layers[&i], linear.round) : ExactLinear(linear));
  const std::vector<Tid> outs = TidsOf(i, "outs");
  int64_t column = 0;
  for (size_t n = 0; n < outs.size(); ++n) {
    const int64_t dim = linear.weights[n].shape(0);
    values_[outs[n].index] = {{all.buffer, column, 1, dim, dim}, Layout::kRows, type};
    column += dim;
  }
}

TableMatrix Lowering::TableOf(Tid constant) const {
  const WeightBytes* in_file = InFile(constant);
  return {Constant(constant), in_file != nullptr ? in_file->read : nullptr};
}

// What lies beside weights was read after they left memory, and the system maps pages with their neighbours.
void Lowering::EvictNeighbours() const {
  for (const WeightBytes* weight : evicted_) weight->evict(weight->bytes);
}

// Gives back the memory of a layer's weights, which will hardly be read again.
void Lowering::Evict(const Instruction& i) {
  for (const char* field : {"weights", "scales", "biases"}) {
    for (Tid tid : TidsOf(i, field)) {
      const WeightBytes* in_file = InFile(tid);
      if (in_file == nullptr || !in_file->evict) continue;
      in_file->evict(in_file->bytes);
      evicted_.push_back(in_file);
    }
  }
}

// What is to be known of a body before its layers are laid out.
void Lowering::Begin(const Chain& body) {
  const auto is_quantized = [](const Instruction& i) { return i.op == "QuantizedLinears"; };
  fp32_results_ = frame_.fp32_results && std::any_of(body.begin(), body.end(), is_quantized);
  fast_ =
      std::any_of(body.begin(), body.end(), [&](const Instruction& i) { return is_quantized(i) && FlagOf(i, "fast"); });
  const DefUse uses(graph_, body);
  for (size_t reader = 0; reader < body.size(); ++reader) {
    if (body[reader].op != "GatedActivation") continue;
    const std::optional<size_t> gate = uses.SoleProducer(*TidOf(body[reader], "gate"), reader);
    const std::optional<size_t> up = uses.SoleProducer(*TidOf(body[reader], "up"), reader);
    if (!gate || gate != up || !is_quantized(body[*gate])) continue;
    if (TidsOf(body[*gate], "outs").size() == 2) gates_[&body[*gate]] = &body[reader];
  }
}

// The gated activation that is computed together with the layer, or null.
const Instruction* Lowering::GateOf(const Instruction& i, const LinearWeights& linear) const {
  const auto found = gates_.find(&i);
  if (found == gates_.end() || !fp32_results_ || !IsLaidOutAnew(linear)) return nullptr;
  const int64_t rows = linear.weights[0].shape(0);
  return rows == linear.weights[1].shape(0) && rows % kernels::kPackedBlock == 0 ? found->second : nullptr;
}

void Lowering::LayOutLayer(const Instruction& i, const LinearWeights& linear) {
  std::shared_ptr<const kernels::PackedWeights>& packed = packed_.layers[&i];
  if (packed == nullptr) {
    const Instruction* gate = GateOf(i, linear);
    LinearWeights parts = linear;
    if (gate != nullptr && TidOf(*gate, "gate") != TidsOf(i, "outs")[0]) {
      for (std::vector<mx::array>* list : {&parts.weights, &parts.scales, &parts.biases}) {
        std::reverse(list->begin(), list->end());
      }
    }
    const auto order = gate != nullptr ? kernels::PartOrder::kBlocksInTurn : kernels::PartOrder::kSequence;
    packed = program::LayOut(parts, arena_, order);
  }
  Evict(i);
}

PackedLayers Lowering::LayOut(const Chain& body) {
  Begin(body);
  for (const Instruction& i : body) {
    if (i.op != "QuantizedLinears") continue;
    try {
      const LinearWeights linear = WeightsOf(i, std::nullopt);
      if (IsLaidOutAnew(linear)) LayOutLayer(i, linear);
    } catch (const NotLowered&) {
      continue;  // no region will have it
    }
  }
  EvictNeighbours();
  return std::move(packed_);
}

}  // namespace offgraph::program
