#include "offgraph/program/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mlx/memory.h>

#include <cstring>
#include <thread>

#include "offgraph/cache/error.h"
#include "offgraph/program/payload_builder.h"

namespace offgraph::program {
namespace {

using testing::Counts;
using ::testing::ElementsAre;
using testing::Floats;
using ::testing::HasSubstr;
using testing::MakeTensor;
using testing::PayloadBuilder;
namespace fbs = mlx_delegate;

std::shared_ptr<const Program> Load(PayloadBuilder& builder) {
  return Program::Load(builder.Finish(), testing::Weights({{"w0", {1, 2}}}), "test");
}

std::vector<float> ToFloats(const Argument& argument) {
  const auto& tensor = std::get<HostTensor>(argument);
  size_t count = 1;
  for (int64_t dim : tensor.shape) count *= static_cast<size_t>(dim);
  std::vector<float> values(count);
  std::memcpy(values.data(), tensor.data.get(), count * sizeof(float));
  return values;
}

std::vector<float> RunOne(Executor& executor, std::vector<Argument> arguments, const RunOptions& options = {}) {
  return ToFloats(executor.Run(arguments, options).at(0));
}

TEST(ExecutorTest, ReadsWeightsAndArguments) {
  PayloadBuilder builder({.constants = 1, .inputs = 1, .outputs = 1});
  builder.Add(0, 0, 1, 2);
  Executor executor(Load(builder), nullptr);
  EXPECT_THAT(RunOne(executor, {Floats({10, 20})}), ElementsAre(11, 22));
  EXPECT_THAT(RunOne(executor, {Floats({1, 1})}), ElementsAre(2, 3));
}

TEST(ExecutorTest, ConstantsLieWhereTheirSourceKeepsThem) {
  PayloadBuilder builder({.constants = 1, .inputs = 1, .outputs = 1});
  builder.Add(0, 0, 1, 2);
  const auto numbers = std::make_shared<std::vector<float>>(std::vector<float>{1, 2});
  const std::weak_ptr<const void> watch = numbers;
  {
    const WeightSource source = [&](std::string_view /*key*/) {
      return WeightBytes{std::as_bytes(std::span(*numbers)), numbers};
    };
    Executor executor(Program::Load(builder.Finish(), source, "test"), nullptr);
    EXPECT_THAT(RunOne(executor, {Floats({10, 20})}), ElementsAre(11, 22));
    *numbers = {3, 4};
    EXPECT_THAT(RunOne(executor, {Floats({10, 20})}), ElementsAre(13, 24));
    EXPECT_GT(watch.use_count(), 1) << "they are kept alive";
  }
  EXPECT_EQ(watch.use_count(), 1) << "and let go";
}

TEST(ExecutorTest, ChecksArguments) {
  PayloadBuilder builder({.inputs = 2, .outputs = 1});
  builder.Declare(1, ScalarType::kLong, {-1});
  builder.Add(0, 0, 0, 2);
  Executor executor(Load(builder), nullptr);
  const HostTensor longs = MakeTensor<int64_t>(ScalarType::kLong, {1}, {1});
  const auto complaint = [&](const std::vector<Argument>& arguments) -> std::string {
    try {
      executor.Run(arguments);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(complaint({}), HasSubstr("0 arguments; expected 2"));
  EXPECT_THAT(complaint({longs, longs}), HasSubstr("argument 0 is int64 [1]; expected fp32 [2]"));
  EXPECT_THAT(complaint({Floats({1, 2, 3}), longs}), HasSubstr("argument 0 is fp32 [3]; expected fp32 [2]"));
  EXPECT_THAT(complaint({Floats({1, 2}), int64_t{1}}), HasSubstr("argument 1 is a scalar; expected int64 [any]"));
  EXPECT_THAT(complaint({HostTensor{ScalarType::kFloat, {2}, nullptr}, longs}), HasSubstr("has no data"));
  EXPECT_EQ(complaint({Floats({1, 2}), longs}), "");
}

// A result is the caller's own, even where the program returns what it was given.
TEST(ExecutorTest, ResultsShareNoMemoryWithArguments) {
  PayloadBuilder builder({.inputs = 1, .outputs = 1});
  builder.Copy(0, 0, 1);
  Executor executor(Load(builder), nullptr);
  auto numbers = std::make_shared<std::vector<float>>(std::vector<float>{1, 2});
  const HostTensor argument{ScalarType::kFloat, {2}, std::shared_ptr<const void>(numbers, numbers->data())};
  const std::vector<Argument> results = executor.Run(std::vector<Argument>{argument});
  *numbers = {7, 8};
  EXPECT_THAT(ToFloats(results[0]), ElementsAre(1, 2));
}

// buffer += input; output = buffer
PayloadBuilder Accumulator() {
  PayloadBuilder builder({.inputs = 1, .outputs = 1, .buffers = 1, .temps = 1});
  builder.Add(0, 0, 2, 3);
  builder.Copy(0, 3, 2);
  builder.Copy(0, 2, 1);
  return builder;
}

TEST(ExecutorTest, BuffersLiveOn) {
  PayloadBuilder builder = Accumulator();
  const auto program = Load(builder);
  Executor executor(program, nullptr);
  const std::vector<Argument> first = executor.Run(std::vector<Argument>{Floats({1, 2})});
  EXPECT_THAT(RunOne(executor, {Floats({1, 2})}), ElementsAre(2, 4));
  EXPECT_THAT(ToFloats(first[0]), ElementsAre(1, 2)) << "an earlier result changed";
  Executor other(program, nullptr);
  EXPECT_THAT(RunOne(other, {Floats({5, 5})}), ElementsAre(5, 5)) << "executors share buffers";
  executor.Reset();
  EXPECT_THAT(RunOne(executor, {Floats({3, 3})}), ElementsAre(3, 3));
}

TEST(ExecutorTest, ACancelledStepLeavesBuffersAsTheyWere) {
  PayloadBuilder builder = Accumulator();
  Executor executor(Load(builder), nullptr);
  RunOne(executor, {Floats({1, 2})});
  for (int stop_at = 1; stop_at <= 3; ++stop_at) {
    int asked = 0;
    EXPECT_THROW(RunOne(executor, {Floats({100, 100})}, {.cancelled = [&] { return ++asked == stop_at; }}), Error);
  }
  EXPECT_THAT(RunOne(executor, {Floats({1, 2})}), ElementsAre(2, 4));
}

// A failing instruction is named, and the step leaves no trace.
TEST(ExecutorTest, AFailingStepLeavesBuffersAsTheyWere) {
  PayloadBuilder builder({.inputs = 2, .outputs = 1, .buffers = 1, .temps = 1});
  builder.Declare(1, ScalarType::kFloat, {-1});
  builder.Add(0, 0, 3, 4);
  builder.Copy(0, 4, 3);
  builder.Add(0, 3, 1, 2);  // fails unless the second input broadcasts
  Executor executor(Load(builder), nullptr);
  EXPECT_THAT(RunOne(executor, {Floats({1, 2}), Floats({0})}), ElementsAre(1, 2));
  try {
    RunOne(executor, {Floats({1, 2}), Floats({1, 2, 3})});
    FAIL() << "shapes that do not broadcast were accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("test: chain 0, instruction 2 (AddNode): "));
  }
  EXPECT_THAT(RunOne(executor, {Floats({1, 2}), Floats({0})}), ElementsAre(2, 4));
}

// A large buffer of which a step writes one row is not copied: memory in use does not rise by its size.
TEST(ExecutorTest, BuffersAreUpdatedInPlace) {
  constexpr int32_t kRows = 4096;
  constexpr int32_t kColumns = 1024;  // 16 MiB
  PayloadBuilder builder({.inputs = 1, .outputs = 1, .buffers = 1});
  builder.Declare(0, ScalarType::kFloat, {1, kColumns});
  builder.Declare(1, ScalarType::kFloat, {1, kColumns});
  builder.Declare(2, ScalarType::kFloat, {kRows, kColumns});
  const fbs::Tid input(0), output(1), buffer(2);
  builder.Emit(0, fbs::OpNode_SliceUpdateNode,
               fbs::CreateSliceUpdateNode(builder.fbb(), &buffer, &input, &buffer, builder.Literal(0),
                                          builder.Literal(7), builder.Literal(8)));
  builder.Emit(0, fbs::OpNode_SliceNode,
               fbs::CreateSliceNode(builder.fbb(), &buffer, &output, builder.Literal(0), builder.Literal(7),
                                    builder.Literal(8)));
  Executor executor(Load(builder), nullptr);
  const HostTensor row = MakeTensor<float>(ScalarType::kFloat, {1, kColumns}, std::vector<float>(kColumns, 3));
  for (int step = 0; step < 20; ++step) {
    const size_t before = mlx::core::get_active_memory();
    mlx::core::reset_peak_memory();
    EXPECT_EQ(RunOne(executor, {row}).at(17), 3);
    EXPECT_LT(mlx::core::get_peak_memory(), before + size_t{kRows} * kColumns) << "step " << step;
  }
}

// The init chain may overwrite constants, for its own executor.
TEST(ExecutorTest, InitChainMakesConstants) {
  PayloadBuilder builder({.constants = 1, .inputs = 1, .outputs = 1});
  builder.Add(0, 0, 1, 2);
  builder.Add(1, 0, 0, 0);
  builder.set_init_chain(1);
  const auto program = Load(builder);
  for (int i = 0; i < 2; ++i) {
    Executor executor(program, nullptr);
    EXPECT_THAT(RunOne(executor, {Floats({0, 0})}), ElementsAre(2, 4));
  }
}

TEST(ExecutorTest, BranchesRunOneChain) {
  PayloadBuilder builder({.inputs = 2, .outputs = 1, .values = 1});
  builder.Declare(1, ScalarType::kLong, {});
  builder.Item(0, 1, 0);
  builder.If(0, builder.FromSlot(0), 1, 2);
  builder.Copy(1, 0, 2);
  builder.Add(2, 0, 0, 2);
  Executor executor(Load(builder), nullptr);
  const auto flag = [](int64_t value) { return MakeTensor<int64_t>(ScalarType::kLong, {}, {value}); };
  EXPECT_THAT(RunOne(executor, {Floats({1, 2}), flag(1)}), ElementsAre(1, 2));
  EXPECT_THAT(RunOne(executor, {Floats({1, 2}), flag(0)}), ElementsAre(2, 4));
  EXPECT_THAT(RunOne(executor, {Floats({1, 2}), flag(-3)}), ElementsAre(1, 2));
}

// carry += x[t]; y[t] = carry
TEST(ExecutorTest, ScansCarryAndStack) {
  PayloadBuilder builder({.inputs = 2, .outputs = 2, .temps = 1});
  builder.Declare(0, ScalarType::kFloat, {-1, 2});
  builder.Declare(2, ScalarType::kFloat, {-1, 2});
  const std::vector<fbs::Tid> originals = {fbs::Tid(0)}, sliced = {fbs::Tid(4)}, outputs = {fbs::Tid(2)},
                              carry = {fbs::Tid(3)};
  builder.Copy(0, 1, 3);
  builder.Emit(0, fbs::OpNode_ScanNode,
               fbs::CreateScanNodeDirect(builder.fbb(), &originals, &sliced, &outputs, &carry, 1, 0));
  builder.Add(1, 3, 4, 3);
  builder.Copy(1, 3, 2);
  Executor executor(Load(builder), nullptr);
  const HostTensor x = MakeTensor<float>(ScalarType::kFloat, {3, 2}, {1, 2, 3, 4, 5, 6});
  const std::vector<Argument> results = executor.Run(std::vector<Argument>{x, Floats({10, 20})});
  EXPECT_THAT(ToFloats(results[0]), ElementsAre(11, 22, 14, 26, 19, 32));
  EXPECT_THAT(ToFloats(results[1]), ElementsAre(19, 32));
  const HostTensor empty = MakeTensor<float>(ScalarType::kFloat, {0, 2}, {});
  EXPECT_THROW(executor.Run(std::vector<Argument>{empty, Floats({0, 0})}), Error);
}

// Out of range where the index is known, and out of range where it is only computed in the step.
TEST(ExecutorTest, IndicesNeverLeaveTheTensor) {
  PayloadBuilder builder({.constants = 1, .inputs = 2, .outputs = 1, .temps = 1});
  builder.Declare(1, ScalarType::kLong, {1});
  builder.Declare(2, ScalarType::kLong, {1});
  builder.Declare(3, ScalarType::kFloat, {1});
  builder.Add(0, 1, 2, 4);
  const fbs::Tid weight(0), index(4), out(3);
  builder.Emit(0, fbs::OpNode_TakeNode,
               fbs::CreateTakeNode(builder.fbb(), &weight, &out,
                                   fbs::CreateIntOrVidOrTid(builder.fbb(), 0, nullptr, &index, 2), 0));
  Executor executor(Load(builder), nullptr);
  const auto number = [](int64_t value) { return MakeTensor<int64_t>(ScalarType::kLong, {1}, {value}); };
  EXPECT_THAT(RunOne(executor, {number(1), number(0)}), ElementsAre(2));
  EXPECT_THAT(RunOne(executor, {number(-2), number(0)}), ElementsAre(1));
  EXPECT_THAT(RunOne(executor, {number(int64_t{1} << 40), number(5)}), ElementsAre(2));
  EXPECT_THAT(RunOne(executor, {number(-(int64_t{1} << 40)), number(0)}), ElementsAre(1));

  PayloadBuilder direct({.constants = 1, .inputs = 1, .outputs = 1});
  direct.Declare(1, ScalarType::kLong, {1});
  direct.Declare(2, ScalarType::kFloat, {1});
  const fbs::Tid known(1), result(2);
  direct.Emit(0, fbs::OpNode_TakeNode,
              fbs::CreateTakeNode(direct.fbb(), &weight, &result,
                                  fbs::CreateIntOrVidOrTid(direct.fbb(), 0, nullptr, &known, 2), 0));
  Executor strict(Load(direct), nullptr);
  EXPECT_THAT(RunOne(strict, {number(-1)}), ElementsAre(2));
  for (int64_t wrong : {int64_t{2}, int64_t{-3}, INT64_MAX, INT64_MIN}) {
    EXPECT_THROW(RunOne(strict, {number(wrong)}), Error) << wrong;
  }
}

TEST(ExecutorTest, IntegerDivisionNeverTraps) {
  PayloadBuilder builder({.inputs = 2, .outputs = 2});
  for (uint32_t slot = 0; slot < 4; ++slot) builder.Declare(slot, ScalarType::kInt, {-1});
  const fbs::Tid a(0), b(1), quotient(2), remainder(3);
  builder.Emit(0, fbs::OpNode_FloorDivideNode, fbs::CreateFloorDivideNode(builder.fbb(), &a, &b, &quotient));
  builder.Emit(0, fbs::OpNode_RemainderNode, fbs::CreateRemainderNode(builder.fbb(), &a, &b, &remainder));
  Executor executor(Load(builder), nullptr);
  const std::vector<int32_t> left = {7, -7, 7, -7, 5, INT32_MIN, 6, -6};
  const std::vector<int32_t> right = {2, 2, -2, -2, 0, -1, -1, 3};
  const auto ints = [](std::vector<int32_t> values) {
    const auto count = static_cast<int64_t>(values.size());
    return MakeTensor<int32_t>(ScalarType::kInt, {count}, std::move(values));
  };
  const std::vector<Argument> results = executor.Run(std::vector<Argument>{ints(left), ints(right)});
  const auto numbers = [](const Argument& argument) {
    std::vector<int32_t> values(8);
    std::memcpy(values.data(), std::get<HostTensor>(argument).data.get(), 32);
    return values;
  };
  EXPECT_THAT(numbers(results[0]), ElementsAre(3, -4, -4, 3, 0, INT32_MIN, -6, -2));
  EXPECT_THAT(numbers(results[1]), ElementsAre(1, 1, -1, -1, 0, 0, 0, 0));
}

TEST(ExecutorTest, ImpossibleShapesAreErrors) {
  PayloadBuilder builder({.inputs = 1, .outputs = 1, .values = 1});
  builder.Declare(0, ScalarType::kLong, {});
  builder.Declare(1, ScalarType::kFloat, {-1, -1, -1});
  builder.Item(0, 0, 0);
  const fbs::Tid out(1);
  const std::vector<flatbuffers::Offset<fbs::IntOrVid>> shape = {builder.FromSlot(0), builder.FromSlot(0),
                                                                 builder.FromSlot(0)};
  builder.Emit(0, fbs::OpNode_FullNode,
               fbs::CreateFullNodeDirect(builder.fbb(), &out, &shape, fbs::CreateFloatOrVid(builder.fbb(), 1), 6));
  Executor executor(Load(builder), nullptr);
  const auto number = [](int64_t value) { return MakeTensor<int64_t>(ScalarType::kLong, {}, {value}); };
  EXPECT_EQ(RunOne(executor, {number(2)}).size(), 8U);
  for (int64_t wrong : {int64_t{-1}, int64_t{INT32_MAX}, int64_t{1} << 32, INT64_MAX, INT64_MIN}) {
    EXPECT_THROW(RunOne(executor, {number(wrong)}), Error) << wrong;
  }
  EXPECT_EQ(RunOne(executor, {number(1)}).size(), 1U);
}

TEST(ExecutorTest, StepsKeepToTheirMemory) {
  PayloadBuilder builder({.constants = 1, .inputs = 1, .outputs = 1, .temps = 1});
  builder.Add(0, 0, 1, 3);
  builder.Add(0, 3, 3, 2);
  Executor executor(Load(builder), nullptr);
  EXPECT_THAT(RunOne(executor, {Floats({1, 1})}, {.memory_limit = 16}), ElementsAre(4, 6));
  try {
    RunOne(executor, {Floats({1, 1})}, {.memory_limit = 15});
    FAIL() << "16 bytes were accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_THAT(error.what(), HasSubstr("takes 16 bytes, and its limit is 15"));
  }
}

TEST(ExecutorTest, AnyThread) {
  PayloadBuilder builder = Accumulator();
  const auto program = Load(builder);
  std::unique_ptr<Executor> executor;
  std::thread([&] { executor = std::make_unique<Executor>(program, nullptr); }).join();
  std::thread([&] { EXPECT_THAT(RunOne(*executor, {Floats({1, 2})}), ElementsAre(1, 2)); }).join();
  std::thread([&] { EXPECT_THAT(RunOne(*executor, {Floats({1, 2})}), ElementsAre(2, 4)); }).join();
  std::thread([&] { executor.reset(); }).join();
}

TEST(ExecutorTest, ManyExecutorsAtOnce) {
  PayloadBuilder builder = Accumulator();
  const auto program = Load(builder);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      Executor executor(program, nullptr);
      for (int i = 1; i <= 50; ++i) {
        const auto expected = static_cast<float>(i);
        EXPECT_THAT(RunOne(executor, {Floats({1, 2})}), ElementsAre(expected, 2 * expected));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Bits without a seed go on from step to step, and a step that fails does not use any up.
TEST(ExecutorTest, RandomStateIsPartOfTheExecutor) {
  PayloadBuilder builder({.inputs = 1, .outputs = 1});
  builder.Declare(1, ScalarType::kUInt32, {4});
  const fbs::Tid out(1);
  const std::vector<flatbuffers::Offset<fbs::IntOrVid>> shape = {builder.Literal(4)};
  builder.Emit(0, fbs::OpNode_RandomBitsNode, fbs::CreateRandomBitsNodeDirect(builder.fbb(), &out, &shape));
  Executor executor(Load(builder), nullptr);
  const std::vector<float> first = RunOne(executor, {Floats({0, 0})});
  EXPECT_NE(std::memcmp(first.data(), RunOne(executor, {Floats({0, 0})}).data(), 16), 0);
}

TEST(ExecutorTest, ACacheIsRequiredWhereItIsUsed) {
  PayloadBuilder builder({.inputs = 1, .outputs = 1});
  builder.Declare(0, ScalarType::kFloat, {1, 1, -1, 4});
  builder.Declare(1, ScalarType::kFloat, {1, 1, -1, 4});
  const fbs::Tid x(0), out(1);
  builder.Emit(0, fbs::OpNode_UpdateAndAttendNode,
               fbs::CreateUpdateAndAttendNode(builder.fbb(), &x, &x, &x, &x, &out, 3, 1.0F));
  const auto program = Load(builder);
  ASSERT_EQ(program->cache_layers().size(), 1U);
  EXPECT_EQ(program->cache_layers()[0].layer_id, 3);
  EXPECT_THROW(Executor(program, nullptr), Error);
  bytes::KvStoreConfig config;
  config.cache.capacity = 8;
  config.cache.n_layers = 3;
  config.cache.layers = {cache::LayerConfig{}};
  EXPECT_THROW(Executor(program, std::make_shared<bytes::KvStore>(config)), Error);
}

}  // namespace
}  // namespace offgraph::program
