#include "offgraph/program/token_runner.h"

#include <mlx/types/half_types.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "offgraph/bytes/kv_store.h"
#include "offgraph/cache/error.h"
#include "offgraph/program/executor.h"

namespace offgraph::program {
namespace {

bytes::KvType ParseKvType(const std::string& name) {
  constexpr std::array<std::pair<const char*, bytes::KvType>, 4> kTypes = {{{"same", bytes::KvType::kSame},
                                                                            {"fp32", bytes::KvType::kFloat32},
                                                                            {"fp16", bytes::KvType::kFloat16},
                                                                            {"bf16", bytes::KvType::kBFloat16}}};
  for (const auto& [known, type] : kTypes) {
    if (name == known) return type;
  }
  throw Error(ErrorCode::kInvalidArgument, "the cache cannot store \"" + name + "\": use same, fp32, fp16 or bf16");
}

std::string Describe(const ValueInfo& value) {
  if (!value.is_tensor) return "a scalar";
  std::string text = Name(value.type) + " [";
  for (size_t i = 0; i < value.shape.size(); ++i) {
    const DimInfo& dim = value.shape[i];
    if (i > 0) text += ", ";
    text += std::to_string(dim.min);
    if (!dim.fixed()) text += ".." + (dim.max < 0 ? std::string() : std::to_string(dim.max));
  }
  return text + "]";
}

std::string Describe(const std::vector<ValueInfo>& values) {
  std::string text;
  for (const ValueInfo& value : values) text += (text.empty() ? "" : ", ") + Describe(value);
  return text.empty() ? "nothing" : text;
}

bool IsIds(const ValueInfo& value, size_t rank) {
  return value.is_tensor && value.type == ScalarType::kLong && value.shape.size() == rank;
}

bool IsFloating(ScalarType type) {
  return type == ScalarType::kFloat || type == ScalarType::kHalf || type == ScalarType::kBFloat16;
}

template <typename T>
void Widen(const void* from, std::span<float> to) {
  const auto* bytes = static_cast<const std::byte*>(from);
  for (size_t i = 0; i < to.size(); ++i) {
    T value;
    std::memcpy(&value, bytes + (i * sizeof(T)), sizeof(T));
    to[i] = static_cast<float>(value);
  }
}

std::vector<float> ToFloats(const HostTensor& tensor, size_t count) {
  std::vector<float> values(count);
  switch (tensor.type) {
    case ScalarType::kHalf:
      Widen<mlx::core::float16_t>(tensor.data.get(), values);
      break;
    case ScalarType::kBFloat16:
      Widen<mlx::core::bfloat16_t>(tensor.data.get(), values);
      break;
    default:
      Widen<float>(tensor.data.get(), values);
  }
  return values;
}

// The logits [rows, vocabulary] of a step.
std::vector<float> ToLogits(const std::vector<Argument>& results, int64_t rows) {
  const auto* logits = results.empty() ? nullptr : std::get_if<HostTensor>(&results[0]);
  if (logits == nullptr || logits->shape.size() != 3 || logits->shape[1] != rows || !IsFloating(logits->type)) {
    throw Error(ErrorCode::kInternal, "the step did not return logits [1, " + std::to_string(rows) + ", vocabulary]");
  }
  return ToFloats(*logits, static_cast<size_t>(rows * logits->shape[2]));
}

HostTensor Int64Tensor(std::vector<int64_t> values, bool batch_axis) {
  const auto count = static_cast<int64_t>(values.size());
  auto owner = std::make_shared<const std::vector<int64_t>>(std::move(values));
  HostTensor tensor;
  tensor.type = ScalarType::kLong;
  tensor.shape = batch_axis ? std::vector<int64_t>{1, count} : std::vector<int64_t>{count};
  tensor.data = std::shared_ptr<const void>(owner, owner->data());
  return tensor;
}

}  // namespace

TokenInterface ReadTokenInterface(const Program& program) {
  const std::vector<ValueInfo>& inputs = program.inputs();
  const std::vector<ValueInfo>& outputs = program.outputs();
  const bool known = inputs.size() == 2 && IsIds(inputs[0], 2) && IsIds(inputs[1], 1) && outputs.size() == 1 &&
                     outputs[0].is_tensor && IsFloating(outputs[0].type) && outputs[0].shape.size() == 3;
  if (!known) {
    throw Error(ErrorCode::kUnsupported,
                program.name() + ": not a language model that takes tokens: it takes " + Describe(inputs) +
                    " and gives " + Describe(outputs) +
                    "; expected input_ids int64 [1, T] and cache_position int64 [T], and logits [1, T, vocabulary]");
  }
  TokenInterface interface;
  const DimInfo& tokens = inputs[0].shape[1];
  interface.max_step = tokens.max > 0 ? tokens.max : 0;
  if (outputs[0].shape[2].fixed()) interface.vocab = outputs[0].shape[2].min;
  interface.logits_type = outputs[0].type;
  return interface;
}

struct TokenRunner::Impl {
  TokenInterface interface;
  std::shared_ptr<bytes::KvStore> store;           // null where the cache is inside the graph
  std::unique_ptr<cache::SequenceCache> in_graph;  // else this counts the positions
  std::unique_ptr<Executor> executor;
  // The buffers of a cache in the graph hold rows of a sequence that was given up.
  bool stale = false;
  int64_t step_memory_limit = 0;

  void ResetWhereStale() {
    if (stale) executor->Reset();
    stale = false;
  }
  const cache::SequenceCache& sequences() const { return store ? store->sequences() : *in_graph; }
};

TokenRunner::TokenRunner(std::shared_ptr<const Program> program, const CacheOptions& options)
    : impl_(std::make_unique<Impl>()) {
  impl_->interface = ReadTokenInterface(*program);
  const bytes::KvType type = ParseKvType(options.kv_type);
  if (program->cache_layers().empty()) {
    cache::CacheConfig positions;
    positions.capacity = options.cache.capacity;
    positions.n_layers = 1;
    positions.layers = {cache::LayerConfig{}};
    impl_->in_graph = std::make_unique<cache::SequenceCache>(positions);
  } else {
    bytes::KvStoreConfig config;
    config.cache = options.cache;
    config.k_type = type;
    config.v_type = type;
    config.initial_capacity = options.initial_capacity;
    config.memory_limit = options.memory_limit;
    impl_->store = std::make_shared<bytes::KvStore>(config);
  }
  if (options.step_memory_limit < 0) {
    throw Error(ErrorCode::kInvalidArgument, "the memory of a step is limited to " +
                                                 std::to_string(options.step_memory_limit) +
                                                 " bytes; expected 0 (no limit) or more");
  }
  impl_->step_memory_limit = options.step_memory_limit;
  impl_->executor = std::make_unique<Executor>(std::move(program), impl_->store,
                                               ExecutorOptions{.memory_limit = options.step_memory_limit});
}

TokenRunner::~TokenRunner() = default;

std::vector<float> TokenRunner::Step(std::span<const int64_t> tokens, const StepOptions& options) {
  const auto count = static_cast<int64_t>(tokens.size());
  if (count == 0) throw Error(ErrorCode::kInvalidArgument, "a step needs at least one token");
  if (count > LargestStep()) {
    throw Error(ErrorCode::kOutOfRange, "a step of " + std::to_string(count) + " tokens at position " +
                                            std::to_string(length()) + " is longer than the " +
                                            std::to_string(LargestStep()) + " that are possible here");
  }
  std::vector<int64_t> positions(tokens.size());
  for (int64_t i = 0; i < count; ++i) positions[static_cast<size_t>(i)] = length() + i;
  const std::array<Argument, 2> arguments = {Int64Tensor({tokens.begin(), tokens.end()}, true),
                                             Int64Tensor(std::move(positions), false)};
  impl_->ResetWhereStale();
  std::vector<float> logits;
  RunOptions run;
  run.last_row_only = !options.all_rows;
  run.cancelled = options.cancelled;
  run.memory_limit = impl_->step_memory_limit;
  run.accept = [&](const std::vector<Argument>& results) {
    logits = ToLogits(results, options.all_rows ? count : 1);
    // The executor commits the store's step itself, after this; the positions of a cache in the graph move here.
    if (impl_->in_graph) impl_->in_graph->Commit();
  };
  const cache::StepRequest request = {0, length(), count};
  if (impl_->in_graph) impl_->in_graph->Begin({&request, 1});
  try {
    impl_->executor->Run(arguments, run);
  } catch (...) {
    if (impl_->in_graph) impl_->in_graph->Abandon();
    throw;
  }
  return logits;
}

bool TokenRunner::off_graph() const { return impl_->store != nullptr; }

int64_t TokenRunner::length() const { return impl_->sequences().length(); }

int64_t TokenRunner::capacity() const { return impl_->sequences().config().capacity; }

int64_t TokenRunner::LargestStep() const {
  const int64_t cache = impl_->sequences().LargestStep();
  return impl_->interface.max_step > 0 ? std::min(cache, impl_->interface.max_step) : cache;
}

int64_t TokenRunner::RewindBound() const { return off_graph() ? impl_->sequences().RewindBound() : length(); }

void TokenRunner::Rewind(int64_t length) {
  if (off_graph()) {
    impl_->store->Rewind(length);
    return;
  }
  if (length > 0 && length < this->length()) {
    throw Error(
        ErrorCode::kOutOfRange,
        "this program keeps its cache inside the graph, which rewinds to 0 only, not to " + std::to_string(length));
  }
  impl_->in_graph->Rewind(length);
  // Not now: a reset takes memory, and whoever gives up a sequence because a step failed has no use for another error.
  if (length == 0) impl_->stale = true;
}

CacheMemory TokenRunner::memory() const {
  if (!off_graph()) return {};
  const bytes::MemoryInfo info = impl_->store->memory();
  return {info.in_use, info.reserved, info.peak};
}

}  // namespace offgraph::program
