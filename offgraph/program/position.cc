#include "offgraph/program/position.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>

#include "offgraph/cache/error.h"

namespace offgraph::program {
namespace {

bool IsInteger(ScalarType type) {
  return type == ScalarType::kByte || type == ScalarType::kChar || type == ScalarType::kShort ||
         type == ScalarType::kInt || type == ScalarType::kLong;
}

std::optional<size_t> Writer(const Chain& chain, Tid tid, size_t before) {
  for (size_t i = before; i-- > 0;) {
    if (!ChainsOf(chain[i]).empty()) return std::nullopt;  // the called chain may have written it
    const SlotUse use = UseOf(chain[i]);
    if (std::find(use.writes.begin(), use.writes.end(), tid) != use.writes.end()) return i;
  }
  return std::nullopt;
}

std::optional<int64_t> Literal(const Instruction& instruction, std::string_view name) {
  const Field* field = FindField(instruction, name);
  if (field == nullptr) return std::nullopt;
  if (const auto* number = std::get_if<int64_t>(&field->value)) return *number;
  const auto* operand = std::get_if<IntOperand>(&field->value);
  const auto* literal = operand != nullptr ? std::get_if<int64_t>(&operand->value) : nullptr;
  return literal != nullptr ? std::optional(*literal) : std::nullopt;
}

// What an op does to the list of rows: nothing, or a slice. Absent: something else.
struct Effect {
  std::optional<PositionSlice> slice;
  bool changes_rank = false;
};

std::optional<Effect> EffectOf(const Instruction& instruction) {
  static constexpr std::array<std::string_view, 2> kKeepRank = {"ContiguousNode", "IdCopyNode"};
  static constexpr std::array<std::string_view, 3> kChangeRank = {"ExpandDimsNode", "SqueezeNode", "ReshapeNode"};
  const std::string_view op = instruction.op;
  if (std::find(kKeepRank.begin(), kKeepRank.end(), op) != kKeepRank.end()) return Effect{};
  if (std::find(kChangeRank.begin(), kChangeRank.end(), op) != kChangeRank.end()) return Effect{std::nullopt, true};
  if (op == "AsTypeNode") {
    const std::optional<int64_t> type = Literal(instruction, "scalar_type");
    return type && IsInteger(static_cast<ScalarType>(*type)) ? std::optional(Effect{}) : std::nullopt;
  }
  if (op == "SliceNode") {
    const std::optional<int64_t> start = Literal(instruction, "start");
    const std::optional<int64_t> stop = Literal(instruction, "stop");
    const std::optional<int64_t> step = Literal(instruction, "step");
    if (!start || !stop || !step || *step <= 0) return std::nullopt;
    return Effect{PositionSlice{*start, *stop, *step}};
  }
  return std::nullopt;
}

std::optional<PositionSource> Trace(const Graph& graph, const Chain& chain, size_t node) {
  const Field* field = FindField(chain[node], "position");
  if (field == nullptr || !std::holds_alternative<Tid>(field->value)) return std::nullopt;
  Tid tid = std::get<Tid>(field->value);
  size_t before = node;
  std::vector<Effect> effects;
  while (const std::optional<size_t> writer = Writer(chain, tid, before)) {
    const std::optional<Effect> effect = EffectOf(chain[*writer]);
    if (!effect) return std::nullopt;
    effects.push_back(*effect);
    tid = UseOf(chain[*writer]).reads.front();
    before = *writer;
  }
  PositionSource source;
  const auto input = std::find_if(graph.inputs.begin(), graph.inputs.end(), [&](const Slot& slot) {
    return slot.kind == SlotKind::kTensor && slot.index == tid.index;
  });
  const TensorMeta* meta = graph.Meta(tid);
  if (input == graph.inputs.end() || meta == nullptr || !IsInteger(meta->type)) return std::nullopt;
  source.input = static_cast<size_t>(input - graph.inputs.begin());
  // A slice of a list is a slice of the rows; of a tensor of higher rank it may be one of another axis.
  bool is_list = meta->shape.size() == 1;
  for (size_t i = effects.size(); i-- > 0;) {
    if (effects[i].slice && !is_list) return std::nullopt;
    if (effects[i].slice) source.slices.push_back(*effects[i].slice);
    is_list = is_list && !effects[i].changes_rank;
  }
  return source;
}

template <typename T>
std::vector<int64_t> Widen(const HostTensor& tensor, size_t count) {
  std::vector<int64_t> values(count);
  for (size_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, static_cast<const std::byte*>(tensor.data.get()) + i * sizeof(T), sizeof(T));
    values[i] = value;
  }
  return values;
}

std::vector<int64_t> Integers(const HostTensor& tensor) {
  size_t count = 1;
  for (int64_t dim : tensor.shape) count *= static_cast<size_t>(dim);
  switch (tensor.type) {
    case ScalarType::kByte:
      return Widen<uint8_t>(tensor, count);
    case ScalarType::kChar:
      return Widen<int8_t>(tensor, count);
    case ScalarType::kShort:
      return Widen<int16_t>(tensor, count);
    case ScalarType::kInt:
      return Widen<int32_t>(tensor, count);
    case ScalarType::kLong:
      return Widen<int64_t>(tensor, count);
    default:
      throw Error(ErrorCode::kInvalidArgument, "a position of " + Name(tensor.type) + "; integers are needed");
  }
}

}  // namespace

std::optional<PositionSource> TracePosition(const Graph& graph) {
  std::optional<PositionSource> source;
  for (const Chain& chain : graph.chains) {
    for (size_t i = 0; i < chain.size(); ++i) {
      if (chain[i].op != "UpdateAndAttendNode") continue;
      const std::optional<PositionSource> found = Trace(graph, chain, i);
      if (!found || (source && *source != *found)) return std::nullopt;
      source = found;
    }
  }
  return source;
}

std::vector<int64_t> ReadPosition(const PositionSource& source, const HostTensor& tensor) {
  std::vector<int64_t> rows = Integers(tensor);
  for (const PositionSlice& slice : source.slices) {
    const auto size = static_cast<int64_t>(rows.size());
    const auto bound = [&](int64_t at) { return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size); };
    std::vector<int64_t> kept;
    for (int64_t i = bound(slice.start); i < bound(slice.stop); i += slice.step)
      kept.push_back(rows[static_cast<size_t>(i)]);
    rows = std::move(kept);
  }
  return rows;
}

int64_t CheckPosition(const std::vector<int64_t>& rows, int64_t tokens) {
  const auto count = static_cast<int64_t>(rows.size());
  if (count != tokens && count != 1) {
    throw Error(ErrorCode::kInvalidArgument, "the position has " + std::to_string(count) + " rows and the step has " +
                                                 std::to_string(tokens) +
                                                 " tokens; expected one row per token, or one");
  }
  if (count == 0) throw Error(ErrorCode::kInvalidArgument, "the position has no rows");
  const int64_t first = rows.front();
  if (first < 0 || first > std::numeric_limits<int64_t>::max() - tokens) {
    throw Error(ErrorCode::kInvalidArgument,
                "position " + std::to_string(first) + " with " + std::to_string(tokens) + " tokens is out of range");
  }
  for (int64_t i = 1; i < count; ++i) {
    if (rows[static_cast<size_t>(i)] != first + i) {
      throw Error(ErrorCode::kInvalidArgument,
                  "row " + std::to_string(i) + " of the position is " + std::to_string(rows[static_cast<size_t>(i)]) +
                      "; expected " + std::to_string(first + i) + ", since positions of a step follow each other");
    }
  }
  return first;
}

}  // namespace offgraph::program
