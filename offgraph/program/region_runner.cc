#include "offgraph/program/region_runner.h"

#include <mlx/device.h>
#include <mlx/ops.h>
#include <mlx/transforms.h>

#include <algorithm>
#include <utility>

#include "offgraph/cache/error.h"
#include "offgraph/program/interpreter.h"

namespace offgraph::program {
namespace {

namespace mx = mlx::core;

// Numbers of an index input must be rows of its table: kernels do not check.
void CheckIndices(const mx::array& index, int64_t rows) {
  const auto check = [&](const auto* values) {
    for (size_t i = 0; i < index.size(); ++i) {
      if (values[i] < 0 || values[i] >= rows) {
        throw Error(ErrorCode::kInvalidArgument, "token " + std::to_string(values[i]) + " at position " +
                                                     std::to_string(i) + " of the step; the model knows tokens 0 to " +
                                                     std::to_string(rows - 1));
      }
    }
  };
  if (index.dtype() == mx::int64) {
    check(index.data<int64_t>());
  } else {
    check(index.data<int32_t>());
  }
}

}  // namespace

void RegionRunner::Run(Frame& frame) {
  const int64_t tokens = TokensOf(frame);
  if (!tried_ && tokens > 0 && mx::default_device() == mx::Device::cpu) {
    lowering_ = LowerRegion(graph_, graph_.chains[body_], outs_, frame, tokens);
    tried_ = true;  // not where it threw: refused memory must not decide how later steps compute
  }
  if (CanRun(frame, tokens)) {
    RunLowered(frame, tokens);
  } else {
    frame.interpreter().Run(body_, frame);
  }
}

int64_t RegionRunner::TokensOf(const Frame& frame) const {
  for (Tid tid : inputs_) {
    const mx::array& input = frame.Get(tid);
    const bool is_index = input.dtype() == mx::int64 || input.dtype() == mx::int32;
    if (is_index && input.ndim() == 2 && input.shape(0) == 1) return input.shape(1);
  }
  return 0;
}

bool RegionRunner::CanRun(const Frame& frame, int64_t tokens) const {
  if (lowering_.lowered == nullptr || tokens == 0 || mx::default_device() != mx::Device::cpu) return false;
  const LoweredRegion& lowered = *lowering_.lowered;
  if (!lowered.attends.empty() && (frame.cache == nullptr || !frame.cache->fused())) return false;
  // The shapes that lowering saw, for this step's tokens.
  for (const RegionIndex& index : lowered.indices) {
    const mx::array& array = frame.Get(lowered.inputs[index.input]);
    if (static_cast<int64_t>(array.size()) != tokens || (array.dtype() != mx::int64 && array.dtype() != mx::int32)) {
      return false;
    }
  }
  for (const RegionLoad& load : lowered.loads) {
    const mx::array& array = frame.Get(lowered.inputs[load.input]);
    if (static_cast<int64_t>(array.size()) != tokens * load.width || !bytes::IsRegionType(array.dtype())) return false;
  }
  return std::all_of(lowered.token_counts.begin(), lowered.token_counts.end(),
                     [&](Vid vid) { return frame.Int(vid) == tokens; });
}

void RegionRunner::RunLowered(Frame& frame, int64_t tokens) const {
  const LoweredRegion& lowered = *lowering_.lowered;
  std::vector<mx::array> inputs;
  for (Tid tid : lowered.inputs) inputs.push_back(mx::contiguous(frame.Get(tid)));
  for (const RegionIndex& index : lowered.indices) {
    mx::eval(inputs[index.input]);
    CheckIndices(inputs[index.input], index.rows);
  }
  std::vector<bytes::RegionAttend> attends;
  for (const RegionAttendNode& node : lowered.attends) {
    bytes::KvStore& store = frame.cache->Open(frame.Get(node.position), tokens);
    attends.push_back(store.Prepare(node.layer, node.geometry, node.options));
  }
  // With one output, its last row is all that anybody can want of the region.
  const bool last_row_only = frame.last_row_only && outs_.size() == 1 && !graph_.IsTemp(outs_[0]);
  int64_t arena = 0;
  if (__builtin_mul_overflow(lowered.region->arena_width() * int64_t{sizeof(float)}, tokens, &arena)) {
    throw Error(ErrorCode::kOutOfMemory, "a step of " + std::to_string(tokens) + " tokens is too long");
  }
  frame.TakeMemory(arena, "a region's intermediate values");
  std::vector<mx::array> results =
      bytes::Region::Run(lowered.region, tokens, inputs, std::move(attends), last_row_only, frame.probe);
  for (size_t i = 0; i < outs_.size(); ++i) frame.Set(outs_[i], std::move(results[i]));
}

}  // namespace offgraph::program
