// Payloads that are small and ask for a lot: the time and memory of loading follow their size, and what they ask for
// when they run has limits. A test here that no longer ends, or is killed for its memory, has failed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "offgraph/cache/error.h"
#include "offgraph/cache/error_test_util.h"
#include "offgraph/program/executor.h"
#include "offgraph/program/payload.h"
#include "offgraph/program/payload_builder.h"

namespace offgraph::program {
namespace {

using ::testing::HasSubstr;
using testing::Load;
using testing::MakeTensor;
using testing::PayloadBuilder;
namespace fbs = mlx_delegate;

void Scan(PayloadBuilder& builder, size_t chain, uint32_t original, uint32_t slice, uint32_t body) {
  const std::vector<fbs::Tid> originals = {fbs::Tid(original)}, sliced = {fbs::Tid(slice)}, none;
  builder.Emit(chain, fbs::OpNode_ScanNode,
               fbs::CreateScanNodeDirect(builder.fbb(), &originals, &sliced, &none, &none, static_cast<int32_t>(body)));
}

void Cast(PayloadBuilder& builder, uint32_t x, uint32_t out) {
  const fbs::Tid from(x), to(out);
  builder.Emit(0, fbs::OpNode_AsTypeNode,
               fbs::CreateAsTypeNode(builder.fbb(), &from, &to, static_cast<int8_t>(ScalarType::kFloat)));
}

void Concatenate(PayloadBuilder& builder, const std::vector<fbs::Tid>& tensors, uint32_t out) {
  const fbs::Tid to(out);
  builder.Emit(0, fbs::OpNode_ConcatenateNode, fbs::CreateConcatenateNodeDirect(builder.fbb(), &tensors, &to, 0));
}

// One long name, and many slots that have it.
TEST(BoundsTest, ManySlotsWithOneLongName) {
  flatbuffers::FlatBufferBuilder fbb;
  const auto name = fbb.CreateString(std::string(100'000, 'x'));
  const auto named = fbs::CreateNamedSlot(fbb, name, fbs::CreateSlotVariant(fbb, 0));
  const std::vector<flatbuffers::Offset<fbs::NamedSlot>> names(100'000, named);
  const std::vector<flatbuffers::Offset<fbs::Instruction>> no_instructions;
  const std::vector<flatbuffers::Offset<fbs::InstructionChain>> chains = {
      fbs::CreateInstructionChainDirect(fbb, &no_instructions)};
  fbb.Finish(fbs::CreateMLXGraphDirect(fbb, "1", 0, 0, 1, 0, 0, 0, &chains, 0, -1, nullptr, nullptr, nullptr, &names));
  const std::vector<std::byte> payload = testing::WithHeader(fbb);
  EXPECT_THAT(Refusal(ErrorCode::kBadFile, [&] { ReadPayload(payload, "test"); }), HasSubstr("far more than its size"));
}

// Each chain calls the one before it, so that no chain looks deep when chains are looked at in their order.
TEST(BoundsTest, ChainsThatNestBackwards) {
  constexpr uint32_t kChains = 50'000;
  PayloadBuilder builder({.constants = 1, .inputs = 1, .outputs = 1, .temps = 1});
  builder.Copy(0, 1, 2);
  builder.Copy(1, 0, 3);
  for (uint32_t chain = 2; chain < kChains; ++chain) builder.If(chain, builder.Literal(1), chain - 1, chain - 1);
  Scan(builder, kChains, 0, 3, kChains - 1);
  EXPECT_THAT(Refusal(ErrorCode::kBadFile, [&] { Load(builder); }), HasSubstr("chains nest more than"));
}

// Many scans of one body that itself runs much.
TEST(BoundsTest, ManyScansOfOneBody) {
  PayloadBuilder builder({.constants = 1, .inputs = 1, .outputs = 1, .temps = 2});
  builder.Copy(0, 1, 2);
  for (int i = 0; i < 2000; ++i) builder.If(1, builder.Literal(1), 2, 2);
  for (int i = 0; i < 2000; ++i) builder.Copy(2, 0, 3);
  for (int i = 0; i < 2000; ++i) Scan(builder, 3, 0, 4, 1);
  EXPECT_THAT(Refusal(ErrorCode::kBadFile, [&] { Load(builder); }), HasSubstr("more than fifty million instructions"));
}

// Every tensor is made of the one before, a hundred times over: there are 100^8 ways back to the constant.
TEST(BoundsTest, ManyWaysToAConstant) {
  PayloadBuilder builder({.constants = 1, .inputs = 1, .outputs = 1, .temps = 10});
  builder.Declare(1, ScalarType::kFloat, {-1, -1});
  builder.Declare(2, ScalarType::kFloat, {-1, -1});
  uint32_t last = 0;
  for (uint32_t temp = 3; temp < 12; ++temp) {
    Concatenate(builder, std::vector<fbs::Tid>(100, fbs::Tid(last)), temp);
    last = temp;
  }
  const fbs::Tid x(1), w(last), out(2);
  builder.Emit(0, fbs::OpNode_AddmmNode, fbs::CreateAddmmNode(builder.fbb(), &x, &w, &out));
  EXPECT_NE(Load(builder), nullptr);
}

// A way back of a hundred thousand casts, which no recursion survives.
TEST(BoundsTest, ALongWayToAConstant) {
  PayloadBuilder builder({.constants = 1, .inputs = 1, .outputs = 1, .temps = 1});
  Cast(builder, 0, 3);
  for (int i = 0; i < 100'000; ++i) Cast(builder, 3, 3);
  builder.Add(0, 1, 3, 2);
  EXPECT_NE(Load(builder), nullptr);
}

// Attention nodes with a long way from each to its position.
TEST(BoundsTest, ManyPositionsFarFromTheirSource) {
  constexpr uint32_t kNodes = 10'000;
  PayloadBuilder builder({.inputs = 2, .outputs = 1, .temps = 2});
  builder.Declare(0, ScalarType::kFloat, {1, 1, -1, 4});
  builder.Declare(1, ScalarType::kLong, {-1});
  builder.Declare(2, ScalarType::kFloat, {1, 1, -1, 4});
  builder.Copy(0, 1, 3);
  builder.Copy(0, 1, 4);
  for (uint32_t i = 0; i < kNodes; ++i) {
    const fbs::Tid x(0), position(3 + i % 2), out(2);
    builder.Emit(0, fbs::OpNode_UpdateAndAttendNode,
                 fbs::CreateUpdateAndAttendNode(builder.fbb(), &x, &x, &x, &position, &out, 0, 1.0F));
  }
  EXPECT_NE(Load(builder), nullptr);
}

// Linear layers of one input that cannot be put together, and a region with many inputs.
TEST(BoundsTest, ManyLayersOfOneInput) {
  constexpr uint32_t kLayers = 10'000;
  PayloadBuilder builder({.constants = 1, .inputs = 1, .outputs = 1, .temps = 2 * kLayers + 2});
  builder.Declare(0, ScalarType::kFloat, {2, 2});
  builder.Declare(1, ScalarType::kFloat, {-1, 2});
  builder.Declare(2, ScalarType::kFloat, {-1, 2});
  const fbs::Tid w(0), x(1), transposed(3), out(2);
  const std::vector<int32_t> perm = {1, 0};
  builder.Emit(0, fbs::OpNode_TransposeNode, fbs::CreateTransposeNodeDirect(builder.fbb(), &w, &transposed, &perm));
  for (uint32_t i = 0; i < kLayers; ++i) {
    // Each result is written twice, so that no layer may move.
    const fbs::Tid result(4 + i);
    for (int times = 0; times < 2; ++times) {
      builder.Emit(0, fbs::OpNode_AddmmNode, fbs::CreateAddmmNode(builder.fbb(), &x, &transposed, &result));
    }
    builder.Add(0, 4 + i, 4 + i, 4 + kLayers + i);
  }
  builder.Copy(0, 4, 2);
  const auto payload = builder.Finish();
  const auto weights = testing::Weights({{"w0", {1, 2, 3, 4}}});
  EXPECT_NE(Program::Load(payload, weights, "test"), nullptr);
}

// Attention over [1, 1, 2^30, 1] has scores of 2^60 elements. They are a part of one op, and no result of the program.
TEST(BoundsTest, PartsOfAnOpHavePossibleSizes) {
  PayloadBuilder builder({.inputs = 1, .outputs = 1, .temps = 1});
  builder.Declare(0, ScalarType::kHalf, {1, 1, 1, 1});
  builder.Declare(1, ScalarType::kHalf, {-1, -1, -1, -1});
  const fbs::Tid x(0), out(1), wide(2);
  const std::vector<flatbuffers::Offset<fbs::IntOrVid>> shape = {builder.Literal(1), builder.Literal(1),
                                                                 builder.Literal(1 << 30), builder.Literal(1)};
  builder.Emit(0, fbs::OpNode_BroadcastToNode, fbs::CreateBroadcastToNodeDirect(builder.fbb(), &x, &wide, &shape));
  builder.Emit(0, fbs::OpNode_SdpaNode, fbs::CreateSdpaNode(builder.fbb(), &wide, &wide, &wide, &out, 1.0F));
  Executor executor(Load(builder), nullptr);
  const std::vector<Argument> arguments = {MakeTensor<uint16_t>(ScalarType::kHalf, {1, 1, 1, 1}, {0})};
  EXPECT_THAT(Refusal(ErrorCode::kOutOfMemory, [&] { executor.Run(arguments); }), HasSubstr("(SdpaNode)"));
}

TEST(BoundsTest, ConvolutionsCountTheirPaddedInputs) {
  PayloadBuilder builder({.constants = 1, .inputs = 1, .outputs = 1});
  builder.Declare(0, ScalarType::kFloat, {1, 2, 1});
  builder.Declare(1, ScalarType::kFloat, {1, 2, 1});
  builder.Declare(2, ScalarType::kFloat, {-1, -1, -1});
  const fbs::Tid w(0), x(1), out(2);
  constexpr int32_t kFar = 1 << 29;
  // Three windows, over an input that is padded to 2^30 elements.
  builder.Emit(0, fbs::OpNode_Conv1DNode, fbs::CreateConv1DNode(builder.fbb(), &x, &w, &out, kFar, kFar));
  Executor executor(Load(builder), nullptr);
  const std::vector<Argument> arguments = {MakeTensor<float>(ScalarType::kFloat, {1, 2, 1}, {1, 2})};
  EXPECT_THAT(Refusal(ErrorCode::kOutOfMemory, [&] { executor.Run(arguments, {.memory_limit = 1 << 20}); }),
              HasSubstr("a convolution's padded input"));
}

TEST(BoundsTest, BuffersAndTheInitChainAreLimited) {
  PayloadBuilder builder({.inputs = 1, .outputs = 1, .buffers = 2});
  builder.Declare(2, ScalarType::kFloat, {1024});
  builder.Declare(3, ScalarType::kFloat, {1024});
  builder.Copy(0, 0, 1);
  builder.AddChain();
  builder.Add(1, 2, 2, 2);
  builder.set_init_chain(1);
  const auto program = Load(builder);
  const auto make = [&](int64_t limit) { Executor(program, nullptr, {.memory_limit = limit}); };
  EXPECT_THAT(Refusal(ErrorCode::kOutOfMemory, [&] { make(8191); }),
              HasSubstr("the mutable buffers take 8192 bytes, and the limit is 8191"));
  make(8192);
}

TEST(BoundsTest, BuffersBeyondTheMachineAreRefusedBeforeOneIsMade) {
  PayloadBuilder builder({.inputs = 1, .outputs = 1, .buffers = 3});
  for (uint32_t slot : {2, 3, 4}) builder.Declare(slot, ScalarType::kFloat, {1 << 29, 1 << 29});
  builder.Copy(0, 0, 1);
  EXPECT_THAT(Refusal(ErrorCode::kOutOfMemory, [&] { Executor(Load(builder), nullptr); }),
              HasSubstr("the mutable buffers take"));
}

// A scan of scans of scans: each chain is short, and what they run together is not.
TEST(BoundsTest, AnInitChainEnds) {
  PayloadBuilder builder({.constants = 1, .inputs = 1, .outputs = 1, .temps = 4});
  builder.Declare(0, ScalarType::kFloat, {200});
  builder.Copy(0, 1, 2);
  const fbs::Tid original(0), slice(3);
  const std::vector<fbs::Tid> originals = {original}, sliced = {slice}, none;
  for (uint32_t chain = 1; chain <= 3; ++chain) {
    builder.Emit(chain, fbs::OpNode_ScanNode,
                 fbs::CreateScanNodeDirect(builder.fbb(), &originals, &sliced, &none, &none, chain + 1, 0));
  }
  builder.Copy(4, 3, 4);
  builder.set_init_chain(1);
  std::vector<float> weights(200, 1.0F);
  const auto program = Program::Load(builder.Finish(), testing::Weights({{"w0", weights}}), "test");
  EXPECT_THAT(Refusal(ErrorCode::kBadFile, [&] { Executor(program, nullptr); }),
              HasSubstr("the init chain runs more than 1000000 instructions"));
}

}  // namespace
}  // namespace offgraph::program
