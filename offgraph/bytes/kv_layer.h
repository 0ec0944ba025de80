// KvLayer: the pools of one layer, K and V, in host memory or as MLX arrays.
#pragma once

#include <mlx/array.h>

#include <cstdint>
#include <optional>
#include <string>

#include "offgraph/bytes/host_memory.h"
#include "offgraph/bytes/kv_store.h"
#include "offgraph/cache/step_plan.h"
#include "offgraph/kernels/attention.h"

namespace offgraph::bytes {

class KvLayer {
 public:
  // `max_rows`: rows of the pools when they are full. Takes no memory.
  KvLayer(int64_t layer, int64_t max_rows, const KvStoreConfig& config, const LayerGeometry& geometry);

  const LayerGeometry& geometry() const { return geometry_; }
  mlx::core::Dtype k_type() const { return k_type_; }
  mlx::core::Dtype v_type() const { return v_type_; }
  // Throws Error(kInvalidArgument) where a node's sizes are others than those of the layer's first step.
  void CheckGeometry(const LayerGeometry& geometry) const;

  int64_t row_bytes() const;
  // Bytes that the pools hold now.
  int64_t held() const;
  // Bytes that they would hold with `rows` rows.
  int64_t BytesFor(int64_t rows) const;
  int64_t rows() const { return rows_; }
  // The rows to grow to, where `needed` must exist: doubling, from the initial capacity to the maximum.
  int64_t GrowthTarget(int64_t needed, int64_t initial) const;

  // REQUIRES: rows <= max_rows.
  void GrowHost(int64_t rows);
  void GrowArrays(int64_t rows);
  void Release();

  // REQUIRES: grown by GrowHost.
  kernels::KvPool HostPool() const;

  // Writes a step's rows into the arrays, and returns K and V [1, n_kv_heads, keys, dim] of what may be read.
  //   k [1, n_kv_heads, T, k_dim]   v [1, n_kv_heads, T, v_dim]
  struct Window {
    mlx::core::array k;
    mlx::core::array v;
  };
  Window UpdateArrays(const cache::LayerPlan& plan, const mlx::core::array& k, const mlx::core::array& v);
  // After a step: what GrowArrays and UpdateArrays put into the graph stays, or, as far as it was not evaluated, is
  // taken back (evaluated rows stay: they are rows that the step was to write, which nobody reads).
  void RestoreArrays();
  void KeepArrays();

 private:
  int64_t layer_;
  int64_t max_rows_;
  LayerGeometry geometry_;
  mlx::core::Dtype k_type_;
  mlx::core::Dtype v_type_;
  int64_t rows_ = 0;
  HostMemory k_memory_;
  HostMemory v_memory_;
  struct Arrays {
    mlx::core::array k;  // [rows, n_kv_heads, k_dim]
    mlx::core::array v;
  };
  std::optional<Arrays> arrays_;
  // Ops put on top of the arrays since the last Keep or Restore. Nothing else refers to the arrays below, so that MLX
  // may update them in place.
  int64_t k_updates_ = 0;
  int64_t v_updates_ = 0;
};

}  // namespace offgraph::bytes
