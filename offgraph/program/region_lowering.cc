#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <array>
#include <optional>
#include <unordered_map>
#include <utility>

#include "offgraph/program/mlx_types.h"
#include "offgraph/program/region.h"
#include "offgraph/program/rewrite.h"

namespace offgraph::program {
namespace {

namespace mx = mlx::core;
using bytes::RegionValue;
using kernels::Activation;
using kernels::Arithmetic;

// How a value's axes lie in the program's tensor. In the arena it is always [T, heads, dim].
enum class Layout : uint8_t {
  kRows,         // [1, T, dim], one head
  kTokensHeads,  // [1, T, heads, dim]
  kHeadsTokens,  // [1, heads, T, dim]
};

struct Value {
  RegionValue at;
  Layout layout = Layout::kRows;
  mx::Dtype type = mx::float32;
};

// Thrown inside this file only, where an instruction cannot be lowered.
struct NotLowered {
  std::string why;
};

kernels::DType RoundOf(mx::Dtype type) {
  if (!bytes::IsRegionType(type)) throw NotLowered{"the type is not a floating one"};
  return bytes::ToKernelType(type);
}

std::vector<float> FloatsOf(const mx::array& array) {
  mx::array floats = mx::contiguous(mx::astype(array, mx::float32));
  mx::eval(floats);
  return {floats.data<float>(), floats.data<float>() + floats.size()};
}

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

class Lowering {
 public:
  Lowering(const Graph& graph, const Frame& frame, int64_t tokens) : graph_(graph), frame_(frame), tokens_(tokens) {}

  // Takes the layers of `body` that are laid out already.
  void Take(const Chain& body) {
    const auto is_quantized = [](const Instruction& i) { return i.op == "QuantizedLinears"; };
    fp32_results_ = frame_.fp32_results && std::any_of(body.begin(), body.end(), is_quantized);
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
  const mx::array& Constant(std::optional<Tid> tid) const {
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
  const Value& In(const Instruction& i, std::string_view field) const {
    const std::optional<Tid> tid = TidOf(i, field);
    const auto found = tid ? values_.find(tid->index) : values_.end();
    if (found == values_.end()) throw NotLowered{"operand " + std::string(field) + " is not a value of the region"};
    return found->second;
  }
  void Out(const Instruction& i, Value value) { values_[TidOf(i, "out")->index] = value; }
  // The number of an input from outside, added at its first use.
  size_t Input(Tid tid) {
    const auto found = std::find(result_->inputs.begin(), result_->inputs.end(), tid);
    if (found != result_->inputs.end()) return static_cast<size_t>(found - result_->inputs.begin());
    result_->inputs.push_back(tid);
    return result_->inputs.size() - 1;
  }
  // What a result is rounded to that the program gives a type.
  kernels::DType ResultOf(mx::Dtype type) const {
    const kernels::DType round = RoundOf(type);
    return fp32_results_ ? kernels::DType::kFloat32 : round;
  }
  size_t IndexInput(Tid tid, int64_t rows);
  RegionValue AngleTable(Tid tid, int64_t dim);
  LinearWeights WeightsOf(const Instruction& i, std::optional<int64_t> dim) const;
  void LayOutLayer(const Instruction& i, const LinearWeights& linear);
  TableMatrix TableOf(Tid constant) const;
  void Evict(const Instruction& i);
  void EvictNeighbours() const;
  int64_t Resolve(const IntOperand& operand);
  static int64_t RankOf(const Value& value) { return value.layout == Layout::kRows ? 3 : 4; }
  static void RequireLastAxis(const Instruction& i, const Value& value) {
    const std::optional<int64_t> axis = IntOf(i, "axis");
    if (axis != -1 && axis != RankOf(value) - 1) throw NotLowered{"the axis is not the last one"};
  }

  const Graph& graph_;
  const Frame& frame_;
  int64_t tokens_;
  bool fp32_results_ = false;
  bytes::RegionBuilder builder_;
  kernels::WeightArena arena_;  // of all layers
  PackedLayers packed_;
  std::vector<const WeightBytes*> evicted_;
  std::unordered_map<uint32_t, Value> values_;
  std::unordered_map<uint32_t, RegionValue> angle_tables_;
  std::unique_ptr<LoweredRegion> result_ = std::make_unique<LoweredRegion>();
};

const std::array<Lowering::Row, 23> Lowering::kRows = {{
    {"AddNode", &Lowering::Binary},
    {"AsTypeNode", &Lowering::AsType},
    {"ConcatenateNode", &Lowering::Concatenate},
    {"DivideNode", &Lowering::Binary},
    {"GatedActivation", &Lowering::Gate},
    {"GeluNode", &Lowering::Activate},
    {"IdCopyNode", &Lowering::Copy},
    {"LayerNormNode", &Lowering::Norm},
    {"Linears", &Lowering::Linears},
    {"MultiplyNode", &Lowering::Binary},
    {"NegNode", &Lowering::Activate},
    {"QuantizedEmbedding", &Lowering::QuantizedEmbedding},
    {"QuantizedLinears", &Lowering::Linears},
    {"RMSNormNode", &Lowering::Norm},
    {"ReshapeNode", &Lowering::Reshape},
    {"Rotary", &Lowering::Rotary},
    {"SigmoidNode", &Lowering::Activate},
    {"SiluNode", &Lowering::Activate},
    {"SliceNode", &Lowering::Slice},
    {"SplitNode", &Lowering::Split},
    {"SubtractNode", &Lowering::Binary},
    {"TakeNode", &Lowering::Embedding},
    {"TanhNode", &Lowering::Activate},
}};

void Lowering::Lower(const Instruction& instruction) {
  if (instruction.op == "TransposeNode") return Transpose(instruction);
  if (instruction.op == "UpdateAndAttendNode") return Attend(instruction);
  for (const Row& row : kRows) {
    if (row.op == instruction.op) return (this->*row.method)(instruction);
  }
  throw NotLowered{"the op is not known"};
}

// A literal, or a value slot that holds the token count: the program's size of axis 1.
int64_t Lowering::Resolve(const IntOperand& operand) {
  if (const int64_t* literal = std::get_if<int64_t>(&operand.value)) return *literal;
  const Vid vid = std::get<Vid>(operand.value);
  if (frame_.Int(vid) != tokens_) throw NotLowered{"a size from a value slot that is not the token count"};
  result_->token_counts.push_back(vid);
  return tokens_;
}

size_t Lowering::IndexInput(Tid tid, int64_t rows) {
  const mx::array& index = frame_.Get(tid);
  const bool is_row = index.ndim() == 2 && index.shape(0) == 1 && index.shape(1) == tokens_;
  if (!is_row || (index.dtype() != mx::int64 && index.dtype() != mx::int32)) {
    throw NotLowered{"the index is not [1, T] of int32 or int64"};
  }
  const size_t input = Input(tid);
  result_->indices.push_back({input, rows});
  return input;
}

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

void Lowering::Norm(const Instruction& i) {
  const Value& x = In(i, "x");
  const bool center = i.op == "LayerNormNode";
  mx::Dtype type = x.type;
  std::vector<float> factors[2];
  for (int n = 0; n < 2; ++n) {
    const std::optional<Tid> tid = TidOf(i, n == 0 ? "weight" : "bias");
    if (!tid) continue;
    const mx::array& array = Constant(tid);
    type = mx::promote_types(type, array.dtype());
    factors[n] = FloatsOf(array);
    if (static_cast<int64_t>(factors[n].size()) != x.at.dim) throw NotLowered{"the weight has another width"};
  }
  const RegionValue out = builder_.Norm(x.at, center, std::move(factors[0]), std::move(factors[1]),
                                        static_cast<float>(*FloatOf(i, "eps")), ResultOf(type));
  Out(i, {out, x.layout, type});
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
  const Value x = In(i, "x");
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

void Lowering::LayOutLayer(const Instruction& i, const LinearWeights& linear) {
  std::shared_ptr<const kernels::PackedWeights>& packed = packed_.layers[&i];
  if (packed == nullptr) packed = program::LayOut(linear, arena_);
  Evict(i);
}

PackedLayers Lowering::LayOut(const Chain& body) {
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

std::unique_ptr<LoweredRegion> Lowering::Finish() {
  EvictNeighbours();
  result_->region = builder_.Build();
  return std::move(result_);
}

// cos or sin, [1, T, dim] or [1, 1, T, dim] from outside, loaded once however many layers use it.
RegionValue Lowering::AngleTable(Tid tid, int64_t dim) {
  const auto found = angle_tables_.find(tid.index);
  if (found != angle_tables_.end()) {
    if (found->second.dim != dim) throw NotLowered{"heads of two sizes share one table of angles"};
    return found->second;
  }
  if (values_.contains(tid.index)) throw NotLowered{"the angles are values of the region"};
  const mx::array& table = frame_.Get(tid);
  RoundOf(table.dtype());
  if (static_cast<int64_t>(table.size()) != tokens_ * dim || table.shape(-1) != dim || table.shape(-2) != tokens_) {
    throw NotLowered{"the angles are not [T, head size]"};
  }
  result_->loads.push_back({Input(tid), dim});
  return angle_tables_[tid.index] = builder_.Load(Input(tid), 1, dim);
}

void Lowering::Rotary(const Instruction& i) {
  const Value x = In(i, "x");
  if (x.layout != Layout::kHeadsTokens) throw NotLowered{"the axes are not [1, heads, T, head size]"};
  if (x.at.dim % 2 != 0) throw NotLowered{"an odd head size"};
  const Tid cos = *TidOf(i, "cos");
  const Tid sin = *TidOf(i, "sin");
  const RegionValue cos_table = AngleTable(cos, x.at.dim);
  const RegionValue sin_table = AngleTable(sin, x.at.dim);
  const mx::Dtype angle_type = frame_.Get(cos).dtype();
  if (frame_.Get(sin).dtype() != angle_type) throw NotLowered{"sine and cosine differ in type"};
  const mx::Dtype type = mx::promote_types(x.type, angle_type);
  Out(i, {builder_.Rotary(x.at, cos_table, sin_table, ResultOf(type)), x.layout, type});
}

Activation ActivationByName(std::string_view name) {
  if (name == "silu" || name == "SiluNode") return Activation::kSilu;
  if (name == "gelu") return Activation::kGelu;
  if (name == "gelu_tanh") return Activation::kGeluTanh;
  if (name == "SigmoidNode") return Activation::kSigmoid;
  if (name == "TanhNode") return Activation::kTanh;
  if (name == "NegNode") return Activation::kNegate;
  throw NotLowered{"the activation is not known"};
}

bool SameShape(const Value& a, const Value& b) {
  return a.layout == b.layout && a.at.heads == b.at.heads && a.at.dim == b.at.dim;
}

void Lowering::Gate(const Instruction& i) {
  const Value& gate = In(i, "gate");
  const Value& up = In(i, "up");
  if (!SameShape(gate, up) || gate.type != up.type) throw NotLowered{"gate and up differ"};
  const Activation activation = ActivationByName(TextOf(i, "activation"));
  Out(i, {builder_.Gate(gate.at, up.at, activation, ResultOf(gate.type)), gate.layout, gate.type});
}

void Lowering::Activate(const Instruction& i) {
  const Value& x = In(i, "x");
  std::string_view name = i.op;
  if (i.op == "GeluNode") name = TextOf(i, "approximate") == "tanh" ? "gelu_tanh" : "gelu";
  Out(i, {builder_.Activate(x.at, ActivationByName(name), ResultOf(x.type)), x.layout, x.type});
}

Arithmetic ArithmeticOf(std::string_view op) {
  if (op == "AddNode") return Arithmetic::kAdd;
  if (op == "SubtractNode") return Arithmetic::kSubtract;
  return op == "MultiplyNode" ? Arithmetic::kMultiply : Arithmetic::kDivide;
}

void Lowering::Binary(const Instruction& i) {
  const Arithmetic op = ArithmeticOf(i.op);
  const bool constant_a = IsConstant(TidOf(i, "a"));
  const bool constant_b = IsConstant(TidOf(i, "b"));
  if (!constant_a && !constant_b) {
    const Value& a = In(i, "a");
    const Value& b = In(i, "b");
    if (!SameShape(a, b)) throw NotLowered{"the operands differ in shape"};
    const mx::Dtype type = mx::promote_types(a.type, b.type);
    return Out(i, {builder_.Combine(a.at, b.at, op, ResultOf(type)), a.layout, type});
  }
  const Value& x = In(i, constant_a ? "b" : "a");
  const mx::array& constant = Constant(TidOf(i, constant_a ? "a" : "b"));
  if (!bytes::IsRegionType(constant.dtype())) throw NotLowered{"the constant is not a floating one"};
  std::vector<float> factor = FloatsOf(constant);
  const bool is_row =
      static_cast<int64_t>(factor.size()) == x.at.dim && constant.ndim() > 0 && constant.shape(-1) == x.at.dim;
  if (factor.size() == 1) factor.assign(static_cast<size_t>(x.at.dim), factor[0]);
  if (!is_row && constant.size() != 1) throw NotLowered{"the constant is neither one number nor a row"};
  if (static_cast<int64_t>(constant.ndim()) > RankOf(x)) throw NotLowered{"the constant has more axes"};
  const mx::Dtype type = mx::promote_types(x.type, constant.dtype());
  Out(i, {builder_.CombineConstant(x.at, std::move(factor), constant_a, op, ResultOf(type)), x.layout, type});
}

void Lowering::AsType(const Instruction& i) {
  Value x = In(i, "x");
  const mx::Dtype type = ToMlx(static_cast<ScalarType>(*IntOf(i, "scalar_type")));
  // Wider types hold every value already.
  const bool exact = type == x.type || ResultOf(type) == kernels::DType::kFloat32;
  if (!exact) x.at = builder_.Activate(x.at, Activation::kCopy, ResultOf(type));
  Out(i, {x.at, x.layout, type});
}

void Lowering::Copy(const Instruction& i) { Out(i, In(i, "x")); }

void Lowering::Reshape(const Instruction& i) {
  Value x = In(i, "x");
  const auto* field = FindField(i, "shape");
  const auto* operands = std::get_if<std::vector<IntOperand>>(&field->value);
  std::vector<int64_t> shape;
  for (const IntOperand& operand : *operands) shape.push_back(Resolve(operand));
  if (shape.size() < 3 || shape[0] != 1 || shape[1] != tokens_) throw NotLowered{"the shape is not [1, T, ...]"};
  // One of the axes behind T may be left open.
  for (size_t axis = 2; axis < shape.size(); ++axis) {
    const int64_t other = shape.size() == 4 ? shape[5 - axis] : 1;
    if (shape[axis] == -1 && other > 0 && x.at.width() % other == 0) shape[axis] = x.at.width() / other;
    if (shape[axis] <= 0 || shape[axis] > x.at.width()) throw NotLowered{"the shape is not a regrouping of heads"};
  }
  if (x.layout == Layout::kHeadsTokens) throw NotLowered{"heads lie before tokens"};
  const bool packed = x.at.heads == 1 || x.at.head_stride == x.at.dim;
  if (!packed) throw NotLowered{"the heads are apart"};
  if (shape.size() == 3 && shape[2] == x.at.width()) {
    x.at = {x.at.buffer, x.at.column, 1, x.at.width(), x.at.width()};
    x.layout = Layout::kRows;
  } else if (shape.size() == 4 && shape[2] * shape[3] == x.at.width()) {
    x.at = {x.at.buffer, x.at.column, shape[2], shape[3], shape[3]};
    x.layout = Layout::kTokensHeads;
  } else {
    throw NotLowered{"the shape is not a regrouping of heads"};
  }
  Out(i, x);
}

void Lowering::Transpose(const Instruction& i) {
  Value x = In(i, "x");
  if (x.layout == Layout::kRows || IntsOf(i, "perm") != std::vector<int64_t>{0, 2, 1, 3}) {
    throw NotLowered{"not an exchange of heads and tokens"};
  }
  x.layout = x.layout == Layout::kTokensHeads ? Layout::kHeadsTokens : Layout::kTokensHeads;
  Out(i, x);
}

void Lowering::Slice(const Instruction& i) {
  Value x = In(i, "x");
  RequireLastAxis(i, x);
  const std::optional<int64_t> start = IntOf(i, "start");
  const std::optional<int64_t> stop = IntOf(i, "stop");
  if (!start || !stop || IntOf(i, "step") != 1) throw NotLowered{"the bounds are not literal"};
  const int64_t end = std::min(*stop, x.at.dim);
  if (*start < 0 || end <= *start) throw NotLowered{"the bounds count from the end, or leave nothing"};
  x.at.column += *start;
  x.at.dim = end - *start;
  Out(i, x);
}

void Lowering::Split(const Instruction& i) {
  const Value x = In(i, "x");
  RequireLastAxis(i, x);
  const std::vector<Tid> outs = TidsOf(i, "outs");
  const auto* sizes = std::get_if<std::vector<IntOperand>>(&FindField(i, "sizes")->value);
  int64_t column = 0;
  for (size_t n = 0; n < outs.size(); ++n) {
    // One size stands for equal pieces, the last of which may be smaller.
    const int64_t* literal = std::get_if<int64_t>(&(*sizes)[sizes->size() == 1 ? 0 : n].value);
    if (literal == nullptr) throw NotLowered{"the sizes are not literal"};
    const int64_t dim = std::min(*literal, x.at.dim - column);
    if (dim <= 0) throw NotLowered{"a piece is empty"};
    Value piece = x;
    piece.at.column += column;
    piece.at.dim = dim;
    values_[outs[n].index] = piece;
    column += dim;
  }
  if (column != x.at.dim) throw NotLowered{"the pieces do not add up"};
}

void Lowering::Concatenate(const Instruction& i) {
  std::vector<RegionValue> parts;
  const std::vector<Tid> tids = TidsOf(i, "tensors");
  if (tids.empty()) throw NotLowered{"nothing to join"};
  std::optional<Value> first;
  for (Tid tid : tids) {
    const auto found = values_.find(tid.index);
    if (found == values_.end()) throw NotLowered{"an operand is not a value of the region"};
    const Value& part = found->second;
    if (!first) first = part;
    if (part.layout != first->layout || part.at.heads != first->at.heads || part.type != first->type) {
      throw NotLowered{"the operands differ"};
    }
    parts.push_back(part.at);
  }
  RequireLastAxis(i, *first);
  const RegionValue joined = parts.size() == 1 ? parts[0] : builder_.Concatenate(parts);
  Out(i, {joined, first->layout, first->type});
}

void Lowering::Attend(const Instruction& i) {
  const Value q = In(i, "q");
  const Value k = In(i, "k");
  const Value v = In(i, "v");
  for (const Value* value : {&q, &k, &v}) {
    if (value->layout != Layout::kHeadsTokens) throw NotLowered{"the axes are not [1, heads, T, head size]"};
  }
  const std::optional<int64_t> declared = IntOf(i, "out_dtype");
  const mx::Dtype type = declared ? ToMlx(static_cast<ScalarType>(*declared)) : q.type;
  RegionAttendNode node;
  node.layer = *IntOf(i, "layer_id");
  node.scale = static_cast<float>(*FloatOf(i, "scale"));
  node.position = *TidOf(i, "position");
  node.geometry = {q.at.heads, k.at.heads, k.at.dim, v.at.dim, k.type, v.type};
  if (q.at.dim != k.at.dim || v.at.heads != k.at.heads) throw NotLowered{"q, k and v do not fit each other"};
  result_->attends.push_back(node);
  Out(i, {builder_.Attend(q.at, k.at, v.at, ResultOf(type)), Layout::kHeadsTokens, type});
}

void Lowering::SaveOutput(Tid out) {
  const auto found = values_.find(out.index);
  if (found == values_.end()) throw NotLowered{"t" + std::to_string(out.index) + " is not computed"};
  const Value& value = found->second;
  if (value.layout == Layout::kHeadsTokens) throw NotLowered{"an output has its heads before its tokens"};
  if (value.layout == Layout::kTokensHeads && value.at.heads == 1) throw NotLowered{"an output of one head"};
  builder_.Save(value.at, value.type);
}

}  // namespace

void LayOutLayers(const Graph& graph, const Chain& body, const Frame& frame, PackedLayers* packed) {
  packed->layers.merge(Lowering(graph, frame, 0).LayOut(body).layers);
}

LoweringResult LowerRegion(const Graph& graph, const Chain& body, const std::vector<Tid>& outs, const Frame& frame,
                           int64_t tokens) {
  Lowering lowering(graph, frame, tokens);
  lowering.Take(body);
  std::string place;
  try {
    for (const Instruction& instruction : body) {
      place = ToString(instruction);
      lowering.Lower(instruction);
    }
    place = "outputs";
    for (Tid out : outs) lowering.SaveOutput(out);
  } catch (const NotLowered& refused) {
    return {nullptr, place + ": " + refused.why};
  }
  return {lowering.Finish(), ""};
}

}  // namespace offgraph::program
