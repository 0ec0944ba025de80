#include "offgraph/program/payload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "offgraph/cache/error.h"
#include "offgraph/program/handler.h"
#include "offgraph/program/inspect.h"
#include "offgraph/program/payload_builder.h"

namespace offgraph::program {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::PayloadBuilder;
namespace fbs = mlx_delegate;

// What Load says about a payload; empty where it loads.
std::string Complaint(const std::vector<std::byte>& payload, ErrorCode code = ErrorCode::kBadFile) {
  try {
    Program::Load(payload, testing::Weights({{"w0", {1, 2}}, {"w1", {3, 4}}}), "test");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_EQ(std::string(error.what()).rfind("test: ", 0), 0U) << error.what();
    return error.what();
  }
  return {};
}

std::vector<std::byte> AddPayload() {
  PayloadBuilder builder({.constants = 1, .inputs = 1, .outputs = 1});
  builder.Add(0, 0, 1, 2);
  return builder.Finish();
}

TEST(PayloadTest, DecodesEveryKindOfField) {
  PayloadBuilder builder({.inputs = 1, .outputs = 1, .temps = 2, .values = 1});
  auto& fbb = builder.fbb();
  const fbs::Tid t0(0), t1(1), t2(2);
  const fbs::Vid v0(0);
  builder.Emit(0, fbs::OpNode_SymSizeNode, fbs::CreateSymSizeNode(fbb, &t0, -1, &v0));
  const std::vector<flatbuffers::Offset<fbs::IntOrVid>> shape = {builder.Literal(1), builder.FromSlot(0)};
  builder.Emit(0, fbs::OpNode_ReshapeNode, fbs::CreateReshapeNodeDirect(fbb, &t0, &t2, &shape));
  builder.Emit(0, fbs::OpNode_TakeNode,
               fbs::CreateTakeNode(fbb, &t2, &t1, fbs::CreateIntOrVidOrTid(fbb, 0, nullptr, nullptr, 0), 0));
  builder.Emit(0, fbs::OpNode_RMSNormNode, fbs::CreateRMSNormNode(fbb, &t1, nullptr, &t1, 0.5F));
  const std::vector<std::byte> payload = builder.Finish();
  const Graph graph = ReadPayload(payload, "test");
  ASSERT_EQ(graph.chains.size(), 1U);
  ASSERT_EQ(graph.chains[0].size(), 4U);
  EXPECT_EQ(ToString(graph.chains[0][0]), "SymSizeNode(a=t0, dim=-1, out=v0)");
  EXPECT_EQ(ToString(graph.chains[0][1]), "ReshapeNode(x=t0, out=t2, shape=[1, v0])");
  EXPECT_EQ(ToString(graph.chains[0][2]), "TakeNode(x=t2, out=t1, index=0, axis=0)");
  EXPECT_EQ(ToString(graph.chains[0][3]), "RMSNormNode(x=t1, out=t1, eps=0.5)");
  const SlotUse use = UseOf(graph.chains[0][1]);
  EXPECT_THAT(use.reads, ElementsAre(Tid{0}));
  EXPECT_THAT(use.writes, ElementsAre(Tid{2}));
  EXPECT_THAT(use.value_reads, ElementsAre(Vid{0}));
}

TEST(PayloadTest, AbsentScalarsAreNotZero) {
  PayloadBuilder builder({.inputs = 1, .outputs = 1});
  const fbs::Tid t0(0), t1(1);
  builder.Emit(0, fbs::OpNode_UpdateAndAttendNode,
               fbs::CreateUpdateAndAttendNode(builder.fbb(), &t0, &t0, &t0, &t0, &t1));
  const std::vector<std::byte> payload = builder.Finish();
  const Graph graph = ReadPayload(payload, "test");
  for (const char* name : {"layer_id", "scale", "out_dtype"}) {
    EXPECT_TRUE(std::holds_alternative<std::monostate>(FindField(graph.chains[0][0], name)->value)) << name;
  }
  EXPECT_THAT(Complaint(payload), HasSubstr("layer_id is absent"));
}

TEST(PayloadTest, ScaleHasNoDefault) {
  PayloadBuilder builder({.inputs = 1, .outputs = 1});
  const fbs::Tid t0(0), t1(1);
  builder.Emit(0, fbs::OpNode_UpdateAndAttendNode,
               fbs::CreateUpdateAndAttendNode(builder.fbb(), &t0, &t0, &t0, &t0, &t1, 0));
  EXPECT_THAT(Complaint(builder.Finish()), HasSubstr("scale is absent"));
}

// The cache's kernels write what they are told to: a type that is none of theirs must not reach them.
TEST(PayloadTest, AttentionGivesFloats) {
  for (const ScalarType type : {ScalarType::kByte, ScalarType::kLong, ScalarType::kBool, ScalarType::kDouble}) {
    PayloadBuilder builder({.inputs = 1, .outputs = 1});
    const fbs::Tid t0(0), t1(1);
    builder.Emit(
        0, fbs::OpNode_UpdateAndAttendNode,
        fbs::CreateUpdateAndAttendNode(builder.fbb(), &t0, &t0, &t0, &t0, &t1, 0, 1.0F, static_cast<int8_t>(type)));
    EXPECT_THAT(Complaint(builder.Finish()), HasSubstr("out_dtype is " + Name(type)));
  }
}

TEST(PayloadTest, EveryCutIsNoticed) {
  const std::vector<std::byte> payload = AddPayload();
  ASSERT_EQ(Complaint(payload), "");
  for (size_t size = 0; size < payload.size(); ++size) {
    EXPECT_NE(Complaint({payload.begin(), payload.begin() + static_cast<ptrdiff_t>(size)}), "") << size;
  }
}

TEST(PayloadTest, HeaderIsChecked) {
  std::vector<std::byte> payload = AddPayload();
  payload[4] = std::byte{'X'};
  EXPECT_THAT(Complaint(payload), HasSubstr("\"MLX0\" is not at byte 4"));
  payload = AddPayload();
  payload[15] = std::byte{0xFF};  // the data segment starts behind the end
  EXPECT_THAT(Complaint(payload), HasSubstr("data segment"));
}

// Instructions may lie at any address: the FlatBuffer is read where its words are not aligned, too.
TEST(PayloadTest, UnalignedBytes) {
  const std::vector<std::byte> payload = AddPayload();
  for (size_t shift = 1; shift < 9; ++shift) {
    std::vector<std::byte> moved(shift);
    moved.insert(moved.end(), payload.begin(), payload.end());
    EXPECT_EQ(ReadPayload(std::span(moved).subspan(shift), "test").chains[0].size(), 1U);
  }
}

TEST(PayloadTest, SlotsOutOfRange) {
  PayloadBuilder tensor({.inputs = 1, .outputs = 1});
  tensor.Add(0, 0, 0, 1000);
  EXPECT_THAT(Complaint(tensor.Finish()), HasSubstr("instruction 0 (AddNode): tensor slot 1000, but there are 2"));
  PayloadBuilder value({.inputs = 1, .outputs = 1, .values = 1});
  value.Item(0, 0, 1);
  EXPECT_THAT(Complaint(value.Finish()), HasSubstr("value slot 1, but there are 1"));
  PayloadBuilder chain({.inputs = 1, .outputs = 1});
  chain.If(0, chain.Literal(1), 0x80000000U, 7);
  EXPECT_THAT(Complaint(chain.Finish()), HasSubstr("chain"));
  PayloadBuilder counts({.inputs = 1, .outputs = 1, .temps = 0xFFFFFFF0U});
  counts.Copy(0, 0, 1);
  EXPECT_THAT(Complaint(counts.Finish()), HasSubstr("slots are declared"));
}

TEST(PayloadTest, SlotsAreWrittenBeforeTheyAreRead) {
  PayloadBuilder temp({.inputs = 1, .outputs = 1, .temps = 1});
  temp.Add(0, 0, 2, 1);
  EXPECT_THAT(Complaint(temp.Finish()), HasSubstr("tensor slot 2 is read before it is written"));
  PayloadBuilder output({.inputs = 1, .outputs = 1, .temps = 1});
  output.Copy(0, 0, 2);
  EXPECT_THAT(Complaint(output.Finish()), HasSubstr("tensor slot 1 is never written"));
  // One branch alone is not enough.
  PayloadBuilder branch({.inputs = 1, .outputs = 1});
  branch.If(0, branch.Literal(1), 1, 2);
  branch.Copy(1, 0, 1);
  branch.AddChain();
  EXPECT_THAT(Complaint(branch.Finish()), HasSubstr("tensor slot 1 is never written"));
  PayloadBuilder constant({.constants = 1, .inputs = 1, .outputs = 1});
  constant.Copy(0, 1, 2);
  constant.Copy(0, 1, 0);
  EXPECT_THAT(Complaint(constant.Finish()), HasSubstr("a constant is written"));
}

TEST(PayloadTest, ChainsThatCallThemselves) {
  PayloadBuilder builder({.inputs = 1, .outputs = 1});
  builder.Copy(0, 0, 1);
  builder.If(0, builder.Literal(1), 1, 1);
  builder.If(1, builder.Literal(1), 0, 0);
  EXPECT_THAT(Complaint(builder.Finish()), HasSubstr("calls itself"));
}

// Each chain calls the next one twice: few bytes, 2^60 instructions.
TEST(PayloadTest, ChainsThatMultiply) {
  PayloadBuilder builder({.inputs = 1, .outputs = 1});
  builder.Copy(0, 0, 1);
  for (uint32_t chain = 0; chain < 15; ++chain) {
    for (int i = 0; i < 8; ++i) builder.If(chain, builder.Literal(1), chain + 1, chain + 1);
  }
  builder.Copy(15, 0, 1);
  EXPECT_THAT(Complaint(builder.Finish()), HasSubstr("fifty million"));
}

TEST(PayloadTest, WeightsAreChecked) {
  PayloadBuilder missing({.constants = 3, .inputs = 1, .outputs = 1});
  missing.Add(0, 2, 3, 4);
  EXPECT_THAT(Complaint(missing.Finish()), HasSubstr("weight \"w2\": the file does not hold it"));
  PayloadBuilder size({.constants = 1, .inputs = 1, .outputs = 1});
  size.Declare(0, ScalarType::kFloat, {3});
  size.Add(0, 0, 1, 2);
  EXPECT_THAT(Complaint(size.Finish()), HasSubstr("fp32 [3] has 12 bytes, and the file holds 8"));
  PayloadBuilder dynamic({.constants = 1, .inputs = 1, .outputs = 1});
  dynamic.Declare(0, ScalarType::kFloat, {-1});
  dynamic.Add(0, 0, 1, 2);
  EXPECT_THAT(Complaint(dynamic.Finish()), HasSubstr("expected one number"));
}

TEST(PayloadTest, BuffersHaveACountableSize) {
  PayloadBuilder builder({.inputs = 1, .outputs = 1, .buffers = 9});
  // Each has 2^60 bytes.
  for (uint32_t slot = 2; slot < 11; ++slot) builder.Declare(slot, ScalarType::kFloat, {1 << 29, 1 << 29});
  builder.Copy(0, 0, 1);
  EXPECT_THAT(Complaint(builder.Finish()), HasSubstr("all buffers together"));
}

TEST(PayloadTest, MetalKernelsAreRefusedByName) {
  PayloadBuilder builder({.inputs = 1, .outputs = 1});
  auto& fbb = builder.fbb();
  const std::vector<fbs::Tid> in = {fbs::Tid(0)}, out = {fbs::Tid(1)};
  const std::vector<flatbuffers::Offset<fbs::IntOrVid>> grid = {builder.Literal(1)};
  builder.Emit(0, fbs::OpNode_MetalKernelNode,
               fbs::CreateMetalKernelNodeDirect(fbb, "k", "source", &in, &out, &grid, &grid));
  EXPECT_THAT(Complaint(builder.Finish(), ErrorCode::kUnsupported),
              ::testing::AllOf(HasSubstr("MetalKernelNode"), HasSubstr("Apple GPUs")));
}

// A file of a newer exporter than this build: the number is all that there is to name.
TEST(PayloadTest, OpsBeyondTheSchemaAreRefused) {
  PayloadBuilder builder({.inputs = 1, .outputs = 1});
  builder.Copy(0, 0, 1);
  builder.Emit(0, static_cast<fbs::OpNode>(250), fbs::CreateNoopNode(builder.fbb()));
  EXPECT_THAT(Complaint(builder.Finish(), ErrorCode::kUnsupported),
              ::testing::AllOf(HasSubstr("chain 0, instruction 1: op number 250"), HasSubstr("build against")));
}

// Every op of the schema runs but the one that cannot.
TEST(PayloadTest, EveryOpHasAHandler) {
  EXPECT_THAT(UnhandledOps(), ElementsAre("MetalKernelNode"));
  EXPECT_THAT(SchemaOps(), ::testing::Contains("UpdateAndAttendNode"));
}

}  // namespace
}  // namespace offgraph::program
