// Payloads that are small and ask for a lot: the time and memory of loading follow their size. A test here that no
// longer ends, or is killed for its memory, has failed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "offgraph/cache/error.h"
#include "offgraph/program/payload.h"
#include "offgraph/program/payload_builder.h"

namespace offgraph::program {
namespace {

using ::testing::HasSubstr;
using testing::PayloadBuilder;
namespace fbs = mlx_delegate;

std::shared_ptr<const Program> Load(PayloadBuilder& builder) {
  return Program::Load(builder.Finish(), testing::Weights({{"w0", {1, 2}}}), "test");
}

std::string Refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "was accepted";
  return {};
}

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
  EXPECT_THAT(Refusal([&] { ReadPayload(payload, "test"); }), HasSubstr("far more than its size"));
}

// Each chain calls the one before it, so that no chain looks deep when chains are looked at in their order.
TEST(BoundsTest, ChainsThatNestBackwards) {
  constexpr uint32_t kChains = 50'000;
  PayloadBuilder builder({.constants = 1, .inputs = 1, .outputs = 1, .temps = 1});
  builder.Copy(0, 1, 2);
  builder.Copy(1, 0, 3);
  for (uint32_t chain = 2; chain < kChains; ++chain) builder.If(chain, builder.Literal(1), chain - 1, chain - 1);
  Scan(builder, kChains, 0, 3, kChains - 1);
  EXPECT_THAT(Refusal([&] { Load(builder); }), HasSubstr("chains nest more than"));
}

// Many scans of one body that itself runs much.
TEST(BoundsTest, ManyScansOfOneBody) {
  PayloadBuilder builder({.constants = 1, .inputs = 1, .outputs = 1, .temps = 2});
  builder.Copy(0, 1, 2);
  for (int i = 0; i < 2000; ++i) builder.If(1, builder.Literal(1), 2, 2);
  for (int i = 0; i < 2000; ++i) builder.Copy(2, 0, 3);
  for (int i = 0; i < 2000; ++i) Scan(builder, 3, 0, 4, 1);
  EXPECT_THAT(Refusal([&] { Load(builder); }), HasSubstr("more than fifty million instructions"));
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

}  // namespace
}  // namespace offgraph::program
