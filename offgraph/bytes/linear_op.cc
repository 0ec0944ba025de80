#include "offgraph/bytes/linear_op.h"

#include <mlx/allocator.h>
#include <mlx/backend/cpu/encoder.h>
#include <mlx/ops.h>
#include <mlx/primitives.h>

#include <algorithm>
#include <memory>
#include <sstream>
#include <utility>
#include <vector>

#include "offgraph/bytes/linear_op_types.h"
#include "offgraph/cache/error.h"
#include "offgraph/kernels/linear.h"
#include "offgraph/kernels/quantized.h"

namespace offgraph::bytes {
namespace {

namespace mx = mlx::core;
using mx::array;

// How an operand [..., rows, cols] is walked for a result [..., M, N]: strides in elements, 0 where it broadcasts.
struct Operand {
  explicit Operand(const array& a, const mx::Shape& batch) : data(a.data<char>()), item_size(a.itemsize()) {
    const int dims = a.ndim();
    const auto stride = [&](int axis) { return a.shape(axis) == 1 ? 0 : a.strides(axis); };
    cols = a.shape(dims - 1) == 1 ? 1 : a.strides(dims - 1);
    rows = dims > 1 ? stride(dims - 2) : 0;
    batches.assign(batch.size(), 0);
    for (int axis = 0; axis < dims - 2; ++axis) batches[batch.size() - (dims - 2) + axis] = stride(axis);
  }
  const char* At(const std::vector<int64_t>& index) const {
    int64_t offset = 0;
    for (size_t i = 0; i < index.size(); ++i) offset += index[i] * batches[i];
    return data + offset * static_cast<int64_t>(item_size);
  }

  const char* data;
  size_t item_size;
  int64_t rows = 0;
  int64_t cols = 1;
  std::vector<int64_t> batches;
};

struct QuantizedOptions {
  int bits;
  int group_size;
};

// Codes whose words do not lie side by side, gathered.
std::vector<uint32_t> GatherCodes(const char* data, const Operand& codes, int64_t rows, int64_t words) {
  std::vector<uint32_t> result(static_cast<size_t>(rows * words));
  const auto* p = reinterpret_cast<const uint32_t*>(data);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < words; ++j) result[i * words + j] = p[i * codes.rows + j * codes.cols];
  }
  return result;
}

// alpha * (x w^T or x w) + beta * addend.
//   inputs: x, w or (codes, scales, biases), then the addend where there is one; all with their batch dimensions in
//   front, any of which may be 1 or absent
class Product : public mx::UnaryPrimitive {
 public:
  struct Options {
    bool transposed = true;  // w is [N, K]
    std::optional<QuantizedOptions> quantized;
    bool has_addend = false;
    float alpha = 1.0F;
    float beta = 1.0F;
  };

  Product(mx::Stream stream, Options options) : UnaryPrimitive(stream), options_(options) {}

  void eval_cpu(const std::vector<array>& inputs, array& out) override;
  void eval_gpu(const std::vector<array>& /*inputs*/, array& /*out*/) override {
    throw Error(ErrorCode::kInternal, "[linear] a CPU kernel was put on a GPU stream");
  }
  const char* name() const override { return "OffgraphProduct"; }

 private:
  Options options_;
};

// All that a product needs when it runs; it owns nothing.
struct Task {
  Product::Options options;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  std::vector<int64_t> batch;
  std::vector<Operand> operands;  // in the order of the primitive's inputs
  std::vector<kernels::DType> types;
  char* out = nullptr;
  kernels::DType out_type = kernels::DType::kFloat32;

  // Where the weight is the same for a batch dimension and rows follow one another through it, its rows are rows of
  // one product.
  void MergeBatchIntoRows() {
    while (!batch.empty() && RowsGoOnThroughLastBatch()) {
      for (size_t i = 0; i < operands.size(); ++i) {
        if (WalksRows(i) && m == 1) operands[i].rows = operands[i].batches.back();
        operands[i].batches.pop_back();
      }
      m *= batch.back();
      batch.pop_back();
    }
  }

  void Run() const {
    std::vector<int64_t> index(batch.size(), 0);
    char* result = out;
    for (bool more = true; more; result += m * n * static_cast<int64_t>(kernels::SizeOf(out_type))) {
      RunOne(index, result);
      more = false;
      for (size_t axis = batch.size(); axis-- > 0;) {
        if (++index[axis] < batch[axis]) {
          more = true;
          break;
        }
        index[axis] = 0;
      }
    }
  }

 private:
  bool WalksRows(size_t operand) const {
    return operand == 0 || (options.has_addend && operand == operands.size() - 1);
  }
  bool RowsGoOnThroughLastBatch() const {
    if (batch.back() == 1) return true;
    for (size_t i = 0; i < operands.size(); ++i) {
      const int64_t stride = operands[i].batches.back();
      if (WalksRows(i) ? (m != 1 && stride != operands[i].rows * m) : stride != 0) return false;
    }
    return true;
  }

  kernels::MatrixView View(size_t operand, const std::vector<int64_t>& index) const {
    const Operand& o = operands[operand];
    return {o.At(index), types[operand], o.rows, o.cols};
  }

  void RunOne(const std::vector<int64_t>& index, char* result) const {
    auto& threads = kernels::ThreadPool::Default();
    const kernels::MutableMatrixView y = {result, out_type, n};
    kernels::Epilogue epilogue;
    epilogue.alpha = options.alpha;
    epilogue.beta = options.beta;
    if (options.has_addend) epilogue.addend = View(operands.size() - 1, index);
    const kernels::MatrixView x = View(0, index);
    if (!options.quantized) {
      if (options.transposed) {
        kernels::Linear(m, n, k, x, View(1, index), y, epilogue, threads);
      } else {
        kernels::MatMul(m, n, k, x, View(1, index), y, epilogue, threads);
      }
      return;
    }
    kernels::QuantizedView w;
    w.bits = options.quantized->bits;
    w.group_size = options.quantized->group_size;
    w.codes = reinterpret_cast<const uint32_t*>(operands[1].At(index));
    w.code_stride = operands[1].rows;
    std::vector<uint32_t> gathered;
    if (operands[1].cols != 1) {
      const int64_t words = (options.transposed ? k : n) / 32 * w.bits;
      gathered = GatherCodes(operands[1].At(index), operands[1], options.transposed ? n : k, words);
      w.codes = gathered.data();
      w.code_stride = words;
    }
    w.scales = View(2, index);
    w.biases = View(3, index);
    const auto product = options.transposed ? kernels::QuantizedLinear : kernels::QuantizedMatMul;
    product(m, n, k, x, w, y, epilogue, threads);
  }
};

void Product::eval_cpu(const std::vector<array>& inputs, array& out) {
  out.set_data(mx::allocator::malloc(out.nbytes()));
  if (out.size() == 0) return;
  Task task;
  task.options = options_;
  task.k = inputs[0].shape(-1);
  task.n = out.shape(-1);
  task.m = out.shape(-2);
  const mx::Shape batch(out.shape().begin(), out.shape().end() - 2);
  task.batch.assign(batch.begin(), batch.end());
  for (const array& input : inputs) {
    task.operands.emplace_back(input, batch);
    task.types.push_back(KernelType(input.dtype()));
  }
  // A weight that broadcasts over the columns of the result does not exist; an addend may.
  if (options_.has_addend && inputs.back().shape(-1) == 1) task.operands.back().cols = 0;
  task.out = out.data<char>();
  task.out_type = KernelType(out.dtype());
  task.MergeBatchIntoRows();
  mx::cpu::get_command_encoder(stream()).dispatch([task = std::move(task)] { task.Run(); });
}

mx::Shape BatchOf(const array& a) {
  return a.ndim() > 2 ? mx::Shape(a.shape().begin(), a.shape().end() - 2) : mx::Shape{};
}

mx::Shape ProductBatch(const char* op, const array& a, const array& b) {
  try {
    return mx::broadcast_shapes(BatchOf(a), BatchOf(b));
  } catch (const std::exception&) {
    Refuse(op, "batch dimensions do not broadcast: shapes " + ShapeText(a) + " and " + ShapeText(b));
  }
}

array MakeProduct(mx::Shape shape, mx::Dtype type, mx::Stream stream, const Product::Options& options,
                  std::vector<array> inputs) {
  return array(std::move(shape), type, std::make_shared<Product>(stream, options), std::move(inputs));
}

bool KernelRuns(const mx::Stream& stream, std::initializer_list<mx::Dtype> types) {
  return stream.device == mx::Device::cpu && std::all_of(types.begin(), types.end(), HasKernel);
}

void RequireInner(const char* op, const array& a, const array& b, int64_t a_inner, int64_t b_inner) {
  if (a_inner == b_inner) return;
  Refuse(op, "inner dimensions differ: " + std::to_string(a_inner) + " and " + std::to_string(b_inner) + ", shapes " +
                 ShapeText(a) + " and " + ShapeText(b));
}

}  // namespace

array Linear(const array& x, const array& w, const std::optional<array>& bias, mx::StreamOrDevice s) {
  constexpr const char* kOp = "linear";
  if (x.ndim() < 1) Refuse(kOp, "x is a scalar");
  if (w.ndim() != 2) Refuse(kOp, "w must be [N, K], is " + ShapeText(w));
  RequireInner(kOp, x, w, x.shape(-1), w.shape(1));
  if (bias && (bias->ndim() != 1 || bias->shape(0) != w.shape(0))) {
    Refuse(kOp, "bias must be [" + std::to_string(w.shape(0)) + "], is " + ShapeText(*bias));
  }
  const mx::Stream stream = mx::to_stream(s);
  if (!KernelRuns(stream, {x.dtype(), w.dtype(), bias ? bias->dtype() : x.dtype()})) {
    const array transposed = mx::transpose(w, stream);
    return bias ? mx::addmm(*bias, x, transposed, 1.0F, 1.0F, stream) : mx::matmul(x, transposed, stream);
  }
  mx::Shape shape = x.shape();
  shape.back() = w.shape(0);
  if (x.ndim() == 1) {
    return mx::squeeze(Linear(mx::expand_dims(x, 0, stream), w, bias, stream), 0, stream);
  }
  Product::Options options;
  options.has_addend = bias.has_value();
  std::vector<array> inputs = {x, w};
  if (bias) inputs.push_back(*bias);
  const mx::Dtype type = bias ? mx::result_type(x, w, *bias) : mx::result_type(x, w);
  return MakeProduct(std::move(shape), type, stream, options, std::move(inputs));
}

namespace {

// a b with an optional addend, all of them at least matrices.
array MatrixProduct(const char* op, const array& a, const array& b, const std::optional<array>& c, float alpha,
                    float beta, const mx::Stream& stream) {
  RequireInner(op, a, b, a.shape(-1), b.shape(-2));
  mx::Shape shape = ProductBatch(op, a, b);
  shape.push_back(a.shape(-2));
  shape.push_back(b.shape(-1));
  Product::Options options;
  options.transposed = false;
  options.has_addend = c.has_value();
  options.alpha = alpha;
  options.beta = beta;
  std::vector<array> inputs = {a, b};
  mx::Dtype type = mx::result_type(a, b);
  if (c) {
    inputs.push_back(*c);
    type = mx::promote_types(type, c->dtype());
  }
  return MakeProduct(std::move(shape), type, stream, options, std::move(inputs));
}

array MultiplyAny(const char* op, const array& a, const array& b, const std::optional<array>& c, float alpha,
                  float beta, const mx::Stream& stream) {
  if (a.ndim() < 1 || b.ndim() < 1) Refuse(op, "an operand is a scalar");
  const array a2 = a.ndim() == 1 ? mx::expand_dims(a, 0, stream) : a;
  const array b2 = b.ndim() == 1 ? mx::expand_dims(b, 1, stream) : b;
  std::vector<int> dropped;
  if (a.ndim() == 1) dropped.push_back(-2);
  if (b.ndim() == 1) dropped.push_back(-1);
  std::optional<array> c2 = c;
  if (c) {
    // In the result's shape without the dimensions that vectors are given, then with them.
    mx::Shape shape = ProductBatch(op, a2, b2);
    if (a.ndim() > 1) shape.push_back(a2.shape(-2));
    if (b.ndim() > 1) shape.push_back(b2.shape(-1));
    mx::Shape together;
    try {
      together = mx::broadcast_shapes(c->shape(), shape);
    } catch (const std::exception&) {
    }
    if (together != shape) {
      std::ostringstream text;
      text << shape;
      Refuse(op, "the addend " + ShapeText(*c) + " does not broadcast to the product " + text.str());
    }
    if (b.ndim() == 1) c2 = mx::expand_dims(*c2, c2->ndim(), stream);
    if (a.ndim() == 1 && c2->ndim() > 1) c2 = mx::expand_dims(*c2, c2->ndim() - 1, stream);
    if (c2->ndim() == 0) c2 = mx::expand_dims(*c2, 0, stream);
  }
  const array product = MatrixProduct(op, a2, b2, c2, alpha, beta, stream);
  return dropped.empty() ? product : mx::squeeze(product, dropped, stream);
}

}  // namespace

array Matmul(const array& a, const array& b, mx::StreamOrDevice s) {
  const mx::Stream stream = mx::to_stream(s);
  if (!KernelRuns(stream, {a.dtype(), b.dtype()})) return mx::matmul(a, b, stream);
  return MultiplyAny("matmul", a, b, std::nullopt, 1.0F, 1.0F, stream);
}

array Addmm(const array& c, const array& a, const array& b, float alpha, float beta, mx::StreamOrDevice s) {
  const mx::Stream stream = mx::to_stream(s);
  if (!KernelRuns(stream, {a.dtype(), b.dtype(), c.dtype()})) return mx::addmm(c, a, b, alpha, beta, stream);
  return MultiplyAny("addmm", a, b, c, alpha, beta, stream);
}

array QuantizedMatmul(const array& x, const array& w, const array& scales, const std::optional<array>& biases,
                      bool transpose, int group_size, int bits, const std::string& mode, mx::StreamOrDevice s) {
  constexpr const char* kOp = "quantized_matmul";
  const mx::Stream stream = mx::to_stream(s);
  if (mode != "affine") {
    return mx::quantized_matmul(x, w, scales, biases, transpose, group_size, bits, mode, stream);
  }
  if (!biases) Refuse(kOp, "mode affine needs biases");
  if (!kernels::IsQuantizedBits(bits)) Refuse(kOp, "bits must be 1 to 6 or 8, is " + std::to_string(bits));
  if (group_size != 32 && group_size != 64 && group_size != 128) {
    Refuse(kOp, "group size must be 32, 64 or 128, is " + std::to_string(group_size));
  }
  if (x.ndim() < 1) Refuse(kOp, "x is a scalar");
  if (w.ndim() < 2 || w.dtype() != mx::uint32) {
    Refuse(kOp, "w must be uint32 with at least two dimensions, has shape " + ShapeText(w));
  }
  const int64_t cols = static_cast<int64_t>(w.shape(-1)) * 32 / bits;
  mx::Shape expected = w.shape();
  expected.back() = static_cast<mx::ShapeElem>(cols / group_size);
  if (static_cast<int64_t>(w.shape(-1)) * 32 % bits != 0 || cols % group_size != 0 || scales.shape() != expected ||
      biases->shape() != expected) {
    Refuse(kOp, "w " + ShapeText(w) + ", scales " + ShapeText(scales) + " and biases " + ShapeText(*biases) +
                    " do not fit together for " + std::to_string(bits) + " bits in groups of " +
                    std::to_string(group_size));
  }
  const int64_t k = transpose ? cols : w.shape(-2);
  RequireInner(kOp, x, w, x.shape(-1), k);
  if (!KernelRuns(stream, {x.dtype(), scales.dtype(), biases->dtype()})) {
    return mx::quantized_matmul(x, w, scales, biases, transpose, group_size, bits, mode, stream);
  }
  if (x.ndim() == 1) {
    const array matrix = mx::expand_dims(x, 0, stream);
    const array product = QuantizedMatmul(matrix, w, scales, biases, transpose, group_size, bits, mode, stream);
    return mx::squeeze(product, -2, stream);
  }
  mx::Shape shape = ProductBatch(kOp, x, w);
  shape.push_back(x.shape(-2));
  shape.push_back(transpose ? w.shape(-2) : static_cast<mx::ShapeElem>(cols));
  Product::Options options;
  options.transposed = transpose;
  options.quantized = {.bits = bits, .group_size = group_size};
  return MakeProduct(std::move(shape), mx::result_type(x, scales, *biases), stream, options, {x, w, scales, *biases});
}

}  // namespace offgraph::bytes
