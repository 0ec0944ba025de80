#include "offgraph/kernels/rows.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "offgraph/kernels/rows.cc"
#include "offgraph/kernels/isa.h"
// The instruction sets come before what is compiled for each.
#include <hwy/foreach_target.h>
// Highway's macros want to come first.
#include "offgraph/kernels/activation-inl.h"
#include "offgraph/kernels/dtype-inl.h"
#include "offgraph/kernels/rows_job.h"

HWY_BEFORE_NAMESPACE();
namespace offgraph::kernels::HWY_NAMESPACE {

// Calls body(i, load, store) over [0, dim) a vector at a time; the last one may be partial: it is loaded with zeros
// behind the end, and only its part is stored.
struct Lanes {
  size_t count;  // lanes that exist
  HWY_INLINE F32V Load(const float* p) const {
    return count == kLanes ? hn::LoadU(F32(), p) : hn::MaskedLoad(hn::FirstN(F32(), count), F32(), p);
  }
  HWY_INLINE void Store(F32V v, float* p) const {
    if (count == kLanes) {
      hn::StoreU(v, F32(), p);
    } else {
      hn::BlendedStore(v, hn::FirstN(F32(), count), F32(), p);
    }
  }
};
template <class Body>
HWY_INLINE void ForLanes(int64_t dim, const Body& body) {
  const auto lanes = static_cast<int64_t>(kLanes);
  int64_t i = 0;
  for (; i + lanes <= dim; i += lanes) body(i, Lanes{kLanes});
  if (i < dim) body(i, Lanes{static_cast<size_t>(dim - i)});
}

// A sum over dim in a fixed order: one partial sum for each lane, then Highway's tree over the lanes.
template <class Term>
HWY_INLINE float Sum(int64_t dim, const Term& term) {
  F32V sum = hn::Zero(F32());
  ForLanes(dim, [&](int64_t i, Lanes lanes) { sum = hn::Add(sum, term(i, lanes)); });
  return hn::GetLane(hn::SumOfLanes(F32(), sum));
}

template <DType kRound>
void NormalizeHead(const NormJob& job, const float* x, float* out) {
  const F32 d;
  const auto dim = static_cast<float>(job.x.dim);
  float mean = 0;
  if (job.center) {
    mean = Sum(job.x.dim, [&](int64_t i, Lanes lanes) { return lanes.Load(x + i); }) / dim;
  }
  const F32V vmean = hn::Set(d, mean);
  const float square = Sum(job.x.dim, [&](int64_t i, Lanes lanes) {
    // Lanes behind the end are zero, and must stay so after the mean is taken off.
    const F32V v = hn::IfThenElseZero(hn::FirstN(d, lanes.count), hn::Sub(lanes.Load(x + i), vmean));
    return hn::Mul(v, v);
  });
  const F32V scale = hn::Set(d, 1.0F / std::sqrt(square / dim + job.eps));
  ForLanes(job.x.dim, [&](int64_t i, Lanes lanes) {
    F32V v = Round<kRound>(hn::Mul(hn::Sub(lanes.Load(x + i), vmean), scale));
    if (job.weight != nullptr) v = Round<kRound>(hn::Mul(v, lanes.Load(job.weight + i)));
    if (job.bias != nullptr) v = Round<kRound>(hn::Add(v, lanes.Load(job.bias + i)));
    lanes.Store(v, out + i);
  });
}

template <DType kRound>
void RotateHead(const float* x, const float* cos, const float* sin, int64_t dim, float* out) {
  const int64_t half = dim / 2;
  ForLanes(half, [&](int64_t i, Lanes lanes) {
    const F32V a = lanes.Load(x + i);
    const F32V b = lanes.Load(x + half + i);
    const F32V low =
        hn::Sub(Round<kRound>(hn::Mul(a, lanes.Load(cos + i))), Round<kRound>(hn::Mul(b, lanes.Load(sin + i))));
    const F32V high = hn::Add(Round<kRound>(hn::Mul(b, lanes.Load(cos + half + i))),
                              Round<kRound>(hn::Mul(a, lanes.Load(sin + half + i))));
    lanes.Store(Round<kRound>(low), out + i);
    lanes.Store(Round<kRound>(high), out + half + i);
  });
}

template <Arithmetic kOp>
HWY_INLINE F32V CombinationOf(F32V a, F32V b) {
  if constexpr (kOp == Arithmetic::kAdd) return hn::Add(a, b);
  if constexpr (kOp == Arithmetic::kSubtract) return hn::Sub(a, b);
  if constexpr (kOp == Arithmetic::kMultiply) return hn::Mul(a, b);
  if constexpr (kOp == Arithmetic::kDivide) return hn::Div(a, b);
}

// Calls f with the enumerator as a constant.
template <class F>
HWY_INLINE void WithArithmetic(Arithmetic op, const F& f) {
  using A = Arithmetic;
  switch (op) {
    case A::kAdd:
      return f(std::integral_constant<A, A::kAdd>());
    case A::kSubtract:
      return f(std::integral_constant<A, A::kSubtract>());
    case A::kMultiply:
      return f(std::integral_constant<A, A::kMultiply>());
    case A::kDivide:
      return f(std::integral_constant<A, A::kDivide>());
  }
}

void NormRow(const NormJob& job, int64_t row) {
  WithType(job.round, [&](auto round) {
    for (int64_t h = 0; h < job.x.heads; ++h) {
      NormalizeHead<round()>(job, HeadOf(job.x, row, h), HeadOf(job.out, row, h));
    }
  });
}

void RotaryRow(const RotaryJob& job, int64_t row) {
  WithType(job.round, [&](auto round) {
    const int64_t angle = row * job.x.dim;
    for (int64_t h = 0; h < job.x.heads; ++h) {
      RotateHead<round()>(HeadOf(job.x, row, h), job.cos + angle, job.sin + angle, job.x.dim, HeadOf(job.out, row, h));
    }
  });
}

void ActivateRow(const GateJob& job, int64_t row) {
  WithType(job.round, [&](auto round) {
    WithActivation(job.activation, [&](auto activation) {
      for (int64_t h = 0; h < job.gate.heads; ++h) {
        const float* gate = HeadOf(job.gate, row, h);
        const float* up = job.gated ? HeadOf(job.up, row, h) : nullptr;
        float* out = HeadOf(job.out, row, h);
        ForLanes(job.gate.dim, [&](int64_t i, Lanes lanes) {
          F32V v = Round<round()>(ActivationOf<activation()>(lanes.Load(gate + i)));
          if (up != nullptr) v = Round<round()>(hn::Mul(v, lanes.Load(up + i)));
          lanes.Store(v, out + i);
        });
      }
    });
  });
}

void CombineRow(const CombineJob& job, int64_t row) {
  WithType(job.round, [&](auto round) {
    WithArithmetic(job.op, [&](auto op) {
      for (int64_t h = 0; h < job.out.heads; ++h) {
        const float* a = HeadOf(job.a, row, h);
        const float* b = HeadOf(job.b, row, h);
        float* out = HeadOf(job.out, row, h);
        ForLanes(job.out.dim, [&](int64_t i, Lanes lanes) {
          lanes.Store(Round<round()>(CombinationOf<op()>(lanes.Load(a + i), lanes.Load(b + i))), out + i);
        });
      }
    });
  });
}

void LoadRowAs(const ConvertJob& job, int64_t row) {
  WithType(job.type, [&](auto type) {
    const auto width = static_cast<size_t>(job.block.heads * job.block.dim);
    const auto dim = static_cast<size_t>(job.block.dim);
    const auto* from = static_cast<const uint8_t*>(job.from) + static_cast<size_t>(row) * width * SizeOf(type());
    for (int64_t h = 0; h < job.block.heads; ++h, from += dim * SizeOf(type())) {
      float* out = HeadOf(job.block, row, h);
      for (size_t i = 0; i < dim; i += kChunk) {
        const Chunk chunk = LoadChunk<type()>(from, i, dim);
        for (size_t n = 0; n < kVecsPerChunk && i + n * kLanes < dim; ++n) {
          Lanes{std::min(kLanes, dim - i - n * kLanes)}.Store(chunk.v[n], out + i + n * kLanes);
        }
      }
    }
  });
}

void SaveRowAs(const ConvertJob& job, int64_t row) {
  WithType(job.type, [&](auto type) {
    const auto width = static_cast<size_t>(job.block.heads * job.block.dim);
    const auto dim = static_cast<size_t>(job.block.dim);
    auto* to = static_cast<uint8_t*>(job.to) + static_cast<size_t>(row) * width * SizeOf(type());
    for (int64_t h = 0; h < job.block.heads; ++h, to += dim * SizeOf(type())) {
      const float* from = HeadOf(job.block, row, h);
      const size_t whole = dim / kChunk * kChunk;
      StoreRow<type()>(from, whole, to);
      if (whole == dim) continue;
      alignas(64) float tail[kChunk] = {};
      std::copy(from + whole, from + dim, tail);
      StoreRow<type()>(tail, dim - whole, to + whole * SizeOf(type()));
    }
  });
}

// out = round(round(scale * code) + bias), over one group.
void DequantizeGroup(const GroupJob& job) {
  WithType(job.round, [&](auto round) {
    const F32V scale = hn::Set(F32(), job.scale);
    const F32V bias = hn::Set(F32(), job.bias);
    ForLanes(job.count, [&](int64_t i, Lanes lanes) {
      const F32V code = lanes.Load(job.codes + i);
      lanes.Store(Round<round()>(hn::Add(Round<round()>(hn::Mul(scale, code)), bias)), job.out + i);
    });
  });
}

}  // namespace offgraph::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace offgraph::kernels {
namespace {

HWY_EXPORT(NormRow);
HWY_EXPORT(RotaryRow);
HWY_EXPORT(ActivateRow);
HWY_EXPORT(CombineRow);
HWY_EXPORT(LoadRowAs);
HWY_EXPORT(SaveRowAs);
HWY_EXPORT(DequantizeGroup);

// Calls row(r) for all rows; rows that are little work stay on this thread.
template <class Row>
void ForRows(int64_t rows, int64_t width, ThreadPool& threads, const Row& row) {
  constexpr int64_t kGrainElements = int64_t{32} * 1024;
  const auto grain = static_cast<size_t>(std::max<int64_t>(1, kGrainElements / std::max<int64_t>(width, 1)));
  threads.ParallelFor(static_cast<size_t>(rows), grain, [&](size_t begin, size_t end) {
    for (size_t r = begin; r < end; ++r) row(static_cast<int64_t>(r));
  });
}

int64_t WidthOf(const Block& block) { return block.heads * block.dim; }

float ElementOf(const MatrixView& view, int64_t row, int64_t column) {
  const int64_t i = row * view.row_stride + column * view.col_stride;
  const Block block{.heads = 1, .dim = 1};
  float value = 0;
  Block out = block;
  out.data = &value;
  const void* from = static_cast<const uint8_t*>(view.data) + static_cast<size_t>(i) * SizeOf(view.type);
  HWY_DYNAMIC_DISPATCH(LoadRowAs)({.block = out, .type = view.type, .from = from}, 0);
  return value;
}

// Code number i of a row of packed codes; see QuantizedView.
float CodeOf(const uint32_t* words, int bits, int64_t i) {
  const int64_t bit = i * bits;
  const int shift = static_cast<int>(bit % 32);
  uint64_t window = words[bit / 32];
  if (shift + bits > 32) window |= static_cast<uint64_t>(words[bit / 32 + 1]) << 32;
  return static_cast<float>(window >> shift & ((1U << bits) - 1));
}

}  // namespace

void RmsNorm(int64_t rows, const Block& x, const float* weight, float eps, DType round, const Block& out,
             ThreadPool& threads) {
  const NormJob job{.x = x, .out = out, .weight = weight, .eps = eps, .round = round};
  ForRows(rows, WidthOf(x), threads, [&](int64_t row) { HWY_DYNAMIC_DISPATCH(NormRow)(job, row); });
}

void LayerNorm(int64_t rows, const Block& x, const float* weight, const float* bias, float eps, DType round,
               const Block& out, ThreadPool& threads) {
  const NormJob job{.x = x, .out = out, .weight = weight, .bias = bias, .eps = eps, .center = true, .round = round};
  ForRows(rows, WidthOf(x), threads, [&](int64_t row) { HWY_DYNAMIC_DISPATCH(NormRow)(job, row); });
}

void Rotary(int64_t rows, const Block& x, const float* cos, const float* sin, DType round, const Block& out,
            ThreadPool& threads) {
  const RotaryJob job{.x = x, .out = out, .cos = cos, .sin = sin, .round = round};
  ForRows(rows, WidthOf(x), threads, [&](int64_t row) { HWY_DYNAMIC_DISPATCH(RotaryRow)(job, row); });
}

void Activate(int64_t rows, Activation activation, const Block& x, DType round, const Block& out, ThreadPool& threads) {
  const GateJob job{.gate = x, .out = out, .activation = activation, .round = round};
  ForRows(rows, WidthOf(x), threads, [&](int64_t row) { HWY_DYNAMIC_DISPATCH(ActivateRow)(job, row); });
}

void Gate(int64_t rows, Activation activation, const Block& gate, const Block& up, DType round, const Block& out,
          ThreadPool& threads) {
  const GateJob job{.gate = gate, .up = up, .out = out, .activation = activation, .gated = true, .round = round};
  ForRows(rows, WidthOf(gate), threads, [&](int64_t row) { HWY_DYNAMIC_DISPATCH(ActivateRow)(job, row); });
}

void Combine(int64_t rows, Arithmetic op, const Block& a, const Block& b, DType round, const Block& out,
             ThreadPool& threads) {
  const CombineJob job{.a = a, .b = b, .out = out, .op = op, .round = round};
  ForRows(rows, WidthOf(out), threads, [&](int64_t row) { HWY_DYNAMIC_DISPATCH(CombineRow)(job, row); });
}

void EmbedDense(int64_t rows, const int64_t* index, const MatrixView& table, const Block& out, ThreadPool& threads) {
  ForRows(rows, out.dim, threads, [&](int64_t row) {
    const auto first = static_cast<size_t>(index[row] * table.row_stride);
    Block to = out;
    to.data += row * out.row_stride;
    const void* from = static_cast<const uint8_t*>(table.data) + first * SizeOf(table.type);
    HWY_DYNAMIC_DISPATCH(LoadRowAs)({.block = to, .type = table.type, .from = from}, 0);
  });
}

void EmbedQuantized(int64_t rows, const int64_t* index, const QuantizedView& table, DType round, const Block& out,
                    ThreadPool& threads) {
  ForRows(rows, out.dim, threads, [&](int64_t row) {
    const uint32_t* words = table.codes + index[row] * table.code_stride;
    float* to = out.data + row * out.row_stride;
    for (int64_t i = 0; i < out.dim; i += table.group_size) {
      for (int64_t j = 0; j < table.group_size; ++j) to[i + j] = CodeOf(words, table.bits, i + j);
      const int64_t group = i / table.group_size;
      HWY_DYNAMIC_DISPATCH(DequantizeGroup)
      ({.codes = to + i,
        .out = to + i,
        .count = table.group_size,
        .scale = ElementOf(table.scales, index[row], group),
        .bias = ElementOf(table.biases, index[row], group),
        .round = round});
    }
  });
}

void LoadRows(int64_t rows, const void* data, DType type, const Block& out, ThreadPool& threads) {
  const ConvertJob job{.block = out, .type = type, .from = data};
  ForRows(rows, WidthOf(out), threads, [&](int64_t row) { HWY_DYNAMIC_DISPATCH(LoadRowAs)(job, row); });
}

void SaveRows(int64_t rows, const Block& x, void* data, DType type, ThreadPool& threads) {
  const ConvertJob job{.block = x, .type = type, .to = data};
  ForRows(rows, WidthOf(x), threads, [&](int64_t row) { HWY_DYNAMIC_DISPATCH(SaveRowAs)(job, row); });
}

}  // namespace offgraph::kernels
#endif  // HWY_ONCE
