#include "offgraph/program/flow.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "offgraph/program/row_selection.h"

namespace offgraph::program {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

Instruction Op(std::string op, std::vector<std::pair<std::string, uint32_t>> tids) {
  Instruction instruction{std::move(op), {}};
  for (auto& [name, tid] : tids) instruction.fields.push_back({name, Tid{tid}});
  return instruction;
}
Instruction Add(uint32_t a, uint32_t b, uint32_t out) { return Op("AddNode", {{"a", a}, {"b", b}, {"out", out}}); }
Instruction Copy(uint32_t x, uint32_t out) { return Op("IdCopyNode", {{"x", x}, {"out", out}}); }
Instruction If(int64_t then_chain, int64_t else_chain) {
  return {"IfNode", {{"cond", IntOperand{int64_t{1}}}, {"then_chain_idx", then_chain}, {"else_chain_idx", else_chain}}};
}

// Slot 0 is a constant (a vector), 1 an input, 2 the output, from 3 on temporaries.
Graph MakeGraph(std::vector<Chain> chains) {
  Graph graph;
  graph.n_constants = 1;
  graph.n_inputs = 1;
  graph.n_outputs = 1;
  graph.n_temps = 6;
  graph.inputs = {{SlotKind::kTensor, 1}};
  graph.outputs = {{SlotKind::kTensor, 2}};
  const TensorMeta vector{ScalarType::kFloat, {{4, 4}}};
  const TensorMeta rows{ScalarType::kFloat, {{1, 1}, {1, -1}, {4, 4}}};
  graph.metas = {vector, rows, rows};
  graph.chains = std::move(chains);
  return graph;
}

TEST(FlowTest, LastUses) {
  const Graph graph = MakeGraph({{
      Add(1, 0, 3),  // 3 lives to the second instruction
      Add(3, 3, 4),  // and is written anew in the third
      Copy(4, 3),    // 4 ends here
      Copy(1, 5),    // nobody reads 5
      Add(3, 1, 2),
  }});
  CheckFlow(graph, "test");
  EXPECT_THAT(LastUses(graph, 0), ElementsAre(IsEmpty(), ElementsAre(Tid{3}), ElementsAre(Tid{4}), ElementsAre(Tid{5}),
                                              ElementsAre(Tid{3})));
}

// What a branch reads lives until the branch, and what it alone touches ends with it.
TEST(FlowTest, LastUsesAcrossChains) {
  const Graph graph =
      MakeGraph({{Copy(1, 3), Copy(1, 4), If(1, 2), Copy(5, 2)}, {Copy(3, 6), Copy(6, 5)}, {Copy(4, 5)}});
  CheckFlow(graph, "test");
  EXPECT_THAT(LastUses(graph, 0),
              ElementsAre(IsEmpty(), IsEmpty(), UnorderedElementsAre(Tid{3}, Tid{4}, Tid{6}), ElementsAre(Tid{5})));
}

TEST(RowSelectionTest, GoesBackThroughOpsThatTreatRowsAlone) {
  // The rows can be dropped right after the sum, which has two operands with rows.
  const Graph graph = MakeGraph({{
      Op("SinNode", {{"x", 1}, {"out", 3}}),
      Add(3, 1, 4),
      Op("RMSNormNode", {{"x", 4}, {"weight", 0}, {"out", 5}}),
      Op("AddmmNode", {{"mat1", 5}, {"mat2", 0}, {"out", 6}}),
      Op("MultiplyNode", {{"a", 0}, {"b", 6}, {"out", 2}}),
  }});
  const auto cut = FindRowCut(graph);
  ASSERT_TRUE(cut.has_value());
  EXPECT_EQ(cut->instruction, 1U);
  EXPECT_EQ(cut->tensor, Tid{4});
}

TEST(RowSelectionTest, StopsWhereTheRowsAreWantedElsewhere) {
  const Graph graph = MakeGraph({{
      Op("TanhNode", {{"x", 1}, {"out", 3}}),
      Op("TanhNode", {{"x", 3}, {"out", 4}}),
      Op("SumNode", {{"x", 3}, {"out", 5}}),
      Op("TanhNode", {{"x", 4}, {"out", 6}}),
      Add(6, 0, 2),
  }});
  EXPECT_EQ(FindRowCut(graph)->instruction, 1U);
}

TEST(RowSelectionTest, StopsAtAnOpThatMixesRows) {
  const Graph graph = MakeGraph({{Op("CumsumNode", {{"x", 1}, {"out", 3}}), Copy(3, 2)}});
  EXPECT_EQ(FindRowCut(graph)->instruction, 0U);
  const Graph product = MakeGraph({{Op("AddmmNode", {{"mat1", 0}, {"mat2", 1}, {"out", 2}})}});
  EXPECT_EQ(FindRowCut(product)->tensor, Tid{2});
}

}  // namespace
}  // namespace offgraph::program
