// A delegate payload: any bytes become a program, or an Error; a program that was loaded runs two steps within its
// limits of memory and instructions, or ends them with an Error.
//
// The input is a payload followed by one byte that says how it is loaded and what it is run with (Mode). Weights have
// whatever size the payload declares. Mutations are of the payload's tables and fields, and of raw bytes.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fuzz/payload_tree.h"
#include "fuzz/work_limit.h"
#include "offgraph/cache/error.h"
#include "offgraph/kernels/thread_pool.h"
#include "offgraph/program/executor.h"
#include "offgraph/program/payload.h"
#include "offgraph/program/program.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

using namespace offgraph;
using program::Argument;
using program::HostTensor;
using program::ScalarType;

constexpr int64_t kLargestTensor = int64_t{1} << 20;  // bytes of a weight or an input
constexpr int64_t kMemory = int64_t{16} << 20;
constexpr int kInstructions = 20'000;
constexpr double kSeconds = 10;
constexpr int64_t kCapacity = 8;
constexpr int64_t kLayers = 8;

struct Mode {
  explicit Mode(uint8_t byte)
      : optimize((byte & 1) != 0),
        exact((byte & 2) != 0),
        numbers((byte >> 2) & 3),
        tokens((byte & 16) != 0 ? 1 : 3),
        windowed((byte & 32) != 0) {}
  bool optimize;
  bool exact;
  int numbers;  // what integer inputs hold, see Integer
  int64_t tokens;
  bool windowed;
};

int64_t Integer(int kind, int64_t i) {
  switch (kind) {
    case 1:
      return -i;
    case 2:
      return i % 2 == 0 ? INT64_MAX - i : INT64_MIN + i;
    case 3:
      return i * 1'000'000'007;
    default:
      return i;
  }
}

// kLargestTensor bytes of that type: reals around 0, integers as `numbers` says, from `first`.
std::vector<std::byte> Fill(ScalarType type, int numbers, int64_t first) {
  std::vector<std::byte> bytes(kLargestTensor);
  const auto size = static_cast<size_t>(SizeOf(type));
  for (size_t i = 0; i < bytes.size() / size; ++i) {
    const auto index = static_cast<int64_t>(i);
    int64_t bits = Integer(numbers, first + index);
    const float real = static_cast<float>(index % 17 - 8) / 8;
    const double wide = real;
    if (type == ScalarType::kFloat || type == ScalarType::kBFloat16) {
      uint32_t word;
      std::memcpy(&word, &real, sizeof(word));
      bits = type == ScalarType::kFloat ? word : word >> 16;
    } else if (type == ScalarType::kHalf) {
      bits = (index % 2 == 0 ? 0x3800 : 0xB400) + index % 7;
    } else if (type == ScalarType::kDouble) {
      std::memcpy(&bits, &wide, sizeof(bits));
    } else if (type == ScalarType::kBool) {
      bits &= 1;
    }
    std::memcpy(bytes.data() + i * size, &bits, size);
  }
  return bytes;
}

// Shared by all tensors of a type: nothing may write into what it was given, nor read beyond the bytes of its shape.
std::shared_ptr<const void> Numbers(ScalarType type, int numbers, int64_t first) {
  static std::map<std::array<int64_t, 3>, std::shared_ptr<const std::vector<std::byte>>> made;
  auto& bytes = made[{static_cast<int64_t>(type), numbers, first}];
  if (bytes == nullptr) bytes = std::make_shared<const std::vector<std::byte>>(Fill(type, numbers, first));
  return {bytes, bytes->data()};
}

// Bytes of a tensor; absent where they are more than a fuzzer wants to give.
std::optional<int64_t> Size(ScalarType type, const std::vector<int64_t>& shape) {
  int64_t bytes = SizeOf(type);
  for (const int64_t dim : shape) {
    if (dim < 0 || __builtin_mul_overflow(bytes, dim, &bytes)) return std::nullopt;
  }
  return bytes <= kLargestTensor ? std::optional(bytes) : std::nullopt;
}

// Weights of the sizes that `graph` declares, each in memory of its own.
program::WeightSource MakeWeights(const program::Graph& graph) {
  auto tensors = std::make_shared<std::map<std::string, std::vector<std::byte>, std::less<>>>();
  int64_t left = 4 * kLargestTensor;
  for (const program::NamedSlot& named : graph.names) {
    const program::TensorMeta* meta = graph.Meta({named.slot.index});
    if (named.slot.kind != program::SlotKind::kTensor || !graph.IsConstant({named.slot.index}) || meta == nullptr) {
      continue;
    }
    std::vector<int64_t> shape;
    for (const program::TensorMeta::Dim& dim : meta->shape) shape.push_back(dim.min);
    const std::optional<int64_t> size = Size(meta->type, shape);
    if (!size || *size > left) continue;
    left -= *size;
    const auto* numbers = static_cast<const std::byte*>(Numbers(meta->type, 0, 0).get());
    (*tensors)[named.name].assign(numbers, numbers + *size);
  }
  return [tensors](std::string_view key) -> std::optional<program::WeightBytes> {
    const auto found = tensors->find(key);
    if (found == tensors->end()) return std::nullopt;
    return program::WeightBytes{found->second, tensors};
  };
}

// Arguments for a step that begins at position `first`; absent where an input is too large.
std::optional<std::vector<Argument>> MakeArguments(const program::Program& program, const Mode& mode, int64_t first) {
  std::vector<Argument> arguments;
  for (const program::ValueInfo& input : program.inputs()) {
    if (!input.is_tensor) {
      arguments.emplace_back(Integer(mode.numbers, 3));
      continue;
    }
    HostTensor tensor;
    tensor.type = input.type;
    for (const program::DimInfo& dim : input.shape) {
      tensor.shape.push_back(dim.fixed() ? dim.min : dim.max < 0 ? mode.tokens : std::min(mode.tokens, dim.max));
    }
    const std::optional<int64_t> size = Size(tensor.type, tensor.shape);
    if (!size) return std::nullopt;
    const auto* numbers = static_cast<const std::byte*>(Numbers(tensor.type, mode.numbers, first).get());
    auto bytes = std::make_shared<std::vector<std::byte>>(numbers, numbers + *size);
    tensor.data = std::shared_ptr<const void>(bytes, bytes->data());
    arguments.emplace_back(std::move(tensor));
  }
  return arguments;
}

std::shared_ptr<bytes::KvStore> MakeStore(const Mode& mode) {
  bytes::KvStoreConfig config;
  config.cache.capacity = kCapacity;
  config.cache.n_layers = kLayers;
  config.cache.layers = {cache::LayerConfig{.window = mode.windowed ? 4 : 0, .sinks = 0}};
  config.cache.max_step = 3;
  config.memory_limit = kMemory;
  return std::make_shared<bytes::KvStore>(config);
}

void RunSteps(const std::shared_ptr<const program::Program>& program, const Mode& mode) {
  program::Executor executor(program, MakeStore(mode), {.memory_limit = kMemory});
  for (int64_t first = 0; first < 2 * mode.tokens; first += mode.tokens) {
    const std::optional<std::vector<Argument>> arguments = MakeArguments(*program, mode, first);
    if (!arguments) return;
    int instructions = 0;
    const auto results = executor.Run(*arguments, {.last_row_only = mode.tokens == 3,
                                                   .cancelled = [&] { return ++instructions > kInstructions; },
                                                   .memory_limit = kMemory});
    for (const Argument& result : results) {
      const auto* tensor = std::get_if<HostTensor>(&result);
      if (tensor == nullptr) continue;
      // Under the address sanitizer a read of all bytes shows that they are there.
      int64_t size = SizeOf(tensor->type);
      for (const int64_t dim : tensor->shape) size *= dim;
      const std::vector<char> copy(static_cast<const char*>(tensor->data.get()),
                                   static_cast<const char*>(tensor->data.get()) + size);
    }
  }
}

// The graph of a payload with its mode.
std::optional<fuzz::Node> ReadTree(const uint8_t* data, size_t size) {
  return size == 0 ? std::nullopt : fuzz::ReadPayloadTree({data, size - 1});
}

// Writes it back; returns 0 where it does not fit.
size_t WriteTree(const fuzz::Node& tree, uint8_t mode, uint8_t* data, size_t max_size) {
  const std::vector<uint8_t> payload = fuzz::WritePayloadTree(tree);
  if (payload.size() + 1 > max_size) return 0;
  std::memcpy(data, payload.data(), payload.size());
  data[payload.size()] = mode;
  return payload.size() + 1;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  kernels::ThreadPool::SetDefaultThreads(1);
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  fuzz::Random random(seed);
  if (size > 0 && fuzz::OneIn(16, random)) data[size - 1] = static_cast<uint8_t>(random());
  std::optional<fuzz::Node> tree = fuzz::OneIn(10, random) ? std::nullopt : ReadTree(data, size);
  if (!tree) return LLVMFuzzerMutate(data, size, max_size);
  const size_t changes = 1 + fuzz::Below(4, random);
  for (size_t i = 0; i < changes; ++i) fuzz::PayloadCodec().Mutate(&*tree, random);
  const size_t written = WriteTree(*tree, data[size - 1], data, max_size);
  return written > 0 ? written : LLVMFuzzerMutate(data, size, max_size);
}

extern "C" size_t LLVMFuzzerCustomCrossOver(const uint8_t* data1, size_t size1, const uint8_t* data2, size_t size2,
                                            uint8_t* out, size_t max_size, unsigned int seed) {
  fuzz::Random random(seed);
  std::optional<fuzz::Node> tree = ReadTree(data1, size1);
  const std::optional<fuzz::Node> other = ReadTree(data2, size2);
  if (!tree || !other) return 0;
  fuzz::PayloadCodec().Splice(&*tree, *other, random);
  return WriteTree(*tree, data1[size1 - 1], out, max_size);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const fuzz::WorkLimit limit(kSeconds);
  const auto payload = std::as_bytes(std::span(data, size - 1));
  const Mode mode(data[size - 1]);
  try {
    const program::Graph graph = program::ReadPayload(payload, "input");
    RunSteps(
        program::Program::Load(payload, MakeWeights(graph), "input", {.optimize = mode.optimize, .exact = mode.exact}),
        mode);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInternal) std::abort();
  }
  return 0;
}
