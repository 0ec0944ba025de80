#include "offgraph/program/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mlx/memory.h>

#include <bit>
#include <cstring>
#include <new>
#include <optional>
#include <thread>

#include "offgraph/bytes/mlx_allocator.h"
#include "offgraph/cache/error.h"
#include "offgraph/program/payload_builder.h"

namespace offgraph::program {
namespace {

using ::testing::ElementsAre;
using testing::Floats;
using ::testing::HasSubstr;
using testing::Load;
using testing::MakeTensor;
using testing::PayloadBuilder;
namespace fbs = mlx_delegate;

std::vector<float> ToFloats(const Argument& argument) {
  const auto& tensor = std::get<HostTensor>(argument);
  size_t count = 1;
  for (int64_t dim : tensor.shape) count *= static_cast<size_t>(dim);
  const auto* data = static_cast<const float*>(tensor.data.get());  // null where the tensor is empty
  return {data, data + count};
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

TEST(ExecutorTest, ResultsMayBeEmpty) {
  PayloadBuilder builder({.inputs = 1, .outputs = 1});
  builder.Copy(0, 0, 1);
  builder.Declare(0, ScalarType::kFloat, {0});
  Executor executor(Load(builder), nullptr);
  EXPECT_THAT(RunOne(executor, {HostTensor{ScalarType::kFloat, {0}, nullptr}}), ElementsAre());
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

// A cache in the graph, [1, capacity, columns], of which a step writes three rows from `start` on, and returns one.
enum class Update : uint8_t { kSlice, kRing, kIndices, kComputedIndices };
PayloadBuilder InGraphCache(Update update, int32_t capacity, int32_t columns) {
  PayloadBuilder builder({.inputs = 3, .outputs = 1, .buffers = 1, .temps = 3, .values = 4});
  const fbs::Tid rows(0), start(1), indices(2), output(3), buffer(4), head(5), tail(6), computed(7);
  builder.Declare(0, ScalarType::kFloat, {1, 3, columns});
  builder.Declare(1, ScalarType::kLong, {});
  builder.Declare(2, ScalarType::kLong, {3});
  builder.Declare(3, ScalarType::kFloat, {1, 1, columns});
  builder.Declare(4, ScalarType::kFloat, {1, capacity, columns});
  builder.Item(0, 1, 0);
  auto& fbb = builder.fbb();
  const auto slice = [&](const fbs::Tid& from, const fbs::Tid& to, auto first, auto end) {
    builder.Emit(0, fbs::OpNode_SliceNode, fbs::CreateSliceNode(fbb, &from, &to, builder.Literal(1), first, end));
  };
  const auto write = [&](const fbs::Tid& part, auto first, auto end) {
    builder.Emit(0, fbs::OpNode_SliceUpdateNode,
                 fbs::CreateSliceUpdateNode(fbb, &buffer, &part, &buffer, builder.Literal(1), first, end));
  };
  const auto add = [&](uint32_t value, int64_t addend, uint32_t out) {
    const fbs::Vid vid(out);
    builder.Emit(0, fbs::OpNode_AddIntNode,
                 fbs::CreateAddIntNode(fbb, builder.FromSlot(value), builder.Literal(addend), &vid));
  };
  switch (update) {
    case Update::kSlice:
      add(0, 3, 1);
      write(rows, builder.FromSlot(0), builder.FromSlot(1));
      break;
    case Update::kRing:  // two rows up to the end, and one at the beginning
      slice(rows, head, builder.Literal(0), builder.Literal(2));
      slice(rows, tail, builder.Literal(2), builder.Literal(3));
      write(head, builder.Literal(capacity - 2), builder.Literal(capacity));
      write(tail, builder.Literal(0), builder.Literal(1));
      break;
    case Update::kIndices:
    case Update::kComputedIndices: {
      const bool known = update == Update::kIndices;
      builder.Add(0, 2, 2, 7);  // 2 i: every other row
      builder.Emit(0, fbs::OpNode_IndexCopyNode,
                   fbs::CreateIndexCopyNode(fbb, &buffer, &rows, known ? &indices : &computed, &buffer, 1));
      break;
    }
  }
  slice(buffer, output, builder.Literal(0), builder.Literal(1));
  return builder;
}

// Where a step writes a few rows of a buffer, the memory that it takes does not depend on the buffer's size: nothing
// copies it.
TEST(ExecutorTest, BuffersAreUpdatedInPlace) {
  constexpr int32_t kColumns = 256;
  const HostTensor rows =
      MakeTensor<float>(ScalarType::kFloat, {1, 3, kColumns}, std::vector<float>(size_t{3} * kColumns, 3));
  const HostTensor start = MakeTensor<int64_t>(ScalarType::kLong, {}, {0});
  const HostTensor indices = MakeTensor<int64_t>(ScalarType::kLong, {3}, {0, 1, 5});
  for (const Update update : {Update::kSlice, Update::kRing, Update::kIndices, Update::kComputedIndices}) {
    for (const int32_t capacity : {1024, 16384}) {  // 1 and 16 MiB
      PayloadBuilder builder = InGraphCache(update, capacity, kColumns);
      Executor executor(Load(builder), nullptr);
      for (int step = 0; step < 5; ++step) {
        const size_t before = mlx::core::get_active_memory();
        mlx::core::reset_peak_memory();
        EXPECT_EQ(RunOne(executor, {rows, start, indices}).at(17), 3);
        EXPECT_LT(mlx::core::get_peak_memory(), before + size_t{64} * 1024)
            << "update " << static_cast<int>(update) << " of " << capacity << " rows, step " << step;
      }
    }
  }
}

// A step of every kind of control flow fails at every place: before an instruction, and where MLX asks for memory.
TEST(ExecutorTest, AFailureAtAnyPlaceLeavesBuffersAsTheyWere) {
  PayloadBuilder builder({.inputs = 2, .outputs = 1, .buffers = 1, .temps = 2, .values = 1});
  builder.Declare(0, ScalarType::kFloat, {3, 2});
  builder.Declare(1, ScalarType::kLong, {});
  for (const uint32_t slot : {2U, 3U}) builder.Declare(slot, ScalarType::kFloat, {8, 2});
  const fbs::Tid x(0), buffer(3), row(4);
  const auto write = [&](size_t chain, const fbs::Tid& part, int64_t first, int64_t end) {
    builder.Emit(chain, fbs::OpNode_SliceUpdateNode,
                 fbs::CreateSliceUpdateNode(builder.fbb(), &buffer, &part, &buffer, builder.Literal(0),
                                            builder.Literal(first), builder.Literal(end)));
  };
  const std::vector<fbs::Tid> originals = {x}, sliced = {row}, outputs = {fbs::Tid(5)}, carry;
  builder.Item(0, 1, 0);
  builder.If(0, builder.FromSlot(0), 1, 2);
  builder.Copy(0, 3, 2);
  write(1, x, 2, 5);
  builder.Emit(1, fbs::OpNode_ScanNode,
               fbs::CreateScanNodeDirect(builder.fbb(), &originals, &sliced, &outputs, &carry, 3, 0));
  builder.AddChain();
  builder.Add(3, 4, 4, 5);
  write(3, fbs::Tid(5), 4, 6);
  Executor executor(Load(builder), nullptr);
  const auto step = [&](std::vector<float> numbers, int64_t writes, const RunOptions& options = {}) {
    return RunOne(executor,
                  {MakeTensor<float>(ScalarType::kFloat, {3, 2}, std::move(numbers)),
                   MakeTensor<int64_t>(ScalarType::kLong, {}, {writes})},
                  options);
  };
  const std::vector<float> before = step({1, 2, 3, 4, 5, 6}, 1);
  EXPECT_THAT(before, ElementsAre(0, 0, 0, 0, 1, 2, 3, 4, 10, 12, 10, 12, 0, 0, 0, 0));

  int64_t places = 0;
  for (bool failed = true; failed; ++places) {
    int64_t asked = 0;
    failed = false;
    const auto fail = [&] {
      if (asked++ == places) throw std::bad_alloc();
    };
    try {
      step({7, 7, 7, 7, 7, 7}, 1, {.probe = fail});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory) << error.what();
      failed = true;
      EXPECT_EQ(step({0, 0, 0, 0, 0, 0}, 0), before) << "place " << places;
    }
  }
  EXPECT_GT(places, 9);  // three instructions, two of the branch, two for each row
  step({1, 2, 3, 4, 5, 6}, 1);

  static int64_t left = 0;
  for (int64_t n = 0;; ++n) {
    left = n;
    bytes::SetAllocationProbe([](size_t) {
      if (left-- == 0) throw std::bad_alloc();
    });
    std::optional<Error> failure;
    try {
      step({7, 7, 7, 7, 7, 7}, 1);
    } catch (const Error& error) {
      failure = error;
    }
    bytes::SetAllocationProbe(nullptr);
    if (!failure) break;
    EXPECT_EQ(failure->code(), ErrorCode::kOutOfMemory) << failure->what();
    EXPECT_EQ(step({0, 0, 0, 0, 0, 0}, 0), before) << "allocation " << n;
  }
}

// A buffer may be a weight's memory, which lies in a file that nobody may write.
TEST(ExecutorTest, ABufferThatIsAWeightIsNeverWritten) {
  PayloadBuilder builder({.constants = 1, .inputs = 2, .outputs = 1, .buffers = 1, .values = 1});
  builder.Declare(1, ScalarType::kFloat, {1});
  builder.Declare(2, ScalarType::kLong, {});
  const fbs::Tid part(1), buffer(4);
  builder.Item(0, 2, 0);
  builder.If(0, builder.FromSlot(0), 1, 2);
  builder.Copy(0, 4, 3);
  builder.Copy(1, 0, 4);
  builder.Emit(2, fbs::OpNode_SliceUpdateNode,
               fbs::CreateSliceUpdateNode(builder.fbb(), &buffer, &part, &buffer, builder.Literal(0),
                                          builder.Literal(1), builder.Literal(2)));
  const auto program = Load(builder);
  Executor executor(program, nullptr);
  const auto step = [&](int64_t takes_weight, const RunOptions& options = {}) {
    return RunOne(executor, {Floats({7}), MakeTensor<int64_t>(ScalarType::kLong, {}, {takes_weight})}, options);
  };
  const auto refuse = [](const std::vector<Argument>&) { throw Error(ErrorCode::kOutOfRange, "refused"); };
  EXPECT_THAT(step(1), ElementsAre(1, 2));
  EXPECT_THROW(step(0, {.accept = refuse}), Error);
  EXPECT_THAT(step(0), ElementsAre(1, 7));
  EXPECT_THAT(step(1), ElementsAre(1, 2)) << "the weight was written";
  executor.Reset();
  EXPECT_THAT(step(0), ElementsAre(0, 7));
  EXPECT_THAT(step(1), ElementsAre(1, 2)) << "the weight was written";
}

// What takes the results may refuse them: then the step did not happen.
TEST(ExecutorTest, ResultsThatAreNotAcceptedUndoTheStep) {
  PayloadBuilder builder = Accumulator();
  Executor executor(Load(builder), nullptr);
  RunOne(executor, {Floats({1, 2})});
  const auto refuse = [](const std::vector<Argument>& results) {
    EXPECT_THAT(ToFloats(results.at(0)), ElementsAre(101, 102));
    throw Error(ErrorCode::kOutOfRange, "too large");
  };
  EXPECT_THROW(RunOne(executor, {Floats({100, 100})}, {.accept = refuse}), Error);
  EXPECT_THAT(RunOne(executor, {Floats({1, 2})}), ElementsAre(2, 4));
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
  // Two results of 8 bytes, and 512 for the description of each.
  EXPECT_THAT(RunOne(executor, {Floats({1, 1})}, {.memory_limit = 1040}), ElementsAre(4, 6));
  try {
    RunOne(executor, {Floats({1, 1})}, {.memory_limit = 1039});
    FAIL() << "1040 bytes were accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_THAT(error.what(), HasSubstr("a result of shape [2] the step takes 1040 bytes, and its limit is 1039"));
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
  threads.reserve(4);
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
  // Bits, of which some may make no number.
  const auto bits = [](const std::vector<float>& words) {
    std::vector<uint32_t> all;
    all.reserve(words.size());
    for (float word : words) all.push_back(std::bit_cast<uint32_t>(word));
    return all;
  };
  EXPECT_NE(bits(first), bits(RunOne(executor, {Floats({0, 0})})));
}

// Also where the program computes its position.
TEST(ExecutorTest, AStepAtZeroMayStartOver) {
  PayloadBuilder builder({.inputs = 3, .outputs = 1, .temps = 1});
  builder.Declare(0, ScalarType::kFloat, {1, 1, -1, 4});
  builder.Declare(1, ScalarType::kLong, {1});
  builder.Declare(2, ScalarType::kLong, {1});
  builder.Declare(3, ScalarType::kFloat, {1, 1, -1, 4});
  builder.Add(0, 1, 2, 4);
  const fbs::Tid x(0), out(3), position(4);
  builder.Emit(0, fbs::OpNode_UpdateAndAttendNode,
               fbs::CreateUpdateAndAttendNode(builder.fbb(), &x, &x, &x, &position, &out, 0, 1.0F));
  bytes::KvStoreConfig config;
  config.cache.capacity = 8;
  config.cache.n_layers = 1;
  config.cache.layers = {cache::LayerConfig{}};
  const auto store = std::make_shared<bytes::KvStore>(config);
  Executor executor(Load(builder), store);
  const auto step = [&](float value, int64_t at, const RunOptions& options) {
    const auto number = [](int64_t n) { return MakeTensor<int64_t>(ScalarType::kLong, {1}, {n}); };
    const HostTensor token = MakeTensor<float>(ScalarType::kFloat, {1, 1, 1, 4}, std::vector<float>(4, value));
    return RunOne(executor, {token, number(at - 5), number(5)}, options).at(0);
  };
  const RunOptions restart = {.restart_at_zero = true};
  EXPECT_EQ(step(1, 0, restart), 1);
  EXPECT_GT(step(2, 1, restart), 1);
  EXPECT_EQ(store->sequences().length(), 2);
  EXPECT_THROW(step(3, 0, {}), Error);
  EXPECT_THROW(step(3, 1, restart), Error);
  EXPECT_EQ(store->sequences().length(), 2);
  EXPECT_EQ(step(3, 0, restart), 3);
  EXPECT_EQ(store->sequences().length(), 1);
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
