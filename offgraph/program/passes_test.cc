// The passes on small graphs, instruction by instruction. That optimized programs compute the same is tested on whole
// models (tests/fixtures).
#include "offgraph/program/passes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "offgraph/program/rewrite.h"

namespace offgraph::program {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kEnd = std::numeric_limits<int64_t>::max();

// Builds a graph of `constants` constants, two inputs, one output and temporaries as they are asked for.
class Builder {
 public:
  explicit Builder(uint32_t constants) {
    graph_.n_constants = constants;
    graph_.n_inputs = 2;
    graph_.n_outputs = 1;
    graph_.inputs = {{SlotKind::kTensor, constants}, {SlotKind::kTensor, constants + 1}};
    graph_.outputs = {{SlotKind::kTensor, constants + 2}};
    graph_.chains.resize(1);
  }
  Tid Constant(uint32_t i) const { return {i}; }
  Tid Input(uint32_t i) const { return {graph_.first_input() + i}; }
  Tid Output() const { return {graph_.first_output()}; }
  Tid Temp() { return NewTemp(graph_); }
  // Appends an instruction; returns its result.
  Tid Add(std::string op, std::vector<Field> fields, std::optional<Tid> out = std::nullopt) {
    const Tid result = out ? *out : Temp();
    fields.push_back({"out", result});
    graph_.chains[0].push_back({std::move(op), std::move(fields)});
    return result;
  }
  Tid Binary(std::string op, Tid a, Tid b, std::optional<Tid> out = std::nullopt) {
    return Add(std::move(op), {{"a", a}, {"b", b}}, out);
  }
  Tid Slice(Tid x, int64_t start, int64_t stop) {
    return Add("SliceNode", {{"x", x},
                             {"axis", IntOperand{int64_t{3}}},
                             {"start", IntOperand{start}},
                             {"stop", IntOperand{stop}},
                             {"step", int64_t{1}}});
  }
  Tid RotateHalf(Tid x, int64_t half, int64_t end = kEnd) {
    const Tid low = Slice(x, 0, half);
    const Tid high = Add("NegNode", {{"x", Slice(x, half, end)}});
    return Add("ConcatenateNode", {{"tensors", std::vector<Tid>{high, low}}, {"axis", int64_t{-1}}});
  }
  Tid Silu(Tid x) { return Add("SiluNode", {{"x", x}}); }
  Tid QuantizedMatmul(Tid x, uint32_t w) {
    return Add("QuantizedMatmulNode", {{"x", x},
                                       {"w", Constant(w)},
                                       {"scales", Constant(w + 1)},
                                       {"biases", Constant(w + 2)},
                                       {"group_size", int64_t{32}},
                                       {"bits", int64_t{4}},
                                       {"mode", std::string("affine")},
                                       {"transpose", true}});
  }
  Graph& graph() { return graph_; }

 private:
  Graph graph_;
};

std::vector<std::string> Ops(const Graph& graph, size_t chain) {
  std::vector<std::string> ops;
  for (const Instruction& instruction : graph.chains[chain]) ops.push_back(instruction.op);
  return ops;
}
std::vector<std::string> Ops(const Graph& graph) { return Ops(graph, graph.main_chain); }

TEST(PassesTest, EveryPassIsNamedOnce) {
  std::vector<std::string> names;
  for (const Pass& pass : Passes()) {
    EXPECT_THAT(names, testing::Not(testing::Contains(std::string(pass.name))));
    EXPECT_FALSE(pass.what.empty());
    names.emplace_back(pass.name);
  }
}

TEST(PassesTest, UniqueTempsSplitsSlotsThatAreUsedAgain) {
  Builder b(1);
  const Tid t = b.Silu(b.Input(0));
  b.Add("SiluNode", {{"x", t}}, t);  // reads and writes one slot
  b.Add("SiluNode", {{"x", t}}, b.Output());
  const Graph graph = UniqueTemps(b.graph());
  const DefUse uses(graph, graph.chains[0]);
  const Chain& chain = graph.chains[0];
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(uses.Producer(*TidOf(chain[i], "out")), i);
  EXPECT_EQ(*TidOf(chain[1], "x"), *TidOf(chain[0], "out"));
  EXPECT_EQ(*TidOf(chain[2], "x"), *TidOf(chain[1], "out"));
  EXPECT_FALSE(*TidOf(chain[1], "out") == *TidOf(chain[0], "out"));
  EXPECT_EQ(*TidOf(chain[2], "out"), b.Output());
}

TEST(PassesTest, RemoveDeadKeepsWhatIsReadAndTheCache) {
  Builder b(1);
  const Tid dead = b.Silu(b.Input(0));
  b.Silu(dead);
  b.Add("UpdateAndAttendNode", {{"q", b.Input(0)}, {"k", b.Input(0)}, {"v", b.Input(0)}, {"position", b.Input(1)}});
  b.Add("SiluNode", {{"x", b.Input(0)}}, b.Output());
  EXPECT_THAT(Ops(RemoveDead(b.graph())), ElementsAre("UpdateAndAttendNode", "SiluNode"));
}

TEST(PassesTest, RotaryIsFoundInAnyOrderOfOperands) {
  for (int variant = 0; variant < 8; ++variant) {
    SCOPED_TRACE(variant);
    Builder b(3);
    const Tid x = b.Input(0);
    const Tid cos = b.Constant(0);
    const Tid sin = b.Constant(1);
    const Tid straight = variant & 1 ? b.Binary("MultiplyNode", cos, x) : b.Binary("MultiplyNode", x, cos);
    const Tid rotated = b.RotateHalf(x, 8);
    const Tid turned = variant & 2 ? b.Binary("MultiplyNode", sin, rotated) : b.Binary("MultiplyNode", rotated, sin);
    b.Binary("AddNode", variant & 4 ? turned : straight, variant & 4 ? straight : turned, b.Output());
    const Graph graph = FuseRotary(b.graph());
    ASSERT_THAT(Ops(graph), ElementsAre("Rotary"));
    const Instruction& rotary = graph.chains[0][0];
    EXPECT_EQ(*TidOf(rotary, "x"), x);
    EXPECT_EQ(*TidOf(rotary, "cos"), cos);
    EXPECT_EQ(*TidOf(rotary, "sin"), sin);
    EXPECT_EQ(*TidOf(rotary, "out"), b.Output());
  }
}

TEST(PassesTest, WhatOnlyLooksLikeRotaryIsLeftAlone) {
  struct Case {
    const char* what;
    void (*build)(Builder& b);
  };
  const Case cases[] = {
      {"the halves leave a middle out",
       [](Builder& b) {
         const Tid x = b.Input(0);
         const Tid high = b.Add("NegNode", {{"x", b.Slice(x, 9, kEnd)}});
         const Tid both =
             b.Add("ConcatenateNode", {{"tensors", std::vector<Tid>{high, b.Slice(x, 0, 8)}}, {"axis", int64_t{-1}}});
         b.Binary("AddNode", b.Binary("MultiplyNode", x, b.Constant(0)), b.Binary("MultiplyNode", both, b.Constant(1)),
                  b.Output());
       }},
      {"the upper half stops early",
       [](Builder& b) {
         const Tid x = b.Input(0);
         b.Binary("AddNode", b.Binary("MultiplyNode", x, b.Constant(0)),
                  b.Binary("MultiplyNode", b.RotateHalf(x, 8, 12), b.Constant(1)), b.Output());
       }},
      {"another tensor is rotated",
       [](Builder& b) {
         b.Binary("AddNode", b.Binary("MultiplyNode", b.Input(0), b.Constant(0)),
                  b.Binary("MultiplyNode", b.RotateHalf(b.Input(1), 8), b.Constant(1)), b.Output());
       }},
      {"somebody else reads the rotated tensor",
       [](Builder& b) {
         const Tid x = b.Input(0);
         const Tid rotated = b.RotateHalf(x, 8);
         const Tid sum = b.Binary("AddNode", b.Binary("MultiplyNode", x, b.Constant(0)),
                                  b.Binary("MultiplyNode", rotated, b.Constant(1)));
         b.Binary("AddNode", sum, rotated, b.Output());
       }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    Builder b(3);
    c.build(b);
    EXPECT_THAT(Ops(FuseRotary(b.graph())), testing::Not(testing::Contains("Rotary")));
  }
}

TEST(PassesTest, GatesAreFoundForEveryActivation) {
  for (const auto& [op, approximate, expected] :
       {std::tuple("SiluNode", "", "silu"), {"GeluNode", "none", "gelu"}, {"GeluNode", "tanh", "gelu_tanh"}}) {
    Builder b(1);
    const Tid gate = b.Add(op, {{"x", b.Input(0)}, {"approximate", std::string(approximate)}});
    b.Binary("MultiplyNode", b.Input(1), gate, b.Output());
    const Graph graph = FuseGates(b.graph());
    ASSERT_THAT(Ops(graph), ElementsAre("GatedActivation"));
    EXPECT_EQ(TextOf(graph.chains[0][0], "activation"), expected);
    EXPECT_EQ(*TidOf(graph.chains[0][0], "gate"), b.Input(0));
    EXPECT_EQ(*TidOf(graph.chains[0][0], "up"), b.Input(1));
  }
}

TEST(PassesTest, AGateThatIsReadTwiceStaysTwoOps) {
  Builder b(1);
  const Tid gate = b.Silu(b.Input(0));
  b.Binary("AddNode", b.Binary("MultiplyNode", gate, b.Input(1)), gate, b.Output());
  EXPECT_THAT(Ops(FuseGates(b.graph())), ElementsAre("SiluNode", "MultiplyNode", "AddNode"));
}

TEST(PassesTest, ProjectionsOfOneInputBecomeOne) {
  Builder b(12);
  const Tid x = b.Silu(b.Input(0));
  const Tid q = b.QuantizedMatmul(x, 0);
  const Tid q_active = b.Silu(q);  // between the layers
  const Tid k = b.QuantizedMatmul(x, 3);
  const Tid other = b.QuantizedMatmul(q_active, 6);
  b.Binary("AddNode", b.Binary("AddNode", other, k), q, b.Output());
  const Graph graph = MergeProjections(FindLinears(b.graph()));
  ASSERT_THAT(Ops(graph),
              ElementsAre("SiluNode", "QuantizedLinears", "SiluNode", "QuantizedLinears", "AddNode", "AddNode"));
  EXPECT_THAT(TidsOf(graph.chains[0][1], "outs"), ElementsAre(q, k));
  EXPECT_THAT(TidsOf(graph.chains[0][1], "weights"), ElementsAre(Tid{0}, Tid{3}));
  EXPECT_THAT(TidsOf(graph.chains[0][3], "weights"), ElementsAre(Tid{6}));
}

TEST(PassesTest, ADenseLayerIsATransposedConstant) {
  Builder b(3);
  const Tid wt = b.Add("TransposeNode", {{"x", b.Constant(1)}, {"perm", std::vector<int64_t>{1, 0}}});
  const auto addmm = [&](Tid x, Tid w, double alpha, Tid out) {
    b.Add("AddmmNode", {{"mat1", x}, {"mat2", w}, {"bias", b.Constant(2)}, {"alpha", alpha}, {"beta", 1.0}}, out);
  };
  const Tid scaled = b.Temp();
  addmm(b.Input(0), wt, 2.0, scaled);  // another alpha: not a plain layer
  addmm(scaled, wt, 1.0, b.Output());
  const Graph graph = RemoveDead(FindLinears(b.graph()));
  ASSERT_THAT(Ops(graph), ElementsAre("TransposeNode", "AddmmNode", "Linears"));
  EXPECT_THAT(TidsOf(graph.chains[0][2], "weights"), ElementsAre(b.Constant(1)));
  EXPECT_THAT(TidsOf(graph.chains[0][2], "biases"), ElementsAre(b.Constant(2)));
}

TEST(PassesTest, FoldingMovesConstantWorkToItsOwnChainAndKeepsTheNumbersRight) {
  Builder b(2);
  const Tid doubled = b.Binary("AddNode", b.Constant(0), b.Constant(1));
  const Tid negated = b.Add("NegNode", {{"x", doubled}});
  b.Binary("MultiplyNode", b.Input(0), negated, b.Output());
  const Graph graph = FoldConstants(b.graph());
  EXPECT_EQ(graph.n_constants, 4U);
  ASSERT_TRUE(graph.fold_chain.has_value());
  EXPECT_THAT(Ops(graph, *graph.fold_chain), ElementsAre("AddNode", "NegNode"));
  ASSERT_THAT(Ops(graph), ElementsAre("MultiplyNode"));
  const Instruction& multiply = graph.chains[0][0];
  EXPECT_EQ(*TidOf(multiply, "a"), (Tid{graph.first_input()}));
  EXPECT_TRUE(graph.IsConstant(*TidOf(multiply, "b")));
  EXPECT_EQ(*TidOf(multiply, "b"), *TidOf(graph.chains[*graph.fold_chain][1], "out"));
  EXPECT_EQ(*TidOf(multiply, "out"), (Tid{graph.first_output()}));
  EXPECT_EQ(graph.inputs[0].index, graph.first_input());
  EXPECT_EQ(graph.outputs[0].index, graph.first_output());
}

// The first constant is a dummy of the exporter's, which the init chain gives its value.
Graph WithInitChain(const std::string& op) {
  Builder b(3);
  const Tid doubled = b.Binary("AddNode", b.Constant(0), b.Constant(1));
  b.Binary("MultiplyNode", b.Input(0), doubled, b.Output());
  Graph graph = b.graph();
  graph.init_chain = 1;
  graph.chains.push_back({{op, {{"a", b.Constant(1)}, {"b", b.Constant(2)}, {"out", b.Constant(0)}}}});
  return graph;
}

TEST(PassesTest, AnInitChainOfConstantsRunsOnceAndBeforeWhatIsFolded) {
  const Graph graph = FoldConstants(WithInitChain("MultiplyNode"));
  EXPECT_FALSE(graph.init_chain.has_value());
  ASSERT_TRUE(graph.fold_chain.has_value());
  EXPECT_THAT(Ops(graph, *graph.fold_chain), ElementsAre("MultiplyNode", "AddNode"));
}

TEST(PassesTest, AnotherInitChainRunsBeforeWhatIsFoldedToo) {
  const Graph graph = FoldConstants(WithInitChain("MatmulNode"));
  EXPECT_FALSE(graph.fold_chain.has_value());
  ASSERT_TRUE(graph.init_chain.has_value());
  EXPECT_THAT(Ops(graph, *graph.init_chain), ElementsAre("MatmulNode", "AddNode"));
}

TEST(PassesTest, AQuantizedLookupBecomesOneOp) {
  Builder b(3);
  const auto take = [&](uint32_t table) {
    return b.Add("TakeNode", {{"x", b.Constant(table)}, {"index", IndexOperand{b.Input(0)}}, {"axis", int64_t{0}}});
  };
  const Tid w = take(0);
  const Tid scales = take(1);
  const Tid biases = take(2);
  b.Add("DequantizeNode",
        {{"w", w},
         {"scales", scales},
         {"biases", biases},
         {"group_size", int64_t{64}},
         {"bits", int64_t{8}},
         {"mode", std::string("affine")},
         {"dtype", int64_t{15}}},
        b.Output());
  const Graph graph = FindEmbeddings(b.graph());
  ASSERT_THAT(Ops(graph), ElementsAre("QuantizedEmbedding"));
  EXPECT_EQ(*TidOf(graph.chains[0][0], "index"), b.Input(0));
  EXPECT_EQ(*TidOf(graph.chains[0][0], "biases"), b.Constant(2));
  EXPECT_EQ(IntOf(graph.chains[0][0], "dtype"), 15);
}

TEST(PassesTest, ARegionTakesWhatFollowsTheEmbeddingAndLeavesTheRest) {
  Builder b(4);
  const Tid angles = b.Add("CosNode", {{"x", b.Input(1)}});
  const Tid rows = b.Add("TakeNode", {{"x", b.Constant(0)}, {"index", IndexOperand{b.Input(0)}}, {"axis", int64_t{0}}});
  const Tid q = b.QuantizedMatmul(rows, 1);
  const Tid late = b.Add("SinNode", {{"x", b.Input(1)}});  // nothing of the region
  const Tid turned = b.Add("Rotary", {{"x", q}, {"cos", angles}, {"sin", late}});
  const Tid sorted = b.Add("SortNode", {{"x", turned}, {"axis", int64_t{-1}}});  // no member
  b.Binary("AddNode", sorted, turned, b.Output());
  const Graph graph = FormRegions(FindLinears(b.graph()));
  ASSERT_THAT(Ops(graph), ElementsAre("CosNode", "SinNode", "Region", "SortNode", "AddNode"));
  const Instruction& region = graph.chains[0][2];
  const auto body = static_cast<size_t>(*IntOf(region, "body_chain_idx"));
  EXPECT_THAT(Ops(graph, body), ElementsAre("TakeNode", "QuantizedLinears", "Rotary"));
  EXPECT_THAT(TidsOf(region, "inputs"), ElementsAre(b.Input(0), angles, late));
  EXPECT_THAT(TidsOf(region, "outs"), ElementsAre(turned));
}

TEST(PassesTest, GraphsWithStateKeepTheirOrder) {
  Builder b(4);
  b.graph().n_buffers = 1;
  const Tid rows = b.Add("TakeNode", {{"x", b.Constant(0)}, {"index", IndexOperand{b.Input(0)}}, {"axis", int64_t{0}}});
  b.QuantizedMatmul(rows, 1);
  const Chain before = b.graph().chains[0];
  EXPECT_EQ(FormRegions(b.graph()).chains[0], before);
  EXPECT_EQ(FoldConstants(b.graph()).chains[0], before);
}

}  // namespace
}  // namespace offgraph::program
