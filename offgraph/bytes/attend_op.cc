#include "offgraph/bytes/attend_op.h"

#include <mlx/allocator.h>
#include <mlx/backend/cpu/encoder.h>
#include <mlx/device.h>
#include <mlx/ops.h>
#include <mlx/primitives.h>
#include <mlx/stream.h>

#include <cstdio>
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

kernels::HeadsView ViewOf(const mx::array& x) {
  return {x.data<void>(), ToKernelType(x.dtype()), x.strides()[1], x.strides()[2]};
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
    out.set_data(mx::allocator::malloc(out.nbytes()));
    const kernels::MutableHeadsView to{out.data<void>(), ToKernelType(out.dtype()), out.strides()[1], out.strides()[2]};
    const kernels::MaskView mask = inputs.size() > 3 ? MaskOf(inputs[3]) : kernels::MaskView{};
    mx::cpu::get_command_encoder(stream()).dispatch([job = job_, q = ViewOf(inputs[0]), k = ViewOf(inputs[1]),
                                                     v = ViewOf(inputs[2]), to, mask] { job.Run(q, k, v, to, mask); });
  }
  void eval_gpu(const std::vector<mx::array>& /*inputs*/, std::vector<mx::array>& /*outputs*/) override {
    throw Error(ErrorCode::kInternal, "attention of the CPU kernels was asked to run on another device");
  }
  const char* name() const override { return "offgraph::UpdateAndAttend"; }

 private:
  AttendJob job_;
};

// The innermost axis contiguous, whatever the others are. MLX knows strides only once an array is evaluated, so the
// copy is a lazy op that does nothing where the operand is contiguous; transposes of heads and tokens are looked
// through, since the kernels take any stride there.
mx::array WithContiguousRows(const mx::array& x) {
  return mx::transpose(mx::contiguous(mx::transpose(x, {0, 2, 1, 3})), {0, 2, 1, 3});
}

}  // namespace

void AttendJob::Run(const kernels::HeadsView& q, const kernels::HeadsView& k, const kernels::HeadsView& v,
                    const kernels::MutableHeadsView& out, const kernels::MaskView& mask) const {
  kernels::ThreadPool& threads = kernels::ThreadPool::Default();
  for (const kernels::AttentionSegment& segment : plan->segments) {
    const kernels::StoreFault fault = kernels::StoreRows(pool, segment, k, v, threads);
    if (fault.found) step->Report(Describe(fault, layer, pool));
  }
  kernels::AttentionOptions with_mask = options;
  with_mask.mask = mask;
  kernels::Attend(pool, plan->segments, q, out, with_mask, threads);
}

mx::array UpdateAndAttend(AttendJob job, const mx::array& q, const mx::array& k, const mx::array& v,
                          const std::optional<mx::array>& mask, mx::Dtype out_type) {
  std::vector<mx::array> inputs{WithContiguousRows(q), WithContiguousRows(k), WithContiguousRows(v)};
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
