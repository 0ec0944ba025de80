// UpdateAndAttend as an MLX primitive over the CPU kernels.
#pragma once

#include <mlx/array.h>

#include <memory>
#include <optional>

#include "offgraph/bytes/kv_step.h"
#include "offgraph/kernels/attention.h"

namespace offgraph::bytes {

// One node of one step: where it writes and reads, and how it attends.
struct AttendJob {
  std::shared_ptr<KvStep> step;
  std::shared_ptr<const KernelPlan> plan;
  kernels::KvPool pool;
  kernels::AttentionOptions options;  // the mask is filled in when the tensor is known
  int64_t layer = 0;

  // Stores and attends. Faults go to the step. After the step ended: writes zeros to `out` and touches no pool.
  void Run(const kernels::HeadsView& q, const kernels::HeadsView& k, const kernels::HeadsView& v,
           const kernels::MutableHeadsView& out, const kernels::MaskView& mask) const;

 private:
  void Clear(const kernels::MutableHeadsView& out) const;
};

//   q [1, n_heads, T, k_dim]   k [1, n_kv_heads, T, k_dim]   v [1, n_kv_heads, T, v_dim]
//   mask broadcasts to [1, n_heads, T, keys]   result [1, n_heads, T, v_dim]
// Operands of any strides; one whose innermost axis is not contiguous is copied first.
mlx::core::array UpdateAndAttend(AttendJob job, const mlx::core::array& q, const mlx::core::array& k,
                                 const mlx::core::array& v, const std::optional<mlx::core::array>& mask,
                                 mlx::core::Dtype out_type);

}  // namespace offgraph::bytes
