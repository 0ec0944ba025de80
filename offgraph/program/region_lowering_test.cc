#include <gtest/gtest.h>
#include <mlx/ops.h>
#include <mlx/random.h>
#include <mlx/transforms.h>

#include <cstring>
#include <string>
#include <vector>

#include "offgraph/program/frame.h"
#include "offgraph/program/interpreter.h"
#include "offgraph/program/region.h"
#include "offgraph/program/rewrite.h"

namespace offgraph::program {
namespace {

namespace mx = mlx::core;

constexpr int kTokens = 5;
constexpr int kVocab = 8;
constexpr int kDim = 64;

// A table, two quantized layers of its rows, and a gated activation of their results, as passes leave them.
struct GatedProgram {
  Graph graph;
  std::vector<mx::array> constants;
  Tid gated;
  std::vector<Tid> products;

  // `up_first`: the first layer is the up projection. `products_leave`: the layers' results are outputs as well.
  GatedProgram(int rows, bool up_first, bool products_leave, bool fast) {
    constants.push_back(mx::random::normal({kVocab, kDim}, mx::float32, 0.0F, 1.0F, mx::random::key(1)));
    for (uint64_t layer = 0; layer < 2; ++layer) {
      const mx::array w = mx::random::normal({rows, kDim}, mx::float32, 0.0F, 1.0F, mx::random::key(2 + layer));
      for (const mx::array& part : mx::quantize(w, 32, 4)) constants.push_back(part);
    }
    mx::eval(constants);
    graph.n_constants = static_cast<uint32_t>(constants.size());
    graph.n_inputs = 1;
    graph.inputs = {{SlotKind::kTensor, graph.first_input()}};
    graph.chains.resize(2);
    const Tid x = NewTemp(graph);
    products = {NewTemp(graph), NewTemp(graph)};
    gated = NewTemp(graph);
    Chain& body = graph.chains[1];
    body.push_back(MakeInstruction(
        "TakeNode",
        {{"x", Tid{0}}, {"index", IndexOperand{Tid{graph.first_input()}}}, {"axis", int64_t{0}}, {"out", x}}));
    body.push_back(MakeInstruction("QuantizedLinears", {{"x", x},
                                                        {"weights", std::vector<Tid>{{1}, {4}}},
                                                        {"scales", std::vector<Tid>{{2}, {5}}},
                                                        {"biases", std::vector<Tid>{{3}, {6}}},
                                                        {"group_size", int64_t{32}},
                                                        {"bits", int64_t{4}},
                                                        {"outs", products},
                                                        {"fast", fast}}));
    body.push_back(MakeInstruction("GatedActivation", {{"gate", products[up_first ? 1 : 0]},
                                                       {"up", products[up_first ? 0 : 1]},
                                                       {"activation", std::string("silu")},
                                                       {"out", gated}}));
    graph.chains[0].push_back(MakeInstruction("Region", {{"body_chain_idx", int64_t{1}},
                                                         {"inputs", std::vector<Tid>{{graph.first_input()}}},
                                                         {"outs", Outs(products_leave)}}));
  }

  std::vector<Tid> Outs(bool products_leave) const {
    std::vector<Tid> outs = {gated};
    if (products_leave) outs.insert(outs.end(), products.begin(), products.end());
    return outs;
  }
};

struct Result {
  std::vector<float> gated;
  int64_t arena_width = 0;
};

Result Compute(int rows, bool up_first, bool products_leave, bool fast = true) {
  const GatedProgram program(rows, up_first, products_leave, fast);
  const Interpreter interpreter(program.graph, "test");
  Frame frame(program.graph, interpreter);
  frame.fp32_results = true;
  for (uint32_t i = 0; i < program.constants.size(); ++i) frame.Set(Tid{i}, program.constants[i]);
  const mx::array ids = mx::array({3, 0, 7, 7, 2}, {1, kTokens}, mx::int64);
  frame.Set(Tid{program.graph.first_input()}, ids);
  const LoweringResult lowering =
      LowerRegion(program.graph, program.graph.chains[1], program.Outs(products_leave), frame, kTokens);
  if (lowering.lowered == nullptr) {
    ADD_FAILURE() << lowering.why;
    return {};
  }
  const std::vector<mx::array> results = bytes::Region::Run(lowering.lowered->region, kTokens, {ids}, {}, false);
  mx::eval(results);
  const float* data = results[0].data<float>();
  return {{data, data + results[0].size()}, lowering.lowered->region->arena_width()};
}

TEST(RegionLoweringTest, AGateThatAloneReadsItsLayerIsComputedWithIt) {
  for (const bool up_first : {false, true}) {
    SCOPED_TRACE(up_first);
    const Result apart = Compute(48, up_first, true);
    const Result together = Compute(48, up_first, false);
    ASSERT_EQ(apart.gated.size(), static_cast<size_t>(kTokens * 48));
    EXPECT_EQ(together.gated, apart.gated);
    // The products have no place of their own.
    EXPECT_EQ(together.arena_width, kDim + 48);
    EXPECT_EQ(apart.arena_width, kDim + 2 * 48);
  }
  EXPECT_NE(Compute(48, true, false).gated, Compute(48, false, false).gated);
}

TEST(RegionLoweringTest, AGateIsComputedApartWhereItsLayerDoesNotComeInWholeBlocks) {
  const Result apart = Compute(24, false, true);
  const Result alone = Compute(24, false, false);
  EXPECT_EQ(alone.gated, apart.gated);
  EXPECT_EQ(alone.arena_width, kDim + 2 * 24);
}

TEST(RegionLoweringTest, AGateIsComputedApartWhereActivationsAreNotRounded) {
  EXPECT_EQ(Compute(48, false, false, false).gated, Compute(48, false, true, false).gated);
}

// Whether attention over a layer's result may round what it multiplies, in a program of `type`.
bool AttentionRounds(mx::Dtype type, bool fast) {
  constexpr int64_t kHeads = 2;
  std::vector<mx::array> constants = {
      mx::random::normal({kVocab, kDim}, type, 0.0F, 1.0F, mx::random::key(1)),
  };
  const mx::array w = mx::random::normal({kDim, kDim}, type, 0.0F, 1.0F, mx::random::key(2));
  for (const mx::array& part : mx::quantize(w, 32, 4)) constants.push_back(part);
  mx::eval(constants);
  Graph graph;
  graph.n_constants = static_cast<uint32_t>(constants.size());
  graph.n_inputs = 2;
  const Tid ids{graph.first_input()};
  const Tid position{graph.first_input() + 1};
  graph.inputs = {{SlotKind::kTensor, ids.index}, {SlotKind::kTensor, position.index}};
  graph.chains.resize(2);
  Chain& body = graph.chains[1];
  const auto add = [&](const char* op, std::initializer_list<Field> fields) {
    const Tid result = NewTemp(graph);
    body.push_back(MakeInstruction(op, fields));
    body.back().fields.push_back({"out", result});
    return result;
  };
  const auto shape = [&](std::vector<int64_t> sizes) { return std::vector<IntOperand>(sizes.begin(), sizes.end()); };
  const std::vector<int64_t> exchange = {0, 2, 1, 3};
  const Tid x = add("TakeNode", {{"x", Tid{0}}, {"index", IndexOperand{ids}}, {"axis", int64_t{0}}});
  const Tid product = NewTemp(graph);
  body.push_back(MakeInstruction("QuantizedLinears", {{"x", x},
                                                      {"weights", std::vector<Tid>{{1}}},
                                                      {"scales", std::vector<Tid>{{2}}},
                                                      {"biases", std::vector<Tid>{{3}}},
                                                      {"group_size", int64_t{32}},
                                                      {"bits", int64_t{4}},
                                                      {"outs", std::vector<Tid>{product}},
                                                      {"fast", fast}}));
  Tid heads = add("ReshapeNode", {{"x", product}, {"shape", shape({1, kTokens, kHeads, kDim / kHeads})}});
  heads = add("TransposeNode", {{"x", heads}, {"perm", exchange}});
  Tid out = add(
      "UpdateAndAttendNode",
      {{"q", heads}, {"k", heads}, {"v", heads}, {"position", position}, {"layer_id", int64_t{0}}, {"scale", 0.25}});
  out = add("TransposeNode", {{"x", out}, {"perm", exchange}});
  out = add("ReshapeNode", {{"x", out}, {"shape", shape({1, kTokens, kDim})}});

  const Interpreter interpreter(graph, "test");
  Frame frame(graph, interpreter);
  frame.fp32_results = true;
  for (uint32_t i = 0; i < constants.size(); ++i) frame.Set(Tid{i}, constants[i]);
  frame.Set(ids, mx::array({3, 0, 7, 7, 2}, {1, kTokens}, mx::int64));
  const LoweringResult lowering = LowerRegion(graph, body, {out}, frame, kTokens);
  if (lowering.lowered == nullptr || lowering.lowered->attends.size() != 1) {
    ADD_FAILURE() << lowering.why;
    return false;
  }
  return lowering.lowered->attends[0].options.round_to_bf16;
}

TEST(RegionLoweringTest, AttentionRoundsToBf16WhereTheProgramAndItsLayersDo) {
  EXPECT_TRUE(AttentionRounds(mx::bfloat16, true));
  EXPECT_FALSE(AttentionRounds(mx::bfloat16, false));
  EXPECT_FALSE(AttentionRounds(mx::float16, true));
  EXPECT_FALSE(AttentionRounds(mx::float32, true));
}

}  // namespace
}  // namespace offgraph::program
