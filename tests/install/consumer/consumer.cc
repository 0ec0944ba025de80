// Feeds the beginning-of-sequence token to a model, and prints which token it expects next.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <vector>

#include "offgraph/program/executor.h"
#include "offgraph/pte/container.h"

using offgraph::program::Argument;
using offgraph::program::HostTensor;
using offgraph::program::ScalarType;

static HostTensor Int64Tensor(std::vector<int64_t> shape, int64_t value) {
  return {ScalarType::kLong, std::move(shape), std::make_shared<int64_t>(value)};
}

int main(int argc, char** argv) try {
  if (argc != 2) return 2;
  const auto container = offgraph::pte::Container::Open(argv[1]);
  const auto* forward = container->FindMethod("forward");
  const auto& payload = forward->delegates.at(forward->whole_delegate.value()).processed;
  const auto weights = [&](std::string_view key) -> std::optional<offgraph::program::WeightBytes> {
    const auto bytes = container->FindData(key);
    if (!bytes) return std::nullopt;
    return offgraph::program::WeightBytes{*bytes, container};
  };
  const auto program = offgraph::program::Program::Load(payload, weights, container->name());

  offgraph::bytes::KvStoreConfig config;
  config.cache.capacity = 16;
  config.cache.n_layers = static_cast<int64_t>(program->cache_layers().size());
  config.cache.layers = {offgraph::cache::LayerConfig{}};  // full attention in all of them
  offgraph::program::Executor executor(program, std::make_shared<offgraph::bytes::KvStore>(config));
  const std::vector<Argument> arguments = {Int64Tensor({1, 1}, 1), Int64Tensor({1}, 0)};
  const auto results = executor.Run(arguments);
  const auto& logits = std::get<HostTensor>(results.at(0));
  const auto* first = static_cast<const float*>(logits.data.get());
  std::printf("first token %td\n", std::max_element(first, first + logits.shape.back()) - first);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
