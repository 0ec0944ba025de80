// Region: a run of per-token work and attention that executes as one MLX primitive.
//
// MLX's cost per op (graph, memory, dispatch) is about that of a small model's arithmetic. A region pays it once: it
// is a list of stages over fp32 rows in an arena of its own, each a call of a kernel.
//
// Values are fp32 [T, heads, dim] in buffers of the arena, T the step's tokens. Where the model computes in fp16 or
// bf16, each stage rounds to that type: the region computes what the ops it stands for would have computed.
//
// Thread rule: a Region is immutable and may run on several threads at a time. It is built by one thread.
#pragma once

#include <mlx/array.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "offgraph/kernels/attention.h"
#include "offgraph/kernels/dtype.h"
#include "offgraph/kernels/rows.h"

namespace offgraph::bytes {

// Part of a buffer's columns: value (t, h, i) is column `column` + h * head_stride + i of row t.
struct RegionValue {
  size_t buffer = 0;
  int64_t column = 0;
  int64_t heads = 1;
  int64_t head_stride = 0;
  int64_t dim = 0;
  int64_t width() const { return heads * dim; }
};

// Stores k and v as the step's rows and attends; made for one node of one step.
//   q [n_heads, T, k_dim]   k [n_kv_heads, T, k_dim]   v [n_kv_heads, T, v_dim]   out [n_heads, T, v_dim]
using RegionAttend = std::function<void(const kernels::HeadsView& q, const kernels::HeadsView& k,
                                        const kernels::HeadsView& v, const kernels::MutableHeadsView& out)>;
// y = x w^T over blocks of one head.
using RegionLinear =
    std::function<void(int64_t rows, const kernels::Block& x, const kernels::Block& y, kernels::ThreadPool& threads)>;
// Rows of a table.
using RegionLookup =
    std::function<void(int64_t rows, const int64_t* index, const kernels::Block& out, kernels::ThreadPool& threads)>;

// Maps MLX's floating types. REQUIRES: IsRegionType(type).
bool IsRegionType(mlx::core::Dtype type);
kernels::DType ToKernelType(mlx::core::Dtype type);

class Region {
 public:
  struct Impl;
  explicit Region(std::unique_ptr<Impl> impl);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  // The region's outputs, lazily: [1, T, width] each, or [1, T, heads, dim] for a value of several heads.
  //   inputs: as the builder was told, row-contiguous
  //   attends: one for each Attend stage, in order
  // `last_row_only`: the outputs hold their last row alone (T becomes 1); what follows the last attention is computed
  // for that row only.
  // `probe`: called before every stage, in long steps by several threads at a time; may be empty. What it throws ends
  // the evaluation, as what a stage throws does (memory may be refused).
  static std::vector<mlx::core::array> Run(const std::shared_ptr<const Region>& region, int64_t tokens,
                                           const std::vector<mlx::core::array>& inputs,
                                           std::vector<RegionAttend> attends, bool last_row_only,
                                           std::function<void()> probe = {});

  // The most floats that a token takes: what liveness left of all buffers.
  int64_t arena_width() const;

 private:
  friend class RegionPrimitive;
  std::unique_ptr<Impl> impl_;
};

// Builds a region stage by stage. Each method adds a stage and returns where its result lies.
class RegionBuilder {
 public:
  RegionBuilder();
  ~RegionBuilder();

  // Input number `input`, [..., T, heads * dim] of a floating type.
  RegionValue Load(size_t input, int64_t heads, int64_t dim);
  // Rows of a table by the integers of input number `input` [..., T]. REQUIRES: they are in range.
  RegionValue Embed(size_t input, int64_t dim, RegionLookup lookup);
  // `weight` and `bias` [dim] in fp32; empty for none. `center`: layer norm, else RMS norm.
  RegionValue Norm(const RegionValue& x, bool center, std::vector<float> weight, std::vector<float> bias, float eps,
                   kernels::DType round);
  // cos and sin: values of one head, as wide as a head of x.
  RegionValue Rotary(const RegionValue& x, const RegionValue& cos, const RegionValue& sin, kernels::DType round);
  RegionValue Activate(const RegionValue& x, kernels::Activation activation, kernels::DType round);
  RegionValue Gate(const RegionValue& gate, const RegionValue& up, kernels::Activation activation,
                   kernels::DType round);
  RegionValue Combine(const RegionValue& a, const RegionValue& b, kernels::Arithmetic op, kernels::DType round);
  // With a constant [dim] for every row and head, on the right or (`constant_first`) on the left.
  RegionValue CombineConstant(const RegionValue& a, std::vector<float> constant, bool constant_first,
                              kernels::Arithmetic op, kernels::DType round);
  // Several values side by side; all have the same heads.
  RegionValue Concatenate(const std::vector<RegionValue>& parts);
  // REQUIRES: x has one head.
  RegionValue Linear(const RegionValue& x, int64_t width, RegionLinear linear);
  RegionValue Attend(const RegionValue& q, const RegionValue& k, const RegionValue& v, kernels::DType round);
  // The next output.
  void Save(const RegionValue& x, mlx::core::Dtype type);

  std::shared_ptr<const Region> Build();

 private:
  std::unique_ptr<Region::Impl> impl_;
};

}  // namespace offgraph::bytes
