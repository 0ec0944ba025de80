// Linear layers in the shapes of a small language model (SmolLM2-135M), beside what the machine could do at most.
//
// Each benchmark walks over the weights of 30 layers, so that they come from memory as they do in a model. `read` is
// the share of the memory's read bandwidth that the weights alone take, `compute` the share of the multiply-add rate.
#include <benchmark/benchmark.h>

#include <cstring>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "offgraph/kernels/limits.h"
#include "offgraph/kernels/linear.h"
#include "offgraph/kernels/packed_weights.h"
#include "offgraph/kernels/quantized.h"

namespace offgraph::kernels {
namespace {

struct Shape {
  int64_t n;
  int64_t k;
  int layers;
};
constexpr Shape kShapes[] = {{576, 576, 30}, {192, 576, 30}, {1536, 576, 30}, {576, 1536, 30}, {49152, 576, 1}};
constexpr int64_t kRows[] = {1, 16, 512};

MachineLimits& Limits() {
  static MachineLimits limits = MeasureLimits(ThreadPool::Default());
  return limits;
}

std::vector<uint8_t> RandomBytes(size_t count) {
  std::mt19937_64 random(1);
  std::vector<uint8_t> bytes(count + 8);
  // Exponents that make every element of every type a number near 0.005 (fp32, bf16) or 1 (fp16): no denormals.
  for (size_t i = 0; i < count; i += 8) {
    const uint64_t word = (random() & 0x80FF80FF80FF80FF) | 0x3B003B003B003B00;
    std::memcpy(bytes.data() + i, &word, sizeof(word));
  }
  return bytes;
}

// Runs `multiply(layer)` and reports its rates. `ops_limit` is in operations per second.
template <class Multiply>
void Measure(benchmark::State& state, const Shape& shape, int64_t m, double bytes_per_layer, double ops_limit,
             const Multiply& multiply) {
  int layer = 0;
  while (state.KeepRunning()) {
    multiply(layer);
    layer = (layer + 1) % shape.layers;
  }
  const auto rate = [&](double amount) {
    return benchmark::Counter(amount, benchmark::Counter::kIsIterationInvariantRate);
  };
  const double ops = 2.0 * static_cast<double>(m * shape.n * shape.k);
  state.counters["GB/s"] = rate(bytes_per_layer / 1e9);
  state.counters["GOP/s"] = rate(ops / 1e9);
  state.counters["read"] = rate(bytes_per_layer / Limits().read_bytes_per_s);
  state.counters["compute"] = rate(ops / ops_limit);
}

void Dense(benchmark::State& state, Shape shape, int64_t m, DType type) {
  const size_t bytes = static_cast<size_t>(shape.n * shape.k) * SizeOf(type);
  const auto weights = RandomBytes(bytes * shape.layers);
  const auto input = RandomBytes(static_cast<size_t>(m * shape.k) * SizeOf(type));
  std::vector<float> output(static_cast<size_t>(m * shape.n));
  Measure(state, shape, m, static_cast<double>(bytes), Limits().fp32_flops_per_s, [&](int layer) {
    Linear(m, shape.n, shape.k, {input.data(), type, shape.k}, {weights.data() + layer * bytes, type, shape.k},
           {output.data(), DType::kFloat32, shape.n}, {}, ThreadPool::Default());
  });
}

void Exact(benchmark::State& state, Shape shape, int64_t m, int bits) {
  constexpr int kGroup = 32;
  const size_t code_bytes = static_cast<size_t>(shape.n * shape.k) * bits / 8;
  const size_t scale_bytes = static_cast<size_t>(shape.n * shape.k) / kGroup * 2;
  const auto codes = RandomBytes(code_bytes * shape.layers);
  const auto scales = RandomBytes(scale_bytes * shape.layers);
  const auto input = RandomBytes(static_cast<size_t>(m * shape.k) * 2);
  std::vector<float> output(static_cast<size_t>(m * shape.n));
  const auto bytes = static_cast<double>(code_bytes + 2 * scale_bytes);
  Measure(state, shape, m, bytes, Limits().fp32_flops_per_s, [&](int layer) {
    QuantizedView w;
    w.codes = reinterpret_cast<const uint32_t*>(codes.data() + layer * code_bytes);
    w.code_stride = shape.k * bits / 32;
    w.scales = {scales.data() + layer * scale_bytes, DType::kBFloat16, shape.k / kGroup};
    w.biases = w.scales;
    w.bits = bits;
    w.group_size = kGroup;
    QuantizedLinear(m, shape.n, shape.k, {input.data(), DType::kBFloat16, shape.k}, w,
                    {output.data(), DType::kFloat32, shape.n}, {}, ThreadPool::Default());
  });
}

// `biases` that are no multiple of the scales are kept and cost a product each; those of ExecuTorch's exporter are.
void Packed(benchmark::State& state, Shape shape, int64_t m, int bits) {
  constexpr int kGroup = 32;
  const size_t code_bytes = static_cast<size_t>(shape.n * shape.k) * bits / 8;
  const auto codes = RandomBytes(code_bytes);
  constexpr uint16_t kHalf = 0x3F00;  // 0.5 as bf16
  const std::vector<uint16_t> scales(static_cast<size_t>(shape.n * shape.k) / kGroup, kHalf);
  // -2^(bits - 1) times the scale: the exponent of 0.5 raised, and the sign.
  const std::vector<uint16_t> biases(scales.size(), static_cast<uint16_t>(0x8000 | (kHalf + ((bits - 1) << 7))));
  QuantizedRows part;
  part.rows = shape.n;
  part.view.codes = reinterpret_cast<const uint32_t*>(codes.data());
  part.view.code_stride = shape.k * bits / 32;
  part.view.scales = {scales.data(), DType::kBFloat16, shape.k / kGroup};
  part.view.biases = {biases.data(), DType::kBFloat16, shape.k / kGroup};
  part.view.bits = bits;
  part.view.group_size = kGroup;
  std::vector<PackedWeights> layers;
  for (int i = 0; i < shape.layers; ++i) layers.emplace_back(std::span(&part, 1), shape.k, ThreadPool::Default());
  const auto input = RandomBytes(static_cast<size_t>(m * shape.k) * 2);
  std::vector<uint16_t> output(static_cast<size_t>(m * shape.n));
  Measure(state, shape, m, static_cast<double>(layers[0].bytes()), Limits().int8_ops_per_s, [&](int layer) {
    PackedLinear(m, {input.data(), DType::kBFloat16, shape.k}, layers[layer],
                 {output.data(), DType::kBFloat16, shape.n}, {}, ThreadPool::Default());
  });
}

// Packing as it is done at load; the rate is of the weights that are read.
void Pack(benchmark::State& state, Shape shape, int64_t /*m*/, int bits) {
  constexpr int kGroup = 32;
  const size_t code_bytes = static_cast<size_t>(shape.n * shape.k) * bits / 8;
  const auto codes = RandomBytes(code_bytes);
  const auto scales = RandomBytes(static_cast<size_t>(shape.n * shape.k) / kGroup * 2);
  QuantizedRows part;
  part.rows = shape.n;
  part.view.codes = reinterpret_cast<const uint32_t*>(codes.data());
  part.view.code_stride = shape.k * bits / 32;
  part.view.scales = {scales.data(), DType::kBFloat16, shape.k / kGroup};
  part.view.biases = part.view.scales;
  part.view.bits = bits;
  part.view.group_size = kGroup;
  while (state.KeepRunning()) {
    const PackedWeights packed(std::span(&part, 1), shape.k, ThreadPool::Default());
    benchmark::DoNotOptimize(packed.codes());
  }
  state.counters["GB/s"] =
      benchmark::Counter(static_cast<double>(code_bytes) / 1e9, benchmark::Counter::kIsIterationInvariantRate);
}

void Register() {
  for (const Shape& shape : kShapes) {
    for (const int64_t m : kRows) {
      std::ostringstream size;
      size << '/' << shape.n << 'x' << shape.k << "/rows:" << m;
      const auto add = [&](const std::string& name, auto function, auto argument) {
        benchmark::RegisterBenchmark((name + size.str()).c_str(), function, shape, m, argument)
            ->UseRealTime()
            ->Unit(benchmark::kMicrosecond);
      };
      add("dense_fp32", Dense, DType::kFloat32);
      add("dense_bf16", Dense, DType::kBFloat16);
      add("dense_fp16", Dense, DType::kFloat16);
      add("exact_4bit", Exact, 4);
      add("exact_8bit", Exact, 8);
      add("packed_4bit", Packed, 4);
      add("packed_8bit", Packed, 8);
      if (m == 1) add("pack_4bit", Pack, 4);
    }
  }
}

}  // namespace
}  // namespace offgraph::kernels

int main(int argc, char** argv) {
  using offgraph::kernels::Limits;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  const auto gigas = [](double rate) { return std::to_string(rate / 1e9); };
  benchmark::AddCustomContext("threads", std::to_string(Limits().threads));
  benchmark::AddCustomContext("read GB/s", gigas(Limits().read_bytes_per_s));
  benchmark::AddCustomContext("int8 GOP/s", gigas(Limits().int8_ops_per_s));
  benchmark::AddCustomContext("fp32 GFLOP/s", gigas(Limits().fp32_flops_per_s));
  offgraph::kernels::Register();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
