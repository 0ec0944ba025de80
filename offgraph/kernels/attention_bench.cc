// Attention in the shapes of a small language model (SmolLM2-135M: 9 heads over 3 kv heads of size 64, 30 layers),
// beside what the machine could do at most.
//
// Each iteration is one layer; the layers have pools of their own, so that K and V come from memory as they do in a
// model. `read` is the share of the memory's read bandwidth that K and V alone take, `compute` the share of the
// multiply-add rate.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "offgraph/kernels/attention.h"
#include "offgraph/kernels/limits.h"

namespace offgraph::kernels {
namespace {

constexpr int64_t kHeads = 9;
constexpr int64_t kKvHeads = 3;
constexpr int64_t kDim = 64;
constexpr int64_t kLayers = 30;

MachineLimits& Limits() {
  static MachineLimits limits = MeasureLimits(ThreadPool::Default());
  return limits;
}

// Elements near 0.1 to 1 in every type, none of them subnormal.
std::vector<uint8_t> Values(int64_t count, DType type) {
  std::vector<uint8_t> bytes(static_cast<size_t>(count) * SizeOf(type));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = i % SizeOf(type) == SizeOf(type) - 1 ? 0x3A : (i * 37) & 0x7F;
  return bytes;
}

struct Layer {
  std::vector<uint8_t> k;
  std::vector<uint8_t> v;
};

// `tokens` queries behind `depth` keys; with factors as they are, or rounded to bf16 where that is faster.
void AttendBenchmark(benchmark::State& state, int64_t depth, int64_t tokens, DType type, bool round_to_bf16) {
  const int64_t keys = depth + tokens;
  std::vector<Layer> layers;
  for (int64_t i = 0; i < kLayers; ++i) {
    layers.push_back({Values(keys * kKvHeads * kDim, type), Values(keys * kKvHeads * kDim, type)});
  }
  const std::vector<uint8_t> q = Values(tokens * kHeads * kDim, DType::kFloat32);
  std::vector<float> out(static_cast<size_t>(tokens * kHeads * kDim));
  const RowRun all{.row = 0, .count = keys, .position = 0};
  const AttentionSegment segment{.token_offset = 0, .tokens = tokens, .position = depth, .reads = {&all, 1}};
  const AttentionOptions options{.n_heads = kHeads, .scale = 0.125F, .round_to_bf16 = round_to_bf16};
  size_t next = 0;
  while (state.KeepRunning()) {
    Layer& layer = layers[next];
    next = (next + 1) % layers.size();
    const KvPool pool{.k = layer.k.data(),
                      .v = layer.v.data(),
                      .k_type = type,
                      .v_type = type,
                      .n_kv_heads = kKvHeads,
                      .k_dim = kDim,
                      .v_dim = kDim};
    Attend(pool, {&segment, 1}, {.data = q.data(), .head_stride = kDim, .token_stride = kHeads * kDim},
           {.data = out.data(), .head_stride = kDim, .token_stride = kHeads * kDim}, options, ThreadPool::Default());
    benchmark::DoNotOptimize(out.data());
  }
  const auto rate = [](double amount) {
    return benchmark::Counter(amount, benchmark::Counter::kIsIterationInvariantRate);
  };
  const auto bytes = static_cast<double>(layers[0].k.size() + layers[0].v.size());
  // A query at position p takes part in p + 1 dot products and as many weighted sums.
  const double pairs = static_cast<double>(tokens) * static_cast<double>(2 * depth + tokens + 1) / 2;
  const double flops = 4.0 * kHeads * kDim * pairs;
  state.counters["GB/s"] = rate(bytes / 1e9);
  state.counters["GFLOP/s"] = rate(flops / 1e9);
  state.counters["read"] = rate(bytes / Limits().read_bytes_per_s);
  state.counters["compute"] = rate(flops / Limits().fp32_flops_per_s);
}

void StoreBenchmark(benchmark::State& state, int64_t tokens, DType type) {
  Layer layer{Values(tokens * kKvHeads * kDim, type), Values(tokens * kKvHeads * kDim, type)};
  const std::vector<uint8_t> from = Values(tokens * kKvHeads * kDim, DType::kFloat32);
  const RowRun all{.row = 0, .count = tokens, .position = 0};
  const AttentionSegment segment{.token_offset = 0, .tokens = tokens, .position = 0, .writes = {&all, 1}};
  const HeadsView view{.data = from.data(), .head_stride = kDim, .token_stride = kKvHeads * kDim};
  const KvPool pool{.k = layer.k.data(),
                    .v = layer.v.data(),
                    .k_type = type,
                    .v_type = type,
                    .n_kv_heads = kKvHeads,
                    .k_dim = kDim,
                    .v_dim = kDim};
  while (state.KeepRunning()) benchmark::DoNotOptimize(StoreRows(pool, segment, view, view, ThreadPool::Default()));
  state.counters["GB/s"] =
      benchmark::Counter(static_cast<double>(2 * from.size()) / 1e9, benchmark::Counter::kIsIterationInvariantRate);
}

void Register() {
  const auto add = [](const std::string& name, auto function, auto... arguments) {
    benchmark::RegisterBenchmark(name.c_str(), function, arguments...)->UseRealTime()->Unit(benchmark::kMicrosecond);
  };
  const struct {
    const char* name;
    DType type;
  } kTypes[] = {{"fp32", DType::kFloat32}, {"fp16", DType::kFloat16}, {"bf16", DType::kBFloat16}};
  for (const auto& [name, type] : kTypes) {
    for (const bool rounded : {false, true}) {
      const std::string kind = name + std::string(rounded ? "/rounded" : "");
      for (const int64_t depth : {0, 63, 512, 2048, 4000}) {
        add("decode/" + kind + "/depth:" + std::to_string(depth), AttendBenchmark, depth, int64_t{1}, type, rounded);
      }
      for (const int64_t tokens : {16, 512, 2048}) {
        add("prefill/" + kind + "/tokens:" + std::to_string(tokens), AttendBenchmark, int64_t{0}, tokens, type,
            rounded);
      }
    }
    for (const int64_t tokens : {1, 512}) {
      add(std::string("store/") + name + "/tokens:" + std::to_string(tokens), StoreBenchmark, tokens, type);
    }
  }
}

}  // namespace
}  // namespace offgraph::kernels

int main(int argc, char** argv) {
  using offgraph::kernels::Limits;
  benchmark::Initialize(&argc, argv);
  benchmark::AddCustomContext("threads", std::to_string(Limits().threads));
  benchmark::AddCustomContext("read limit, GB/s", std::to_string(Limits().read_bytes_per_s / 1e9));
  benchmark::AddCustomContext("fp32 limit, GFLOP/s", std::to_string(Limits().fp32_flops_per_s / 1e9));
  offgraph::kernels::Register();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
