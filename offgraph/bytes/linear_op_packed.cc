#include "offgraph/bytes/linear_op_packed.h"

#include <mlx/allocator.h>
#include <mlx/backend/cpu/encoder.h>
#include <mlx/ops.h>
#include <mlx/primitives.h>
#include <mlx/transforms.h>

#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "offgraph/bytes/linear_op_types.h"
#include "offgraph/cache/error.h"

namespace offgraph::bytes {
namespace {

namespace mx = mlx::core;
using mx::array;

constexpr const char* kOp = "packed_linear";

// inputs: x [M, K] with any row stride, then the bias where there is one
class PackedProduct : public mx::UnaryPrimitive {
 public:
  PackedProduct(mx::Stream stream, std::shared_ptr<const kernels::PackedWeights> w)
      : UnaryPrimitive(stream), w_(std::move(w)) {}

  void eval_cpu(const std::vector<array>& inputs, array& out) override {
    out.set_data(mx::allocator::malloc(out.nbytes()));
    if (out.size() == 0) return;
    const array& x = inputs[0];
    const int64_t m = x.shape(0);
    const kernels::MatrixView view = {x.data<char>(), KernelType(x.dtype()), m == 1 ? 0 : x.strides(0),
                                      w_->k() == 1 ? 1 : x.strides(1)};
    const kernels::MutableMatrixView y = {out.data<char>(), KernelType(out.dtype()), w_->n()};
    kernels::Epilogue epilogue;
    if (inputs.size() > 1) {
      const array& bias = inputs[1];
      epilogue.addend = {bias.data<char>(), KernelType(bias.dtype()), 0, w_->n() == 1 ? 1 : bias.strides(0)};
    }
    mx::cpu::get_command_encoder(stream()).dispatch([w = w_, m, view, y, epilogue] {
      kernels::PackedLinear(m, view, *w, y, epilogue, kernels::ThreadPool::Default());
    });
  }
  void eval_gpu(const std::vector<array>& /*inputs*/, array& /*out*/) override {
    throw Error(ErrorCode::kInternal, "[packed_linear] a CPU kernel was put on a GPU stream");
  }
  const char* name() const override { return "OffgraphPackedLinear"; }

 private:
  std::shared_ptr<const kernels::PackedWeights> w_;
};

}  // namespace

std::shared_ptr<const kernels::PackedWeights> PackWeights(std::span<const QuantizedArrays> parts, int group_size,
                                                          int bits) {
  constexpr const char* kPack = "pack_weights";
  if (parts.empty()) Refuse(kPack, "no weight to pack");
  if (!kernels::IsQuantizedBits(bits)) Refuse(kPack, "bits must be 1 to 6 or 8, is " + std::to_string(bits));
  if (group_size != 32 && group_size != 64 && group_size != 128) {
    Refuse(kPack, "group size must be 32, 64 or 128, is " + std::to_string(group_size));
  }
  std::vector<array> contiguous;
  for (const QuantizedArrays& part : parts) {
    const array& codes = part.codes;
    if (codes.ndim() != 2 || codes.dtype() != mx::uint32) {
      Refuse(kPack, "codes must be uint32 [N, K * bits / 32], are " + ShapeText(codes));
    }
    const int64_t words = codes.shape(1);
    const int64_t k = words * 32 / bits;
    const mx::Shape expected = {codes.shape(0), static_cast<mx::ShapeElem>(k / group_size)};
    if (words != parts[0].codes.shape(1) || words * 32 % bits != 0 || k % group_size != 0 ||
        part.scales.shape() != expected || part.biases.shape() != expected || !HasKernel(part.scales.dtype()) ||
        !HasKernel(part.biases.dtype())) {
      Refuse(kPack, "codes " + ShapeText(codes) + ", scales " + ShapeText(part.scales) + " and biases " +
                        ShapeText(part.biases) + " do not fit together for " + std::to_string(bits) +
                        " bits in groups of " + std::to_string(group_size));
    }
    for (const array& a : {codes, part.scales, part.biases})
      contiguous.push_back(mx::contiguous(a, false, mx::Device::cpu));
  }
  mx::eval(contiguous);
  std::vector<kernels::QuantizedRows> rows;
  for (size_t i = 0; i < contiguous.size(); i += 3) {
    const auto view = [&](const array& a) {
      return kernels::MatrixView{a.data<char>(), KernelType(a.dtype()), a.shape(1)};
    };
    const array& codes = contiguous[i];
    rows.push_back(
        {{codes.data<uint32_t>(), codes.shape(1), view(contiguous[i + 1]), view(contiguous[i + 2]), bits, group_size},
         codes.shape(0)});
  }
  const int64_t k = static_cast<int64_t>(parts[0].codes.shape(1)) * 32 / bits;
  return std::make_shared<const kernels::PackedWeights>(rows, k, kernels::ThreadPool::Default());
}

array PackedLinear(const array& x, std::shared_ptr<const kernels::PackedWeights> w, const std::optional<array>& bias,
                   std::optional<mx::Dtype> type, mx::StreamOrDevice s) {
  const mx::Stream stream = mx::to_stream(s);
  if (stream.device != mx::Device::cpu) Refuse(kOp, "packed weights are for a CPU stream");
  if (x.ndim() < 1 || x.shape(-1) != w->k()) {
    Refuse(kOp, "x must be [..., " + std::to_string(w->k()) + "], is " + ShapeText(x));
  }
  if (bias && (bias->ndim() != 1 || bias->shape(0) != w->n())) {
    Refuse(kOp, "bias must be [" + std::to_string(w->n()) + "], is " + ShapeText(*bias));
  }
  const mx::Dtype out_type = type.value_or(x.dtype());
  for (const mx::Dtype used : {x.dtype(), out_type, bias ? bias->dtype() : x.dtype()}) {
    if (!HasKernel(used)) {
      std::ostringstream text;
      text << "types must be float32, float16 or bfloat16, one is " << used;
      Refuse(kOp, text.str());
    }
  }
  mx::Shape shape = x.shape();
  shape.back() = static_cast<mx::ShapeElem>(w->n());
  const auto m = static_cast<mx::ShapeElem>(x.size() / static_cast<size_t>(w->k()));
  std::vector<array> inputs = {mx::reshape(x, {m, static_cast<mx::ShapeElem>(w->k())}, stream)};
  if (bias) inputs.push_back(*bias);
  const mx::Shape flat = {m, shape.back()};
  const array product(flat, out_type, std::make_shared<PackedProduct>(stream, std::move(w)), std::move(inputs));
  return mx::reshape(product, shape, stream);
}

}  // namespace offgraph::bytes
