// Lowering: from a region's chain of instructions to stages of kernels (bytes/region.h).
//
// It happens at the first step that runs the region, when the shapes and types of everything from outside are known.
// An instruction that lowering does not know, or whose shapes are others than it knows, leaves the whole region to the
// handlers: nothing is lost but speed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "offgraph/bytes/kv_store.h"
#include "offgraph/bytes/region.h"
#include "offgraph/kernels/packed_weights.h"
#include "offgraph/kernels/weight_arena.h"
#include "offgraph/program/frame.h"
#include "offgraph/program/graph.h"

namespace offgraph::program {

// An UpdateAndAttend of a region, in order.
struct RegionAttendNode {
  int64_t layer = 0;
  bytes::AttendOptions options;
  Tid position;
  bytes::LayerGeometry geometry;
};

// An input that a region loads, [..., T, width] of a floating type.
struct RegionLoad {
  size_t input = 0;
  int64_t width = 0;
};

// A look-up of a region: its index input must hold numbers in [0, rows).
struct RegionIndex {
  size_t input = 0;
  int64_t rows = 0;
};

// Linear layers that are laid out for the kernels, by their instructions in the graph.
struct PackedLayers {
  std::map<const Instruction*, std::shared_ptr<const kernels::PackedWeights>> layers;
};

struct LoweredRegion {
  std::shared_ptr<const bytes::Region> region;
  std::vector<Tid> inputs;  // what Region::Run takes, in order
  std::vector<RegionAttendNode> attends;
  std::vector<RegionIndex> indices;
  std::vector<RegionLoad> loads;
  std::vector<Vid> token_counts;  // value slots that must hold the step's token count
};

// Makes the function of a linear layer out of its weights, several of them side by side. `biases` are those of affine
// quantization where `bits` > 0, else the layers' own, or empty.
struct LinearWeights {
  std::vector<mlx::core::array> weights;
  std::vector<mlx::core::array> scales;
  std::vector<mlx::core::array> biases;
  int bits = 0;  // 0: dense
  int group_size = 0;
  kernels::DType round = kernels::DType::kFloat32;
  bool fast = false;  // activations may be rounded
};

// `tokens` is the step's T. On failure the region is null, and `why` names the instruction and the reason. Either way
// the body's layers are taken out of the frame's packed ones.
struct LoweringResult {
  std::unique_ptr<LoweredRegion> lowered;
  std::string why;
};
LoweringResult LowerRegion(const Graph& graph, const Chain& body, const std::vector<Tid>& outs, const Frame& frame,
                           int64_t tokens);

// A matrix whose rows are looked up.
struct TableMatrix {
  mlx::core::array array;  // [rows, columns], row-contiguous
  // WeightBytes::read; empty: rows are read where they lie. Otherwise they are not, since rows lie all over a table:
  // after some thousand tokens every page of it would stay in memory, for the sake of a row per token.
  std::function<void(std::span<const std::byte> part, std::byte* to)> read;
};
// kernels::EmbedDense, and kernels::EmbedQuantized with codes, scales and biases.
bytes::RegionLookup DenseLookup(TableMatrix table);
bytes::RegionLookup QuantizedLookup(std::array<TableMatrix, 3> table, int bits, int group_size, kernels::DType round);

// Whether the function of the layer has weights of its own, laid out anew: where `fast` allows it and a kernel exists.
bool IsLaidOutAnew(const LinearWeights& linear);
// REQUIRES: IsLaidOutAnew(linear). The arrays of `linear` are not read again.
std::shared_ptr<const kernels::PackedWeights> LayOut(const LinearWeights& linear, kernels::WeightArena& arena,
                                                     kernels::PartOrder order = kernels::PartOrder::kSequence);
bytes::RegionLinear PackedLinear(std::shared_ptr<const kernels::PackedWeights> packed, kernels::DType round);
// Of a gate and an up projection, their blocks in turn; results are not rounded.
bytes::RegionLinear PackedGatedLinear(std::shared_ptr<const kernels::PackedWeights> packed,
                                      kernels::Activation activation);
// Weights as they lie, and fp32 accumulation.
bytes::RegionLinear ExactLinear(const LinearWeights& linear);

// Lays out what can be of a region's body, ahead of its lowering: constants are all that `frame` must hold.
void LayOutLayers(const Graph& graph, const Chain& body, const Frame& frame, PackedLayers* packed);

}  // namespace offgraph::program
