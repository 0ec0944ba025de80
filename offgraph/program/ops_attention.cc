// Attention: over tensors of the graph (SdpaNode), and over the cache outside of it (UpdateAndAttendNode).
#include <mlx/fast.h>
#include <mlx/ops.h>

#include "offgraph/cache/error.h"
#include "offgraph/program/handler.h"
#include "offgraph/program/mlx_types.h"

namespace offgraph::program {
namespace {

namespace mx = mlx::core;

// MLX takes an additive mask in a type that its result can hold.
std::optional<mx::array> MaskFor(const mx::array& q, const mx::array* mask) {
  if (mask == nullptr) return std::nullopt;
  return mask->dtype() == mx::bool_ ? *mask : mx::astype(*mask, q.dtype());
}

//   q [B, H, T, D]   k [B, Hkv, S, D]   v [B, Hkv, S, Dv]   mask broadcasts to [B, H, T, S]
Action Sdpa(const Operands& operands) {
  const bool causal = operands.Flag("causal");
  const std::optional<Tid> mask = operands.OptionalTensor("mask");
  if (causal && mask) operands.Fail("both causal and a mask; one of them is possible");
  return [q = operands.Tensor("q"), k = operands.Tensor("k"), v = operands.Tensor("v"), out = operands.Tensor("out"),
          scale = operands.Float("scale"), mask, causal](Frame& frame) {
    const mx::array& queries = frame.Get(q);
    frame.Set(out, mx::fast::scaled_dot_product_attention(queries, frame.Get(k), frame.Get(v), scale,
                                                          causal ? "causal" : "", MaskFor(queries, frame.GetIf(mask))));
  };
}

// The attention that a store without a kernel of its own asks for.
mx::array Attend(const mx::array& q, const bytes::AttendSpec& spec, float scale) {
  switch (spec.mask_kind) {
    case bytes::MaskKind::kNone:
      return mx::fast::scaled_dot_product_attention(q, spec.k, spec.v, scale);
    case bytes::MaskKind::kCausal:
      return mx::fast::scaled_dot_product_attention(q, spec.k, spec.v, scale, "causal");
    case bytes::MaskKind::kExplicit:
      return mx::fast::scaled_dot_product_attention(q, spec.k, spec.v, scale, "",
                                                    MaskFor(q, spec.mask ? &*spec.mask : nullptr));
  }
  throw Error(ErrorCode::kInternal, "a mask kind that is not known");
}

bool IsAttentionType(mx::Dtype type) { return type == mx::float32 || type == mx::float16 || type == mx::bfloat16; }

//   q [1, H, T, D]   k [1, Hkv, T, D]   v [1, Hkv, T, Dv]   out [1, H, T, Dv]
// The layer and the scale have no default: a file that lacks one is refused. An absent out_dtype keeps q's type.
Action UpdateAndAttend(const Operands& operands) {
  const int layer = operands.Int("layer_id");
  if (layer < 0) operands.Fail("layer_id " + std::to_string(layer) + " is negative");
  bytes::AttendOptions options;
  options.scale = operands.Float("scale");
  options.out_dtype = operands.OptionalType("out_dtype");
  if (options.out_dtype && !IsAttentionType(*options.out_dtype)) {
    operands.Fail("out_dtype is " + Name(FromMlx(*options.out_dtype)) + "; attention gives fp32, fp16 or bf16");
  }
  return [q = operands.Tensor("q"), k = operands.Tensor("k"), v = operands.Tensor("v"),
          position = operands.Tensor("position"), out = operands.Tensor("out"), layer, options](Frame& frame) {
    const mx::array& queries = frame.Get(q);
    if (frame.cache == nullptr) throw Error(ErrorCode::kInternal, "the step has no cache");
    if (queries.ndim() != 4 || queries.shape(0) != 1) {
      throw Error(ErrorCode::kInvalidArgument,
                  "q of shape " + ShapeText(queries.shape()) + "; expected [1, heads, T, head size]");
    }
    bytes::KvStore& store = frame.cache->Open(frame.Get(position), queries.shape(2));
    auto result = store.Attend(layer, queries, frame.Get(k), frame.Get(v), options);
    if (const auto* attended = std::get_if<mx::array>(&result)) {
      frame.Set(out, *attended);
      return;
    }
    const mx::array attended = Attend(queries, std::get<bytes::AttendSpec>(result), options.scale);
    frame.Set(out, mx::astype(attended, options.out_dtype.value_or(queries.dtype())));
  };
}

constexpr Handler kOps[] = {
    {"SdpaNode", "attention over tensors: softmax(scale q k^T + mask) v", Sdpa},
    {"UpdateAndAttendNode", "stores k and v in the cache and attends over it; layer_id and scale must be there",
     UpdateAndAttend},
};

}  // namespace

std::span<const Handler> AttentionOps() { return kOps; }

}  // namespace offgraph::program
