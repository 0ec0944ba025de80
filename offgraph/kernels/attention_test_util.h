// Random attention problems for the tests: a history of tokens, the layouts that may hold it, and what attention is by
// its definition, in double precision.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "offgraph/kernels/attention.h"
#include "offgraph/kernels/linear_test_util.h"

namespace offgraph::kernels::test {

// A dense tensor [n0, n1, n2] of any element type.
class Tensor {
 public:
  Tensor(int64_t n0, int64_t n1, int64_t n2, DType type)
      : n1_(n1), n2_(n2), type_(type), bytes_(static_cast<size_t>(n0 * n1 * n2) * SizeOf(type), 0xFF) {}

  void Fill(std::mt19937& random, double deviation) {
    std::normal_distribution<double> normal(0, deviation);
    const auto count = static_cast<int64_t>(bytes_.size() / SizeOf(type_));
    for (int64_t i = 0; i < count; ++i) ToBits(type_, normal(random), At(i));
  }
  double Get(int64_t i0, int64_t i1, int64_t i2) const { return FromBits(type_, At(Index(i0, i1, i2))); }
  void Set(int64_t i0, int64_t i1, int64_t i2, double value) { ToBits(type_, value, At(Index(i0, i1, i2))); }
  uint8_t* At(int64_t i) { return bytes_.data() + i * static_cast<int64_t>(SizeOf(type_)); }
  const uint8_t* At(int64_t i) const { return bytes_.data() + i * static_cast<int64_t>(SizeOf(type_)); }
  int64_t Index(int64_t i0, int64_t i1, int64_t i2) const { return (i0 * n1_ + i1) * n2_ + i2; }
  DType type() const { return type_; }
  int64_t n1() const { return n1_; }
  int64_t n2() const { return n2_; }

 private:
  int64_t n1_;
  int64_t n2_;
  DType type_;
  std::vector<uint8_t> bytes_;
};

// Shapes, types and options of a problem.
struct Shape {
  int64_t n_heads = 4;
  int64_t n_kv_heads = 2;
  int64_t k_dim = 16;
  int64_t v_dim = 16;
  DType in_type = DType::kFloat32;  // of q, k and v as they come
  DType k_type = DType::kFloat32;   // as stored
  DType v_type = DType::kFloat32;
  DType out_type = DType::kFloat32;
  bool causal = true;
  int64_t window = 0;
  int64_t sinks = 0;
  float soft_cap = 0;
  bool round_to_bf16 = false;
};

inline AttentionOptions OptionsOf(const Shape& shape) {
  return {.n_heads = shape.n_heads,
          .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.k_dim))),
          .soft_cap = shape.soft_cap,
          .causal = shape.causal,
          .window = shape.window,
          .sinks = shape.sinks,
          .round_to_bf16 = shape.round_to_bf16};
}

// q, k, v of a whole sequence, token-major: [length, heads, dim].
struct Sequence {
  Tensor q;
  Tensor k;
  Tensor v;
  int64_t length;

  Sequence(const Shape& shape, int64_t tokens, std::mt19937& random)
      : q(tokens, shape.n_heads, shape.k_dim, shape.in_type),
        k(tokens, shape.n_kv_heads, shape.k_dim, shape.in_type),
        v(tokens, shape.n_kv_heads, shape.v_dim, shape.in_type),
        length(tokens) {
    q.Fill(random, 1.5);
    k.Fill(random, 1.5);
    v.Fill(random, 1.0);
  }
};

// Tokens [first, ...) of a token-major tensor.
inline HeadsView ViewFrom(const Tensor& tensor, int64_t first) {
  return {.data = tensor.At(tensor.Index(first, 0, 0)),
          .type = tensor.type(),
          .head_stride = tensor.n2(),
          .token_stride = tensor.n1() * tensor.n2()};
}
inline MutableHeadsView MutableViewFrom(Tensor& tensor, int64_t first) {
  return {.data = tensor.At(tensor.Index(first, 0, 0)),
          .type = tensor.type(),
          .head_stride = tensor.n2(),
          .token_stride = tensor.n1() * tensor.n2()};
}

// A layer's pool. Rows start as NaN in every type, so that a row which was never written shows where it is used.
class Pool {
 public:
  Pool(const Shape& shape, int64_t rows)
      : k_(rows, shape.n_kv_heads, shape.k_dim, shape.k_type), v_(rows, shape.n_kv_heads, shape.v_dim, shape.v_type) {}
  KvPool View() {
    return {.k = k_.At(0),
            .v = v_.At(0),
            .k_type = k_.type(),
            .v_type = v_.type(),
            .n_kv_heads = k_.n1(),
            .k_dim = k_.n2(),
            .v_dim = v_.n2()};
  }
  Tensor& k() { return k_; }
  Tensor& v() { return v_; }

 private:
  Tensor k_;
  Tensor v_;
};

// Runs for positions [begin, end) where position p lies in row_of[p].
inline std::vector<RowRun> RunsOf(const std::vector<int64_t>& row_of, int64_t begin, int64_t end) {
  std::vector<RowRun> runs;
  for (int64_t p = begin; p < end; ++p) {
    const int64_t row = row_of[static_cast<size_t>(p)];
    if (!runs.empty() && runs.back().row + runs.back().count == row && runs.back().position + runs.back().count == p) {
      ++runs.back().count;
    } else {
      runs.push_back({.row = row, .count = 1, .position = p});
    }
  }
  return runs;
}

inline bool Sees(const Shape& shape, int64_t query, int64_t key) {
  if (shape.causal && key > query) return false;
  return shape.window == 0 || key > query - shape.window || key < shape.sinks;
}

// What the definition gives for one query, and a bound for the error of fp32 arithmetic.
struct Expected {
  std::vector<double> out;
  double tolerance = 0;
};

// The bound. With u = 2^-24: a dot product of n terms and its scale err by (n + 2) u sum|q k| scale; the soft cap and
// the mask add some ulps of the score. A weight's relative error is that of its exponent, the difference to the
// maximum included, plus 2 ulps of the exponential. The weighted sum over n keys and the normalisation add
// (2 n + 8 blocks + 8) u. Both the sum and the normaliser carry the weights' error: twice. Where factors may be rounded
// to bf16, each adds 2^-9 of itself: a query and a key to their product, a weight and a value to theirs.
inline Expected Reference(const Shape& shape, const Sequence& sequence, Pool& pool, const std::vector<int64_t>& row_of,
                          int64_t query, int64_t head, int64_t keys,
                          const std::vector<double>& bias = std::vector<double>()) {
  constexpr double kRoundOff = 0x1p-24;
  const double factors = shape.round_to_bf16 ? 2 * 0x1p-9 + 0x1p-18 : 0;
  const double scale = OptionsOf(shape).scale;
  const int64_t kv_head = head / (shape.n_heads / shape.n_kv_heads);
  std::vector<double> scores(static_cast<size_t>(keys), -std::numeric_limits<double>::infinity());
  double max = -std::numeric_limits<double>::infinity();
  double exponent_error = 0;
  int64_t seen = 0;
  for (int64_t j = 0; j < keys; ++j) {
    if (!Sees(shape, query, j)) continue;
    double score = 0;
    double magnitude = 0;
    for (int64_t d = 0; d < shape.k_dim; ++d) {
      const double product = sequence.q.Get(query, head, d) * pool.k().Get(row_of[static_cast<size_t>(j)], kv_head, d);
      score += product;
      magnitude += std::abs(product);
    }
    score *= scale;
    double error = ((static_cast<double>(shape.k_dim) + 2) * kRoundOff + factors) * magnitude * scale;
    if (shape.soft_cap > 0) {
      score = shape.soft_cap * std::tanh(score / shape.soft_cap);
      error += 16 * kRoundOff * shape.soft_cap;
    }
    if (!bias.empty()) score += bias[static_cast<size_t>(j)];
    if (score == -std::numeric_limits<double>::infinity()) continue;
    error += 4 * kRoundOff * std::abs(score);
    scores[static_cast<size_t>(j)] = score;
    max = std::max(max, score);
    exponent_error = std::max(exponent_error, error);
    ++seen;
  }
  Expected expected{.out = std::vector<double>(static_cast<size_t>(shape.v_dim), 0.0)};
  if (seen == 0) return expected;
  double sum = 0;
  double greatest_value = 0;
  for (int64_t j = 0; j < keys; ++j) {
    const double weight = std::exp(scores[static_cast<size_t>(j)] - max);
    if (weight == 0) continue;
    sum += weight;
    for (int64_t d = 0; d < shape.v_dim; ++d) {
      const double value = pool.v().Get(row_of[static_cast<size_t>(j)], kv_head, d);
      expected.out[static_cast<size_t>(d)] += weight * value;
      greatest_value = std::max(greatest_value, std::abs(value));
    }
  }
  for (double& value : expected.out) value /= sum;
  const double blocks = static_cast<double>(keys) / kAttentionBlock + 1;
  const double weight_error = 2 * exponent_error + 4 * kRoundOff;
  const double sum_error = (2 * static_cast<double>(seen) + 8 * blocks + 8) * kRoundOff;
  expected.tolerance =
      (2 * weight_error + sum_error + factors) * greatest_value + HalfUlp(shape.out_type, greatest_value);
  return expected;
}

}  // namespace offgraph::kernels::test
