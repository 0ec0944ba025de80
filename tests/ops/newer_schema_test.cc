// Built with a schema that has an op and a field more than the handlers know (newer_schema.cmake): what an ExecuTorch
// release of next year may bring. The build works, and what it cannot run is refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "offgraph/cache/error.h"
#include "offgraph/program/inspect.h"
#include "offgraph/program/payload.h"
#include "offgraph/program/payload_builder.h"

namespace offgraph::program {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::PayloadBuilder;
namespace fbs = mlx_delegate;

// What Load says about a payload; empty where it loads.
std::string Complaint(const std::vector<std::byte>& payload) {
  try {
    Program::Load(payload, testing::Weights({}), "test");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << error.what();
    return error.what();
  }
  return {};
}

TEST(NewerSchemaTest, OpsWithoutHandlerAreNamed) {
  EXPECT_THAT(SchemaOps(), ::testing::Contains("FutureNode"));
  EXPECT_THAT(UnhandledOps(), ElementsAre("MetalKernelNode", "FutureNode"));
}

TEST(NewerSchemaTest, AFileWithANewOpIsRefusedByName) {
  PayloadBuilder builder({.inputs = 1, .outputs = 1});
  const fbs::Tid x(0), out(1);
  builder.Emit(0, fbs::OpNode_FutureNode, fbs::CreateFutureNode(builder.fbb(), &x, &out));
  EXPECT_THAT(Complaint(builder.Finish()), HasSubstr("ops that this build cannot run: FutureNode"));
}

// A field of a kind that nobody can read yet, in use.
TEST(NewerSchemaTest, ANewKindOfFieldIsRefusedByName) {
  PayloadBuilder builder({.inputs = 1, .outputs = 1});
  const fbs::Tid x(0), out(1);
  const auto labels = builder.fbb().CreateVector(
      std::vector<flatbuffers::Offset<fbs::FutureLabel>>{fbs::CreateFutureLabelDirect(builder.fbb(), "a")});
  builder.Emit(0, fbs::OpNode_FutureNode, fbs::CreateFutureNode(builder.fbb(), &x, &out, labels));
  EXPECT_THAT(Complaint(builder.Finish()), AllOf(HasSubstr("FutureNode"), HasSubstr("labels")));
}

// A field that changes what a known op means: not to be ignored, but where it is at its default.
TEST(NewerSchemaTest, ANewFieldOfAKnownOpIsRefusedByName) {
  for (const int window : {0, 4}) {
    PayloadBuilder builder({.inputs = 1, .outputs = 1});
    const fbs::Tid x(0), out(1);
    builder.Emit(0, fbs::OpNode_SdpaNode,
                 fbs::CreateSdpaNode(builder.fbb(), &x, &x, &x, &out, 1.0F, nullptr, false, window));
    const std::string complaint = Complaint(builder.Finish());
    if (window == 0) {
      EXPECT_EQ(complaint, "");
    } else {
      EXPECT_THAT(complaint, HasSubstr("(SdpaNode): this build does not know the field window, which is 4"));
    }
  }
}

}  // namespace
}  // namespace offgraph::program
