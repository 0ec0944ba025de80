#include "offgraph/program/position.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "offgraph/cache/error.h"

namespace offgraph::program {
namespace {

bool IsInteger(ScalarType type) {
  return type == ScalarType::kByte || type == ScalarType::kChar || type == ScalarType::kShort ||
         type == ScalarType::kInt || type == ScalarType::kLong;
}

// Types that a position may be converted to on its way: it keeps its value, wherever a cache can reach.
bool HoldsPositions(ScalarType type) { return type == ScalarType::kInt || type == ScalarType::kLong; }

// Instructions that all traces of a program may look at together: a payload could have a long way back from every one
// of many nodes. Where they do not suffice, the position counts as not traceable.
constexpr int64_t kMostLooks = 4'000'000;

// True as well where no looks are left.
bool IsWritten(const Graph& graph, Tid tid, int64_t* looks) {
  for (const Chain& chain : graph.chains) {
    for (const Instruction& instruction : chain) {
      if (--*looks < 0) return true;
      const std::vector<Tid> writes = UseOf(instruction).writes;
      if (std::find(writes.begin(), writes.end(), tid) != writes.end()) return true;
    }
  }
  return false;
}

std::optional<size_t> Writer(const Chain& chain, Tid tid, size_t before, int64_t* looks) {
  for (size_t i = before; i-- > 0;) {
    if (--*looks < 0) return std::nullopt;
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
  const int64_t* literal = nullptr;
  if (const auto* operand = std::get_if<IntOperand>(&field->value)) literal = std::get_if<int64_t>(&operand->value);
  if (const auto* index = std::get_if<IndexOperand>(&field->value)) literal = std::get_if<int64_t>(&index->value);
  return literal != nullptr ? std::optional(*literal) : std::nullopt;
}

// What an op does to a tensor of rows.
enum class Move : uint8_t {
  kNone,
  kSlice,      // takes a slice of the first axis
  kAddAxis,    // puts an axis of one in front
  kTakeFirst,  // takes element 0 of the first axis
  kReshape     // changes the rank in another way, and keeps the order of the elements
};
struct Effect {
  Move move = Move::kNone;
  PositionSlice slice;
};

// Absent: something else.
std::optional<Effect> EffectOf(const Instruction& instruction) {
  static constexpr std::array<std::string_view, 2> kKeepRank = {"ContiguousNode", "IdCopyNode"};
  static constexpr std::array<std::string_view, 2> kChangeRank = {"SqueezeNode", "ReshapeNode"};
  const std::string_view op = instruction.op;
  if (std::find(kKeepRank.begin(), kKeepRank.end(), op) != kKeepRank.end()) return Effect{};
  if (std::find(kChangeRank.begin(), kChangeRank.end(), op) != kChangeRank.end()) return Effect{Move::kReshape, {}};
  if (op == "ExpandDimsNode") {
    return Effect{Literal(instruction, "axis") == 0 ? Move::kAddAxis : Move::kReshape, {}};
  }
  if (op == "TakeNode") {
    const bool first = Literal(instruction, "index") == 0 && Literal(instruction, "axis") == 0;
    return first ? std::optional(Effect{Move::kTakeFirst, {}}) : std::nullopt;
  }
  if (op == "AsTypeNode") {
    const std::optional<int64_t> type = Literal(instruction, "scalar_type");
    return type && HoldsPositions(static_cast<ScalarType>(*type)) ? std::optional(Effect{}) : std::nullopt;
  }
  if (op == "SliceNode") {
    const std::optional<int64_t> start = Literal(instruction, "start");
    const std::optional<int64_t> stop = Literal(instruction, "stop");
    const std::optional<int64_t> step = Literal(instruction, "step");
    if (!start || !stop || !step || *step <= 0) return std::nullopt;
    return Effect{Move::kSlice, PositionSlice{*start, *stop, *step}};
  }
  return std::nullopt;
}

// The slices that the effects take of a tensor of rank `rank`, the first effect first. Absent where one of them takes
// something else than rows: a slice of a tensor of higher rank may be one of another axis.
std::optional<std::vector<PositionSlice>> SlicesOf(const std::vector<Effect>& effects, size_t rank) {
  enum class Form : uint8_t { kList, kOneRow, kOther };  // [rows], [1, rows], anything
  Form form = rank == 1 ? Form::kList : Form::kOther;
  std::vector<PositionSlice> slices;
  for (const Effect& effect : effects) {
    switch (effect.move) {
      case Move::kNone:
        break;
      case Move::kSlice:
        if (form != Form::kList) return std::nullopt;
        slices.push_back(effect.slice);
        break;
      case Move::kAddAxis:
        form = form == Form::kList ? Form::kOneRow : Form::kOther;
        break;
      case Move::kTakeFirst:
        if (form != Form::kOneRow) return std::nullopt;
        form = Form::kList;
        break;
      case Move::kReshape:
        form = Form::kOther;
        break;
    }
  }
  return slices;
}

std::optional<PositionSource> Trace(const Graph& graph, const Chain& chain, size_t node, int64_t* looks) {
  const Field* field = FindField(chain[node], "position");
  if (field == nullptr || !std::holds_alternative<Tid>(field->value)) return std::nullopt;
  Tid tid = std::get<Tid>(field->value);
  size_t before = node;
  std::vector<Effect> effects;
  while (const std::optional<size_t> writer = Writer(chain, tid, before, looks)) {
    const std::optional<Effect> effect = EffectOf(chain[*writer]);
    if (!effect) return std::nullopt;
    effects.push_back(*effect);
    tid = UseOf(chain[*writer]).reads.front();
    before = *writer;
  }
  const auto input = std::find_if(graph.inputs.begin(), graph.inputs.end(), [&](const Slot& slot) {
    return slot.kind == SlotKind::kTensor && slot.index == tid.index;
  });
  const TensorMeta* meta = graph.Meta(tid);
  if (input == graph.inputs.end() || meta == nullptr || !IsInteger(meta->type)) return std::nullopt;
  if (IsWritten(graph, tid, looks)) return std::nullopt;  // it may hold something else by then
  std::reverse(effects.begin(), effects.end());
  std::optional<std::vector<PositionSlice>> slices = SlicesOf(effects, meta->shape.size());
  if (!slices) return std::nullopt;
  return PositionSource{static_cast<size_t>(input - graph.inputs.begin()), std::move(*slices)};
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
  int64_t looks = kMostLooks;
  for (const Chain& chain : graph.chains) {
    for (size_t i = 0; i < chain.size(); ++i) {
      if (chain[i].op != "UpdateAndAttendNode") continue;
      const std::optional<PositionSource> found = Trace(graph, chain, i, &looks);
      if (looks < 0 || !found || (source && *source != *found)) return std::nullopt;
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
