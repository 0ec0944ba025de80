#include "offgraph/bytes/kv_store.h"

#include <mlx/device.h>
#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "offgraph/bytes/attend_op.h"
#include "offgraph/bytes/evaluation.h"
#include "offgraph/bytes/kv_layer.h"
#include "offgraph/bytes/kv_step.h"
#include "offgraph/bytes/region.h"
#include "offgraph/cache/error.h"

namespace offgraph::bytes {
namespace {

namespace mx = mlx::core;

std::string ShapeText(const mx::array& x) {
  std::string text = "[";
  for (size_t i = 0; i < x.ndim(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(x.shape(static_cast<int>(i)));
  return text + "]";
}

LayerGeometry GeometryOf(int64_t layer, int64_t tokens, const mx::array& q, const mx::array& k, const mx::array& v) {
  const auto fail = [&](const std::string& what) {
    throw Error(ErrorCode::kInvalidArgument, "layer " + std::to_string(layer) + ": " + what + ": q " + ShapeText(q) +
                                                 ", k " + ShapeText(k) + ", v " + ShapeText(v) + ", a step of " +
                                                 std::to_string(tokens) +
                                                 " tokens; expected [1, heads, tokens, head size] for each");
  };
  for (const mx::array* x : {&q, &k, &v}) {
    if (x->ndim() != 4 || x->shape(0) != 1 || x->shape(2) != tokens) fail("a shape does not fit the step");
    if (!IsRegionType(x->dtype())) fail("a type that is none of fp32, fp16 and bf16");
  }
  if (q.shape(3) != k.shape(3)) fail("q and k differ in head size");
  if (k.shape(1) != v.shape(1)) fail("k and v differ in heads");
  return {q.shape(1), k.shape(1), k.shape(3), v.shape(3), k.dtype(), v.dtype()};
}

// Which keys each query of a segment may see, bool [T, keys]; absent where the lower-right triangle says it.
std::optional<mx::array> VisibilityMask(const cache::LayerPlan& plan) {
  const cache::SegmentPlan& segment = plan.segments.front();
  std::vector<int64_t> positions;
  for (const cache::Run& run : segment.reads) {
    for (int64_t i = 0; i < run.count; ++i) positions.push_back(run.position + i);
  }
  const auto keys = static_cast<int>(positions.size());
  const auto tokens = static_cast<int>(segment.tokens);
  std::vector<uint8_t> visible;
  visible.reserve(positions.size() * static_cast<size_t>(tokens));
  bool triangle = true;
  for (int t = 0; t < tokens; ++t) {
    const int64_t i = segment.position + t;
    for (int n = 0; n < keys; ++n) {
      const int64_t j = positions[static_cast<size_t>(n)];
      const bool sees = j <= i && (plan.window == 0 || j > i - plan.window || j < plan.sinks);
      triangle = triangle && sees == (n <= keys - tokens + t);
      visible.push_back(sees ? 1 : 0);
    }
  }
  if (triangle) return std::nullopt;
  return mx::astype(mx::array(visible.data(), {tokens, keys}, mx::uint8), mx::bool_);
}

AttendSpec SpecOf(const cache::LayerPlan& plan, KvLayer::Window window, const AttendOptions& options) {
  if (options.soft_cap > 0) {
    throw Error(ErrorCode::kUnsupported, "a soft cap on attention scores needs the CPU kernel");
  }
  const std::optional<mx::array> visible = VisibilityMask(plan);
  AttendSpec spec{std::move(window.k), std::move(window.v), MaskKind::kCausal, std::nullopt};
  if (!visible && !options.mask) {
    if (plan.segments.front().tokens == 1) spec.mask_kind = MaskKind::kNone;
    return spec;
  }
  spec.mask_kind = MaskKind::kExplicit;
  const auto tokens = static_cast<int>(plan.segments.front().tokens);
  const int keys = spec.k.shape(2);
  const mx::array shown = visible ? *visible : mx::tri(tokens, keys, keys - tokens, mx::bool_);
  if (!options.mask) {
    spec.mask = shown;
  } else if (options.mask->dtype() == mx::bool_) {
    spec.mask = mx::logical_and(shown, *options.mask);
  } else {
    const mx::array hidden(-std::numeric_limits<float>::infinity(), options.mask->dtype());
    spec.mask = mx::where(shown, *options.mask, hidden);
  }
  return spec;
}

// Whether values of type `from` may be too large for type `to`.
bool MayOverflow(mx::Dtype from, mx::Dtype to) {
  return from != to && (to == mx::float16 || (to == mx::bfloat16 && from == mx::float32));
}

// Tokens with an element that the storage type turns infinite: bool [T] for x [1, heads, T, dim].
mx::array Overflows(const mx::array& x, mx::Dtype type) {
  const mx::array elements = mx::logical_and(mx::isinf(mx::astype(x, type)), mx::logical_not(mx::isinf(x)));
  return mx::any(elements, std::vector<int>{0, 1, 3});
}

}  // namespace

struct KvStore::Impl {
  explicit Impl(const KvStoreConfig& c)
      : config(c),
        fused(c.fused && mx::default_device() == mx::Device::cpu),
        sequences(c.cache),
        layers(static_cast<size_t>(c.cache.n_layers)) {}

  // A check of an array pool that waits for the end of the step.
  struct PendingCheck {
    int64_t layer;
    bool in_v;
    mx::Dtype type;
    mx::array overflows;  // bool [T]
  };

  KvStoreConfig config;
  bool fused;  // decided once: a layer's pools are of one kind
  cache::SequenceCache sequences;
  std::vector<std::optional<KvLayer>> layers;
  std::shared_ptr<KvStep> step;
  std::vector<PendingCheck> checks;
  int64_t reserved = 0;
  int64_t peak = 0;

  KvLayer& LayerFor(int64_t layer, const LayerGeometry& geometry);
  void Grow(int64_t layer, KvLayer& pools);
  void Account(int64_t before, int64_t after, int64_t while_growing) {
    peak = std::max(peak, reserved + while_growing - before);
    reserved += after - before;
    peak = std::max(peak, reserved);
  }
  AttendJob JobFor(int64_t layer, const LayerGeometry& geometry, const AttendOptions& options);
  std::optional<std::string> ArrayFault() const;
  void CheckComputed() const;
  void End();
};

KvLayer& KvStore::Impl::LayerFor(int64_t layer, const LayerGeometry& geometry) {
  if (layer < 0 || layer >= static_cast<int64_t>(layers.size())) {
    throw Error(ErrorCode::kInvalidArgument,
                "layer " + std::to_string(layer) + "; the cache has layers 0 to " + std::to_string(layers.size() - 1));
  }
  if (step == nullptr) {
    throw Error(ErrorCode::kInvalidArgument, "layer " + std::to_string(layer) + " attends, and no step is open");
  }
  std::optional<KvLayer>& slot = layers[static_cast<size_t>(layer)];
  if (slot) {
    slot->CheckGeometry(geometry);
  } else {
    KvStoreConfig with_path = config;
    with_path.fused = fused;
    slot.emplace(layer, sequences.MaxRows(layer), with_path, geometry);
  }
  Grow(layer, *slot);
  return *slot;
}

void KvStore::Impl::Grow(int64_t layer, KvLayer& pools) {
  const int64_t needed = step->plan().layer(layer).rows_needed;
  if (needed <= pools.rows()) return;
  const int64_t before = pools.held();
  int64_t target = pools.GrowthTarget(needed, config.initial_capacity);
  const auto exceeds = [&](int64_t rows) {
    return config.memory_limit > 0 && reserved - before + pools.BytesFor(rows) > config.memory_limit;
  };
  if (exceeds(target)) target = needed;
  if (exceeds(target)) {
    throw Error(ErrorCode::kOutOfMemory,
                "layer " + std::to_string(layer) + " needs " + std::to_string(pools.BytesFor(needed)) +
                    " bytes of KV cache; the pools hold " + std::to_string(reserved) + " of at most " +
                    std::to_string(config.memory_limit) + " bytes. Raise the limit, or clear or shorten the sequence");
  }
  if (fused) {
    try {
      pools.GrowHost(target);
    } catch (const Error& error) {
      Account(before, pools.held(), pools.held());  // one of the two pools may have grown
      throw Error(error.code(), "layer " + std::to_string(layer) + ": " + error.what() + "; the pools hold " +
                                    std::to_string(reserved) + " bytes");
    }
    Account(before, pools.held(), pools.held());
  } else {
    pools.GrowArrays(target);
    Account(before, pools.held(), before + pools.held());  // the old array lives until the new one is written
  }
}

AttendJob KvStore::Impl::JobFor(int64_t layer, const LayerGeometry& geometry, const AttendOptions& options) {
  KvLayer& pools = LayerFor(layer, geometry);
  step->Expect();
  AttendJob job{.step = step, .plan = step->PlanOf(layer), .pool = pools.HostPool(), .options = {}, .layer = layer};
  job.options.n_heads = geometry.n_heads;
  job.options.scale = options.scale;
  job.options.soft_cap = options.soft_cap;
  job.options.round_to_bf16 = options.round_to_bf16;
  job.options.window = job.plan->window;
  job.options.sinks = job.plan->sinks;
  return job;
}

// The first value, if any, that an array pool could not hold.
std::optional<std::string> KvStore::Impl::ArrayFault() const {
  for (const PendingCheck& check : checks) {
    mx::array first = mx::argmax(check.overflows);
    mx::array found = mx::any(check.overflows);
    mx::eval(first, found);
    if (!found.item<bool>()) continue;
    const int64_t position = step->plan().layer(check.layer).segments.front().position + first.item<uint32_t>();
    const bool is_fp16 = check.type == mx::float16;
    return "layer " + std::to_string(check.layer) + ", position " + std::to_string(position) + ": " +
           (check.in_v ? "V" : "K") + " holds a value that a cache in " + (is_fp16 ? "fp16" : "bf16") +
           " cannot store; use " + (is_fp16 ? "bf16 or fp32" : "fp32");
  }
  return std::nullopt;
}

// Throws what keeps the open step from being committed.
void KvStore::Impl::CheckComputed() const {
  if (const int64_t unfinished = step->unfinished(); unfinished > 0) {
    throw Error(ErrorCode::kInvalidArgument, "the results of " + std::to_string(unfinished) +
                                                 " calls of Attend or Prepare were not evaluated before "
                                                 "Commit, so that their rows are not stored; the step is abandoned");
  }
  std::optional<std::string> fault = step->fault();
  if (!fault) fault = ArrayFault();
  if (fault) throw Error(ErrorCode::kOutOfRange, *fault);
}

void KvStore::Impl::End() {
  step->Close();
  step.reset();
  checks.clear();
}

KvStore::KvStore(const KvStoreConfig& config) {
  if (config.initial_capacity <= 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "initial_capacity is " + std::to_string(config.initial_capacity) + "; expected more than 0");
  }
  if (config.memory_limit < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "memory_limit is " + std::to_string(config.memory_limit) + "; expected 0 (none) or more");
  }
  impl_ = std::make_unique<Impl>(config);
}
KvStore::~KvStore() { Abandon(); }

const KvStoreConfig& KvStore::config() const { return impl_->config; }
const cache::SequenceCache& KvStore::sequences() const { return impl_->sequences; }
bool KvStore::fused() const { return impl_->fused; }

std::shared_ptr<const cache::StepPlan> KvStore::Begin(std::span<const cache::StepRequest> requests) {
  std::shared_ptr<const cache::StepPlan> plan = impl_->sequences.Begin(requests);
  try {
    impl_->step = std::make_shared<KvStep>(plan);
  } catch (...) {
    impl_->sequences.Abandon();
    throw;
  }
  return plan;
}

void KvStore::Commit() {
  if (impl_->step == nullptr) throw Error(ErrorCode::kInvalidArgument, "commit, and no step is open");
  try {
    impl_->CheckComputed();
  } catch (...) {
    Abandon();
    throw;
  }
  for (std::optional<KvLayer>& layer : impl_->layers) {
    if (layer) layer->KeepArrays();
  }
  impl_->sequences.Commit();
  impl_->End();
}

void KvStore::Abandon() noexcept {
  impl_->sequences.Abandon();
  if (impl_->step == nullptr) return;
  if (!impl_->fused) WaitForEvaluation();  // of arrays that are about to be taken back
  for (std::optional<KvLayer>& layer : impl_->layers) {
    if (layer) layer->RestoreArrays();
  }
  impl_->End();
}

std::variant<mx::array, AttendSpec> KvStore::Attend(int64_t layer, const mx::array& q, const mx::array& k,
                                                    const mx::array& v, const AttendOptions& options) {
  const int64_t tokens = impl_->step == nullptr ? 0 : impl_->step->plan().tokens();
  if (impl_->step == nullptr) impl_->LayerFor(layer, {});  // says what is wrong
  const LayerGeometry geometry = GeometryOf(layer, tokens, q, k, v);
  if (options.mask && layer >= 0 && layer < impl_->sequences.n_layers() &&
      impl_->step->plan().layer(layer).segments.size() > 1) {
    throw Error(ErrorCode::kUnsupported,
                "layer " + std::to_string(layer) + ": an explicit mask in a step of several sequences; expected one");
  }
  if (impl_->fused) {
    const mx::Dtype wanted = options.out_dtype.value_or(q.dtype());
    const mx::Dtype written = IsRegionType(wanted) ? wanted : mx::float32;
    mx::array out = UpdateAndAttend(impl_->JobFor(layer, geometry, options), q, k, v, options.mask, written);
    return written == wanted ? out : mx::astype(out, wanted);
  }
  KvLayer& pools = impl_->LayerFor(layer, geometry);
  for (const bool in_v : {false, true}) {
    const mx::array& x = in_v ? v : k;
    const mx::Dtype type = in_v ? pools.v_type() : pools.k_type();
    if (MayOverflow(x.dtype(), type)) impl_->checks.push_back({layer, in_v, type, Overflows(x, type)});
  }
  const cache::LayerPlan& plan = impl_->step->plan().layer(layer);
  return SpecOf(plan, pools.UpdateArrays(plan, k, v), options);
}

LayerAttend KvStore::Prepare(int64_t layer, const LayerGeometry& geometry, const AttendOptions& options) {
  return [job = impl_->JobFor(layer, geometry, options)](
             const kernels::HeadsView& q, const kernels::HeadsView& k, const kernels::HeadsView& v,
             const kernels::MutableHeadsView& out) { job.Run(q, k, v, out, {}); };
}

void KvStore::Rewind(int64_t length, cache::SequenceId sequence) { impl_->sequences.Rewind(length, sequence); }
void KvStore::Clear(cache::SequenceId sequence) { impl_->sequences.Clear(sequence); }

void KvStore::Release() {
  if (impl_->step != nullptr) {
    throw Error(ErrorCode::kInvalidArgument, "release while a step is open; commit or abandon it first");
  }
  impl_->sequences.Clear();
  for (std::optional<KvLayer>& layer : impl_->layers) {
    if (layer) layer->Release();
  }
  impl_->reserved = 0;
}

MemoryInfo KvStore::memory() const {
  MemoryInfo info{.in_use = 0, .reserved = impl_->reserved, .peak = impl_->peak};
  const int64_t length = impl_->sequences.length();
  for (size_t i = 0; i < impl_->layers.size(); ++i) {
    const std::optional<KvLayer>& layer = impl_->layers[i];
    if (!layer) continue;
    info.in_use += std::min(length, impl_->sequences.MaxRows(static_cast<int64_t>(i))) * layer->row_bytes();
  }
  return info;
}

}  // namespace offgraph::bytes
