#include "offgraph/bytes/attend_op.h"

#include <mlx/allocator.h>
#include <mlx/backend/cpu/encoder.h>
#include <mlx/device.h>
#include <mlx/ops.h>
#include <mlx/primitives.h>
#include <mlx/stream.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "offgraph/bytes/region.h"
#include "offgraph/cache/error.h"

namespace offgraph::bytes {
namespace {

namespace mx = mlx::core;

const char* NameOf(kernels::DType type) {
  switch (type) {
    case kernels::DType::kFloat32:
      return "fp32";
    case kernels::DType::kFloat16:
      return "fp16";
    case kernels::DType::kBFloat16:
      return "bf16";
  }
  return "an unknown type";
}

std::string Describe(const kernels::StoreFault& fault, int64_t layer, const kernels::KvPool& pool) {
  char value[32];
  std::snprintf(value, sizeof(value), "%g", static_cast<double>(fault.value));
  return "layer " + std::to_string(layer) + ", position " + std::to_string(fault.position) + ", head " +
         std::to_string(fault.head) + ": " + (fault.in_v ? "V" : "K") + " holds " + value + ", which a cache in " +
         NameOf(fault.in_v ? pool.v_type : pool.k_type) + " cannot store; use bf16 or fp32 (both hold it)";
}

// Elements of a tensor [1, heads, tokens, dim] in that order.
void Gather(const uint8_t* from, const mx::Shape& shape, const mx::Strides& strides, size_t size, uint8_t* to) {
  for (int64_t h = 0; h < shape[1]; ++h) {
    for (int64_t t = 0; t < shape[2]; ++t) {
      for (int64_t d = 0; d < shape[3]; ++d, to += size) {
        const int64_t element = h * strides[1] + t * strides[2] + d * strides[3];
        std::memcpy(to, from + element * static_cast<int64_t>(size), size);
      }
    }
  }
}

// An operand as the kernels want it: any strides, but the innermost axis contiguous; else a copy is put in between.
kernels::HeadsView ViewOf(const mx::array& x, mx::cpu::CommandEncoder& encoder) {
  const kernels::DType type = ToKernelType(x.dtype());
  if (x.strides(3) == 1 || x.shape(3) == 1) return {x.data<void>(), type, x.strides(1), x.strides(2)};
  mx::array copy(mx::allocator::malloc(x.nbytes()), x.shape(), x.dtype());
  encoder.add_temporary(copy);
  encoder.dispatch([from = x.data<uint8_t>(), shape = x.shape(), strides = x.strides(), size = x.itemsize(),
                    to = copy.data<uint8_t>()] { Gather(from, shape, strides, size, to); });
  return {copy.data<void>(), type, static_cast<int64_t>(x.shape(2)) * x.shape(3), x.shape(3)};
}

kernels::MaskView MaskOf(const mx::array& mask) {
  using kernels::MaskType;
  MaskType type = MaskType::kBool;
  if (mask.dtype() != mx::bool_) {
    const MaskType types[] = {MaskType::kFloat32, MaskType::kFloat16, MaskType::kBFloat16};
    type = types[static_cast<size_t>(ToKernelType(mask.dtype()))];
  }
  return {mask.data<void>(), type, mask.strides()[1], mask.strides()[2], mask.strides()[3]};
}

class UpdateAndAttendPrimitive : public mx::Primitive {
 public:
  UpdateAndAttendPrimitive(mx::Stream stream, AttendJob job) : Primitive(stream), job_(std::move(job)) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    if (!job_.step->open()) {
      throw Error(ErrorCode::kInternal,
                  "layer " + std::to_string(job_.layer) + ": attention is evaluated after its step ended");
    }
    mx::array& out = outputs[0];
    // Token by token, so that taking the heads of a token together, which is what follows, moves nothing.
    const int64_t heads = out.shape(1);
    const int64_t tokens = out.shape(2);
    const int64_t dim = out.shape(3);
    const bool is_row_contiguous = heads == 1 || tokens == 1;
    out.set_data(mx::allocator::malloc(out.nbytes()), out.size(), {out.shape(1) * tokens * dim, dim, heads * dim, 1},
                 {.contiguous = true, .row_contiguous = is_row_contiguous, .col_contiguous = out.size() <= 1});
    const kernels::MutableHeadsView to{out.data<void>(), ToKernelType(out.dtype()), dim, heads * dim};
    const kernels::MaskView mask = inputs.size() > 3 ? MaskOf(inputs[3]) : kernels::MaskView{};
    mx::cpu::CommandEncoder& encoder = mx::cpu::get_command_encoder(stream());
    const kernels::HeadsView q = ViewOf(inputs[0], encoder);
    const kernels::HeadsView k = ViewOf(inputs[1], encoder);
    const kernels::HeadsView v = ViewOf(inputs[2], encoder);
    encoder.dispatch([job = job_, q, k, v, to, mask] { job.Run(q, k, v, to, mask); });
  }
  void eval_gpu(const std::vector<mx::array>& /*inputs*/, std::vector<mx::array>& /*outputs*/) override {
    throw Error(ErrorCode::kInternal, "attention of the CPU kernels was asked to run on another device");
  }
  const char* name() const override { return "offgraph::UpdateAndAttend"; }

 private:
  AttendJob job_;
};

}  // namespace

// The result of a step that ended before it was computed: nobody may use it, but what is computed from it must not
// depend on what lay in the memory.
void AttendJob::Clear(const kernels::MutableHeadsView& out) const {
  const auto size = static_cast<int64_t>(kernels::SizeOf(out.type));
  for (int64_t t = 0; t < step->plan().tokens(); ++t) {
    for (int64_t h = 0; h < options.n_heads; ++h) {
      std::memset(static_cast<uint8_t*>(out.data) + (h * out.head_stride + t * out.token_stride) * size, 0,
                  static_cast<size_t>(pool.v_dim * size));
    }
  }
}

void AttendJob::Run(const kernels::HeadsView& q, const kernels::HeadsView& k, const kernels::HeadsView& v,
                    const kernels::MutableHeadsView& out, const kernels::MaskView& mask) const {
  const bool done = step->Do([&] {
    kernels::ThreadPool& threads = kernels::ThreadPool::Default();
    for (const kernels::AttentionSegment& segment : plan->segments) {
      const kernels::StoreFault fault = kernels::StoreRows(pool, segment, k, v, threads);
      if (fault.found) step->Report(Describe(fault, layer, pool));
    }
    kernels::AttentionOptions with_mask = options;
    with_mask.mask = mask;
    kernels::Attend(pool, plan->segments, q, out, with_mask, threads);
  });
  if (!done) Clear(out);
}

mx::array UpdateAndAttend(AttendJob job, const mx::array& q, const mx::array& k, const mx::array& v,
                          const std::optional<mx::array>& mask, mx::Dtype out_type) {
  std::vector<mx::array> inputs{q, k, v};
  const mx::Shape shape{1, q.shape(1), q.shape(2), v.shape(3)};
  if (mask) {
    int keys = 0;
    for (const kernels::RowRun& run : job.plan->segments.front().reads) keys += static_cast<int>(run.count);
    mx::Shape whole{1, q.shape(1), q.shape(2), keys};
    mx::array typed =
        mask->dtype() == mx::bool_ || IsRegionType(mask->dtype()) ? *mask : mx::astype(*mask, mx::float32);
    inputs.push_back(mx::broadcast_to(typed, whole));
  }
  auto primitive = std::make_shared<UpdateAndAttendPrimitive>(mx::default_stream(mx::Device::cpu), std::move(job));
  return mx::array(shape, out_type, std::move(primitive), std::move(inputs));
}

}  // namespace offgraph::bytes
