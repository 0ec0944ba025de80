#include "offgraph/program/position.h"

#include <gtest/gtest.h>

#include <limits>

#include "offgraph/cache/error.h"

namespace offgraph::program {
namespace {

Instruction Make(std::string op, std::vector<Field> fields) { return {std::move(op), std::move(fields)}; }
IntOperand Literal(int64_t value) { return {value}; }

Instruction Attend(uint32_t position) { return Make("UpdateAndAttendNode", {{"position", Tid{position}}}); }
Instruction Slice(uint32_t x, uint32_t out, IntOperand start, IntOperand stop) {
  return Make(
      "SliceNode",
      {{"x", Tid{x}}, {"out", Tid{out}}, {"axis", Literal(0)}, {"start", start}, {"stop", stop}, {"step", int64_t{1}}});
}

// Input 0 is in slot 0, int64 of one axis; slots from 1 on are temporaries.
Graph MakeGraph(Chain chain) {
  Graph graph;
  graph.n_inputs = 1;
  graph.n_temps = 8;
  graph.n_values = 1;
  graph.inputs = {{SlotKind::kTensor, 0}};
  graph.metas = {TensorMeta{ScalarType::kLong, {{1, -1}}}};
  graph.chains = {std::move(chain)};
  return graph;
}

HostTensor Longs(const std::vector<int64_t>& values) {
  auto owner = std::make_shared<std::vector<int64_t>>(values);
  return {ScalarType::kLong, {static_cast<int64_t>(values.size())}, std::shared_ptr<const void>(owner, owner->data())};
}

TEST(PositionTest, TracedThroughOpsThatMove) {
  const Graph graph = MakeGraph({
      Slice(0, 1, Literal(1), Literal(-1)),
      Make("ExpandDimsNode", {{"x", Tid{1}}, {"out", Tid{2}}, {"axis", int64_t{0}}}),
      Make("AsTypeNode", {{"x", Tid{2}}, {"out", Tid{1}}, {"scalar_type", int64_t{3}}}),  // the slot is used again
      Attend(1),
      Attend(1),
  });
  const auto source = TracePosition(graph);
  ASSERT_TRUE(source.has_value());
  EXPECT_EQ(source->input, 0U);
  EXPECT_EQ(ReadPosition(*source, Longs({9, 10, 11, 12})), (std::vector<int64_t>{10, 11}));
}

// The form that the exporter writes: position_ids[None, :], row 0 of it, as a column.
TEST(PositionTest, TracedThroughTheOneRowOfABatch) {
  const auto take = [](int64_t index) {
    return Make("TakeNode", {{"x", Tid{1}}, {"out", Tid{2}}, {"index", IndexOperand{index}}, {"axis", int64_t{0}}});
  };
  const auto graph = [&](int64_t axis, int64_t index) {
    return MakeGraph({Make("ExpandDimsNode", {{"x", Tid{0}}, {"out", Tid{1}}, {"axis", axis}}), take(index),
                      Make("ReshapeNode", {{"x", Tid{2}}, {"out", Tid{3}}}), Attend(3)});
  };
  const auto source = TracePosition(graph(0, 0));
  ASSERT_TRUE(source.has_value());
  EXPECT_EQ(ReadPosition(*source, Longs({9, 10, 11})), (std::vector<int64_t>{9, 10, 11}));
  EXPECT_FALSE(TracePosition(graph(0, 1)));
  EXPECT_FALSE(TracePosition(graph(1, 0)));  // one row's position of a column
  EXPECT_FALSE(TracePosition(MakeGraph({Make("IdCopyNode", {{"x", Tid{0}}, {"out", Tid{1}}}), take(0), Attend(2)})));
}

// As exporters spell it: [T] -> [1, T] -> [T] -> [T, 1].
TEST(PositionTest, TracedThroughAxesOfOne) {
  const Graph graph = MakeGraph({
      Make("ExpandDimsNode", {{"x", Tid{0}}, {"out", Tid{1}}, {"axis", int64_t{0}}}),
      Make("TakeNode", {{"x", Tid{1}}, {"out", Tid{2}}, {"index", IndexOperand{int64_t{0}}}, {"axis", int64_t{0}}}),
      Make("ReshapeNode",
           {{"x", Tid{2}}, {"out", Tid{3}}, {"shape", std::vector<IntOperand>{{int64_t{-1}}, {int64_t{1}}}}}),
      Attend(3),
  });
  const auto source = TracePosition(graph);
  ASSERT_TRUE(source.has_value());
  EXPECT_EQ(ReadPosition(*source, Longs({4, 5, 6})), (std::vector<int64_t>{4, 5, 6}));
}

TEST(PositionTest, NotTraced) {
  // Arithmetic; a slice that depends on a value; a slice of a tensor of higher rank; a float type; two sources.
  EXPECT_FALSE(TracePosition(MakeGraph({Make("AddNode", {{"a", Tid{0}}, {"b", Tid{0}}, {"out", Tid{1}}}), Attend(1)})));
  EXPECT_FALSE(TracePosition(MakeGraph({Slice(0, 1, Literal(0), IntOperand{Vid{0}}), Attend(1)})));
  EXPECT_FALSE(TracePosition(MakeGraph({Make("ExpandDimsNode", {{"x", Tid{0}}, {"out", Tid{1}}, {"axis", int64_t{0}}}),
                                        Slice(1, 2, Literal(0), Literal(1)), Attend(2)})));
  EXPECT_FALSE(TracePosition(
      MakeGraph({Make("AsTypeNode", {{"x", Tid{0}}, {"out", Tid{1}}, {"scalar_type", int64_t{6}}}), Attend(1)})));
  EXPECT_FALSE(TracePosition(MakeGraph({Slice(0, 1, Literal(0), Literal(1)), Attend(0), Attend(1)})));
  EXPECT_FALSE(TracePosition(MakeGraph({})));
  // A type that changes positions; an input that the program overwrites.
  EXPECT_FALSE(TracePosition(
      MakeGraph({Make("AsTypeNode", {{"x", Tid{0}}, {"out", Tid{1}}, {"scalar_type", int64_t{0}}}), Attend(1)})));
  EXPECT_FALSE(TracePosition(MakeGraph({Make("AddNode", {{"a", Tid{0}}, {"b", Tid{0}}, {"out", Tid{0}}}),
                                        Slice(0, 1, Literal(0), Literal(1)), Attend(1)})));
  Graph before = MakeGraph({Make("IfNode", {}), Attend(0)});
  before.chains.push_back({Make("AddNode", {{"a", Tid{0}}, {"b", Tid{0}}, {"out", Tid{0}}})});
  EXPECT_FALSE(TracePosition(before));
}

TEST(PositionTest, ReadsEveryIntegerTypeWithoutNarrowing) {
  const PositionSource source{0, {}};
  const int64_t big = int64_t{1} << 40;
  EXPECT_EQ(ReadPosition(source, Longs({big})), (std::vector<int64_t>{big}));
  auto ints = std::make_shared<std::vector<int32_t>>(std::vector<int32_t>{3, -4});
  EXPECT_EQ(ReadPosition(source, {ScalarType::kInt, {2}, std::shared_ptr<const void>(ints, ints->data())}),
            (std::vector<int64_t>{3, -4}));
}

TEST(PositionTest, RowsFollowEachOther) {
  EXPECT_EQ(CheckPosition({5}, 1), 5);
  EXPECT_EQ(CheckPosition({5}, 3), 5);  // where the step starts
  EXPECT_EQ(CheckPosition({5, 6, 7}, 3), 5);
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_THROW(CheckPosition({}, 1), Error);
  EXPECT_THROW(CheckPosition({5, 6}, 3), Error);
  EXPECT_THROW(CheckPosition({5, 7, 8}, 3), Error);
  EXPECT_THROW(CheckPosition({5, 5, 5}, 3), Error);
  EXPECT_THROW(CheckPosition({-1}, 1), Error);
  EXPECT_THROW(CheckPosition({kMax}, 1), Error);
  EXPECT_THROW(CheckPosition({kMax - 1, kMax}, 2), Error);
}

}  // namespace
}  // namespace offgraph::program
