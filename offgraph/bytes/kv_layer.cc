#include "offgraph/bytes/kv_layer.h"

#include <mlx/ops.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "offgraph/bytes/evaluation.h"
#include "offgraph/bytes/region.h"
#include "offgraph/cache/error.h"

namespace offgraph::bytes {
namespace {

namespace mx = mlx::core;

mx::Dtype StorageType(KvType type, mx::Dtype incoming, const std::string& what) {
  switch (type) {
    case KvType::kFloat32:
      return mx::float32;
    case KvType::kFloat16:
      return mx::float16;
    case KvType::kBFloat16:
      return mx::bfloat16;
    case KvType::kSame:
      break;
  }
  if (!IsRegionType(incoming)) {
    throw Error(ErrorCode::kInvalidArgument,
                what + " comes in a type that a cache cannot hold; fp32, fp16 or bf16 can");
  }
  return incoming;
}

// Bytes of one row, checked against overflow for `rows` of them.
int64_t CheckedBytes(int64_t heads, int64_t dim, mx::Dtype type, int64_t rows, const std::string& what) {
  int64_t bytes = mx::size_of(type);
  if (__builtin_mul_overflow(bytes, heads, &bytes) || __builtin_mul_overflow(bytes, dim, &bytes) ||
      __builtin_mul_overflow(bytes, rows, &bytes)) {
    throw Error(ErrorCode::kOutOfMemory, what + ": " + std::to_string(rows) + " rows of " + std::to_string(heads) +
                                             " heads of " + std::to_string(dim) +
                                             " are more bytes than can be counted");
  }
  return bytes;
}

size_t Unsigned(int64_t n) { return static_cast<size_t>(n); }

// pool[run.row, run.row + run.count) = rows[from, from + run.count)
mx::array Write(const mx::array& pool, const mx::array& rows, const cache::Run& run, int from) {
  mx::Shape begin{from, 0, 0};
  mx::Shape end = rows.shape();
  end[0] = from + static_cast<int>(run.count);
  const mx::array part = mx::astype(mx::slice(rows, begin, end), pool.dtype());
  mx::Shape to = pool.shape();
  to[0] = static_cast<int>(run.row + run.count);
  return mx::slice_update(pool, part, {static_cast<int>(run.row), 0, 0}, to);
}

// [1, heads, T, dim] -> [T, heads, dim]
mx::array AsRows(const mx::array& x) { return mx::transpose(mx::squeeze(x, 0), {1, 0, 2}); }

mx::array Read(const mx::array& pool, const std::vector<cache::Run>& runs) {
  std::vector<mx::array> parts;
  for (const cache::Run& run : runs) {
    mx::Shape end = pool.shape();
    end[0] = static_cast<int>(run.row + run.count);
    parts.push_back(mx::slice(pool, {static_cast<int>(run.row), 0, 0}, end));
  }
  const mx::array rows = parts.size() == 1 ? parts[0] : mx::concatenate(std::move(parts), 0);
  return mx::expand_dims(mx::transpose(rows, {1, 0, 2}), 0);
}

mx::array Grown(const std::optional<mx::array>& pool, int64_t rows, int64_t heads, int64_t dim, mx::Dtype type) {
  const int64_t held = pool ? pool->shape(0) : 0;
  const mx::Shape more{static_cast<int>(rows - held), static_cast<int>(heads), static_cast<int>(dim)};
  const mx::array fresh = mx::zeros(more, type);
  return pool ? mx::concatenate({*pool, fresh}, 0) : fresh;
}

}  // namespace

KvLayer::KvLayer(int64_t layer, int64_t max_rows, const KvStoreConfig& config, const LayerGeometry& geometry)
    : layer_(layer),
      max_rows_(max_rows),
      geometry_(geometry),
      k_type_(StorageType(config.k_type, geometry.k_type, "K of layer " + std::to_string(layer))),
      v_type_(StorageType(config.v_type, geometry.v_type, "V of layer " + std::to_string(layer))) {
  const std::string what = "layer " + std::to_string(layer);
  for (const auto& [value, name] : {std::pair(geometry.n_heads, "heads"),
                                    {geometry.n_kv_heads, "kv heads"},
                                    {geometry.k_dim, "values in a head of K"},
                                    {geometry.v_dim, "values in a head of V"}}) {
    if (value <= 0) throw Error(ErrorCode::kInvalidArgument, what + " has " + std::to_string(value) + " " + name);
  }
  if (geometry.n_heads % geometry.n_kv_heads != 0) {
    throw Error(ErrorCode::kInvalidArgument, what + " has " + std::to_string(geometry.n_heads) +
                                                 " heads, which is no multiple of its " +
                                                 std::to_string(geometry.n_kv_heads) + " kv heads");
  }
  const int64_t k_bytes = CheckedBytes(geometry.n_kv_heads, geometry.k_dim, k_type_, max_rows, what);
  const int64_t v_bytes = CheckedBytes(geometry.n_kv_heads, geometry.v_dim, v_type_, max_rows, what);
  if (!config.fused) return;
  k_memory_ = HostMemory(Unsigned(k_bytes));
  v_memory_ = HostMemory(Unsigned(v_bytes));
}

void KvLayer::CheckGeometry(const LayerGeometry& geometry) const {
  const auto check = [&](int64_t actual, int64_t expected, const char* name) {
    if (actual == expected) return;
    throw Error(ErrorCode::kInvalidArgument, "layer " + std::to_string(layer_) + ": " + std::to_string(actual) + " " +
                                                 name + "; the layer's earlier steps had " + std::to_string(expected));
  };
  check(geometry.n_heads, geometry_.n_heads, "heads");
  check(geometry.n_kv_heads, geometry_.n_kv_heads, "kv heads");
  check(geometry.k_dim, geometry_.k_dim, "values in a head of K");
  check(geometry.v_dim, geometry_.v_dim, "values in a head of V");
  if (geometry.k_type != geometry_.k_type || geometry.v_type != geometry_.v_type) {
    throw Error(ErrorCode::kInvalidArgument,
                "layer " + std::to_string(layer_) + ": K or V come in another type than in the layer's earlier steps");
  }
}

int64_t KvLayer::row_bytes() const {
  return geometry_.n_kv_heads * (geometry_.k_dim * static_cast<int64_t>(mx::size_of(k_type_)) +
                                 geometry_.v_dim * static_cast<int64_t>(mx::size_of(v_type_)));
}

int64_t KvLayer::held() const {
  if (arrays_) return rows_ * row_bytes();
  return static_cast<int64_t>(k_memory_.size() + v_memory_.size());
}

int64_t KvLayer::BytesFor(int64_t rows) const {
  if (k_memory_.data() == nullptr) return rows * row_bytes();
  const int64_t k = geometry_.n_kv_heads * geometry_.k_dim * static_cast<int64_t>(mx::size_of(k_type_)) * rows;
  const int64_t v = geometry_.n_kv_heads * geometry_.v_dim * static_cast<int64_t>(mx::size_of(v_type_)) * rows;
  return static_cast<int64_t>(HostMemory::RoundToPages(Unsigned(k)) + HostMemory::RoundToPages(Unsigned(v)));
}

int64_t KvLayer::GrowthTarget(int64_t needed, int64_t initial) const {
  const int64_t doubled = rows_ > max_rows_ / 2 ? max_rows_ : std::max(initial, rows_ * 2);
  return std::min(max_rows_, std::max(needed, doubled));
}

void KvLayer::GrowHost(int64_t rows) {
  k_memory_.Grow(Unsigned(rows * geometry_.n_kv_heads * geometry_.k_dim) * mx::size_of(k_type_));
  v_memory_.Grow(Unsigned(rows * geometry_.n_kv_heads * geometry_.v_dim) * mx::size_of(v_type_));
  rows_ = rows;
}

void KvLayer::GrowArrays(int64_t rows) {
  if (rows > std::numeric_limits<mx::ShapeElem>::max()) {
    throw Error(ErrorCode::kOutOfMemory, "layer " + std::to_string(layer_) + ": " + std::to_string(rows) +
                                             " rows are more than an MLX array can have");
  }
  const bool grows = arrays_.has_value();
  const auto k = grows ? std::optional(arrays_->k) : std::nullopt;
  const auto v = grows ? std::optional(arrays_->v) : std::nullopt;
  arrays_ = Arrays{Grown(k, rows, geometry_.n_kv_heads, geometry_.k_dim, k_type_),
                   Grown(v, rows, geometry_.n_kv_heads, geometry_.v_dim, v_type_)};
  if (grows) {
    ++k_updates_;
    ++v_updates_;
  }
  rows_ = rows;
}

void KvLayer::Release() {
  k_memory_.Release();
  v_memory_.Release();
  arrays_.reset();
  KeepArrays();
  rows_ = 0;
}

kernels::KvPool KvLayer::HostPool() const {
  return {.k = k_memory_.data(),
          .v = v_memory_.data(),
          .k_type = ToKernelType(k_type_),
          .v_type = ToKernelType(v_type_),
          .n_kv_heads = geometry_.n_kv_heads,
          .k_dim = geometry_.k_dim,
          .v_dim = geometry_.v_dim};
}

KvLayer::Window KvLayer::UpdateArrays(const cache::LayerPlan& plan, const mx::array& k, const mx::array& v) {
  if (plan.segments.size() != 1) {
    throw Error(ErrorCode::kUnsupported, "layer " + std::to_string(layer_) + ": a step of " +
                                             std::to_string(plan.segments.size()) +
                                             " sequences needs the CPU kernel; expected one");
  }
  const mx::array k_rows = AsRows(k);
  const mx::array v_rows = AsRows(v);
  const cache::SegmentPlan& segment = plan.segments.front();
  auto from = static_cast<int>(segment.token_offset);
  for (const cache::Run& run : segment.writes) {
    arrays_->k = Write(arrays_->k, k_rows, run, from);
    ++k_updates_;
    arrays_->v = Write(arrays_->v, v_rows, run, from);
    ++v_updates_;
    from += static_cast<int>(run.count);
  }
  return {Read(arrays_->k, segment.reads), Read(arrays_->v, segment.reads)};
}

void KvLayer::RestoreArrays() {
  if (!arrays_) return;
  arrays_->k = NewestComputed(arrays_->k, k_updates_);
  arrays_->v = NewestComputed(arrays_->v, v_updates_);
  KeepArrays();
  rows_ = std::min(arrays_->k.shape(0), arrays_->v.shape(0));
}

void KvLayer::KeepArrays() { k_updates_ = v_updates_ = 0; }

}  // namespace offgraph::bytes
