// Memory that the system itself refuses. Each test limits a process of its own.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>

#include "offgraph/bytes/kv_store.h"
#include "offgraph/cache/error.h"
#include "offgraph/program/payload_builder.h"
#include "tests/faults/sanitized.h"
#include "tests/fixtures/fixture.h"
#include "tests/fixtures/load_program.h"

namespace offgraph::testing {
namespace {

class Limits : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "a sanitizer's allocator ends the process where memory is refused";
    GTEST_FLAG_SET(death_test_style, "threadsafe");
  }
};

// Lets the process take `bytes` more than it has, or, without a number, what it may have at most.
void LimitMemory(std::optional<rlim_t> bytes) {
  rlimit limit{};
  getrlimit(RLIMIT_DATA, &limit);
  limit.rlim_cur = limit.rlim_max;
  if (bytes) {
    std::ifstream status("/proc/self/status");
    std::string word;
    rlim_t kilobytes = 0;
    while (word != "VmData:" && status >> word) {
    }
    status >> kilobytes;
    limit.rlim_cur = kilobytes * 1024 + *bytes;
  }
  setrlimit(RLIMIT_DATA, &limit);
}

// Whether a step is out of memory with so much more than the process has, and then runs without the limit.
bool FailsThenRuns(const std::function<bool()>& step, rlim_t bytes = rlim_t{32} << 20) {
  LimitMemory(bytes);
  bool refused = false;
  try {
    step();
  } catch (const Error& error) {
    refused = error.code() == ErrorCode::kOutOfMemory;
    if (!refused) std::fprintf(stderr, "%s\n", error.what());
  }
  LimitMemory(std::nullopt);
  return refused && step();
}

#define EXPECT_SUCCESS(condition) EXPECT_EXIT(std::exit((condition) ? 0 : 1), ::testing::ExitedWithCode(0), "")

bool PoolsGrowLater() {
  const Fixture fixture{"llama_fp32", OFFGRAPH_TEST_DATA "/fixtures"};
  const std::vector<int64_t> ids = ReadReference(fixture).ids;
  const auto program = LoadProgram(pte::Container::Open(fixture.folder + "/" + fixture.name + ".pte"));
  const auto make = [&](int64_t initial_capacity) {
    bytes::KvStoreConfig config;
    config.cache.capacity = 1 << 20;
    config.cache.n_layers = 4;
    config.cache.layers = {cache::LayerConfig{}};
    config.initial_capacity = initial_capacity;
    return std::make_unique<program::Executor>(program, std::make_shared<bytes::KvStore>(config));
  };
  const auto step = [&](program::Executor& executor) {
    return RowBytes(RunStep(executor, std::span(ids).first(5), 0));
  };
  const std::vector<std::string> expected = step(*make(8));
  const auto executor = make(1 << 17);  // 32 MiB a layer
  return FailsThenRuns([&] { return step(*executor) == expected; });
}

TEST_F(Limits, PoolsThatCannotGrow) { EXPECT_SUCCESS(PoolsGrowLater()); }

bool ArraysComeLater() {
  program::testing::PayloadBuilder builder({.inputs = 1, .outputs = 1, .temps = 2, .values = 1});
  builder.Declare(0, program::ScalarType::kLong, {});
  builder.Declare(1, program::ScalarType::kFloat, {1});
  builder.Item(0, 0, 0);
  auto& fbb = builder.fbb();
  namespace fbs = mlx_delegate;
  const fbs::Tid large(2), larger(3), out(1);
  const std::vector<flatbuffers::Offset<fbs::IntOrVid>> shape = {builder.FromSlot(0)};
  builder.Emit(0, fbs::OpNode_FullNode,
               fbs::CreateFullNodeDirect(fbb, &large, &shape, fbs::CreateFloatOrVid(fbb, 1), 6));
  builder.Emit(0, fbs::OpNode_ExpNode, fbs::CreateExpNode(fbb, &large, &larger));
  builder.Emit(0, fbs::OpNode_SliceNode,
               fbs::CreateSliceNode(fbb, &larger, &out, builder.Literal(0), builder.Literal(0), builder.Literal(1)));
  program::Executor executor(program::Program::Load(builder.Finish(), program::testing::Weights({}), "test"), nullptr);
  const std::vector<program::Argument> arguments = {
      program::testing::MakeTensor<int64_t>(program::ScalarType::kLong, {}, {int64_t{16} << 20})};  // 64 MiB
  return FailsThenRuns([&] {
    const auto result = std::get<program::HostTensor>(executor.Run(arguments).at(0));
    return *static_cast<const float*>(result.data.get()) > 2.7F;
  });
}

TEST_F(Limits, ArraysThatMlxCannotHave) { EXPECT_SUCCESS(ArraysComeLater()); }

// MLX starts its thread at the first evaluation, and the thread's stack is memory.
bool ThreadComesLater() {
  program::testing::PayloadBuilder builder({.inputs = 1, .outputs = 1});
  builder.Declare(0, program::ScalarType::kFloat, {1});
  builder.Declare(1, program::ScalarType::kFloat, {1});
  const mlx_delegate::Tid in(0), out(1);
  builder.Emit(0, mlx_delegate::OpNode_ExpNode, mlx_delegate::CreateExpNode(builder.fbb(), &in, &out));
  program::Executor executor(program::Program::Load(builder.Finish(), program::testing::Weights({}), "test"), nullptr);
  const std::vector<program::Argument> arguments = {
      program::testing::MakeTensor<float>(program::ScalarType::kFloat, {1}, {1})};
  const auto step = [&] {
    const auto result = std::get<program::HostTensor>(executor.Run(arguments).at(0));
    return *static_cast<const float*>(result.data.get()) > 2.7F;
  };
  return FailsThenRuns(step, rlim_t{1} << 20);
}

TEST_F(Limits, AThreadThatMlxCannotStart) { EXPECT_SUCCESS(ThreadComesLater()); }

}  // namespace
}  // namespace offgraph::testing
