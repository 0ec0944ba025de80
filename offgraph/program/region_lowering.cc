#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <utility>

#include "offgraph/program/mlx_types.h"
#include "offgraph/program/region_lowering_impl.h"

namespace offgraph::program {

namespace mx = mlx::core;
using bytes::RegionValue;
using kernels::Activation;
using kernels::Arithmetic;

namespace {

std::vector<float> FloatsOf(const mx::array& array) {
  mx::array floats = mx::contiguous(mx::astype(array, mx::float32));
  mx::eval(floats);
  return {floats.data<float>(), floats.data<float>() + floats.size()};
}

bool SameShape(const LoweredValue& a, const LoweredValue& b) {
  return a.layout == b.layout && a.at.heads == b.at.heads && a.at.dim == b.at.dim;
}

Arithmetic ArithmeticOf(std::string_view op) {
  if (op == "AddNode") return Arithmetic::kAdd;
  if (op == "SubtractNode") return Arithmetic::kSubtract;
  return op == "MultiplyNode" ? Arithmetic::kMultiply : Arithmetic::kDivide;
}

}  // namespace

Activation ActivationByName(std::string_view name) {
  if (name == "silu" || name == "SiluNode") return Activation::kSilu;
  if (name == "gelu") return Activation::kGelu;
  if (name == "gelu_tanh") return Activation::kGeluTanh;
  if (name == "SigmoidNode") return Activation::kSigmoid;
  if (name == "TanhNode") return Activation::kTanh;
  if (name == "NegNode") return Activation::kNegate;
  throw NotLowered{"the activation is not known"};
}

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
  if (done_.contains(&instruction)) return;
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

void Lowering::Norm(const Instruction& i) {
  const LoweredValue& x = In(i, "x");
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
  const LoweredValue x = In(i, "x");
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

void Lowering::Gate(const Instruction& i) {
  const LoweredValue& gate = In(i, "gate");
  const LoweredValue& up = In(i, "up");
  if (!SameShape(gate, up) || gate.type != up.type) throw NotLowered{"gate and up differ"};
  const Activation activation = ActivationByName(TextOf(i, "activation"));
  Out(i, {builder_.Gate(gate.at, up.at, activation, ResultOf(gate.type)), gate.layout, gate.type});
}

void Lowering::Activate(const Instruction& i) {
  const LoweredValue& x = In(i, "x");
  std::string_view name = i.op;
  if (i.op == "GeluNode") name = TextOf(i, "approximate") == "tanh" ? "gelu_tanh" : "gelu";
  Out(i, {builder_.Activate(x.at, ActivationByName(name), ResultOf(x.type)), x.layout, x.type});
}

void Lowering::Binary(const Instruction& i) {
  const Arithmetic op = ArithmeticOf(i.op);
  const bool constant_a = IsConstant(TidOf(i, "a"));
  const bool constant_b = IsConstant(TidOf(i, "b"));
  if (!constant_a && !constant_b) {
    const LoweredValue& a = In(i, "a");
    const LoweredValue& b = In(i, "b");
    if (!SameShape(a, b)) throw NotLowered{"the operands differ in shape"};
    const mx::Dtype type = mx::promote_types(a.type, b.type);
    return Out(i, {builder_.Combine(a.at, b.at, op, ResultOf(type)), a.layout, type});
  }
  const LoweredValue& x = In(i, constant_a ? "b" : "a");
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
  LoweredValue x = In(i, "x");
  const mx::Dtype type = ToMlx(static_cast<ScalarType>(*IntOf(i, "scalar_type")));
  // Wider types hold every value already.
  const bool exact = type == x.type || ResultOf(type) == kernels::DType::kFloat32;
  if (!exact) x.at = builder_.Activate(x.at, Activation::kCopy, ResultOf(type));
  Out(i, {x.at, x.layout, type});
}

void Lowering::Attend(const Instruction& i) {
  const LoweredValue q = In(i, "q");
  const LoweredValue k = In(i, "k");
  const LoweredValue v = In(i, "v");
  for (const LoweredValue* value : {&q, &k, &v}) {
    if (value->layout != Layout::kHeadsTokens) throw NotLowered{"the axes are not [1, heads, T, head size]"};
  }
  const std::optional<int64_t> declared = IntOf(i, "out_dtype");
  const mx::Dtype type = declared ? ToMlx(static_cast<ScalarType>(*declared)) : q.type;
  RegionAttendNode node;
  node.layer = *IntOf(i, "layer_id");
  node.options.scale = static_cast<float>(*FloatOf(i, "scale"));
  node.options.round_to_bf16 = fast_ && q.type == mx::bfloat16 && k.type == mx::bfloat16 && v.type == mx::bfloat16;
  node.position = *TidOf(i, "position");
  node.geometry = {q.at.heads, k.at.heads, k.at.dim, v.at.dim, k.type, v.type};
  if (q.at.dim != k.at.dim || v.at.heads != k.at.heads) throw NotLowered{"q, k and v do not fit each other"};
  result_->attends.push_back(node);
  Out(i, {builder_.Attend(q.at, k.at, v.at, ResultOf(type)), Layout::kHeadsTokens, type});
}

void Lowering::SaveOutput(Tid out) {
  const auto found = values_.find(out.index);
  if (found == values_.end()) throw NotLowered{"t" + std::to_string(out.index) + " is not computed"};
  const LoweredValue& value = found->second;
  if (value.layout == Layout::kHeadsTokens) throw NotLowered{"an output has its heads before its tokens"};
  if (value.layout == Layout::kTokensHeads && value.at.heads == 1) throw NotLowered{"an output of one head"};
  builder_.Save(value.at, value.type);
}

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
