// Ops that move no number: they say anew how a value's axes lie, or which columns it has.
#include <utility>

#include "offgraph/program/region_lowering_impl.h"

namespace offgraph::program {

using bytes::RegionValue;

void Lowering::Copy(const Instruction& i) { Out(i, In(i, "x")); }

void Lowering::Reshape(const Instruction& i) {
  LoweredValue x = In(i, "x");
  const auto* field = FindField(i, "shape");
  const auto* operands = std::get_if<std::vector<IntOperand>>(&field->value);
  std::vector<int64_t> shape;
  for (const IntOperand& operand : *operands) shape.push_back(Resolve(operand));
  if (shape.size() < 3 || shape[0] != 1 || shape[1] != tokens_) throw NotLowered{"the shape is not [1, T, ...]"};
  // One of the axes behind T may be left open.
  for (size_t axis = 2; axis < shape.size(); ++axis) {
    const int64_t other = shape.size() == 4 ? shape[5 - axis] : 1;
    if (shape[axis] == -1 && other > 0 && x.at.width() % other == 0) shape[axis] = x.at.width() / other;
    if (shape[axis] <= 0 || shape[axis] > x.at.width()) throw NotLowered{"the shape is not a regrouping of heads"};
  }
  if (x.layout == Layout::kHeadsTokens) throw NotLowered{"heads lie before tokens"};
  const bool packed = x.at.heads == 1 || x.at.head_stride == x.at.dim;
  if (!packed) throw NotLowered{"the heads are apart"};
  if (shape.size() == 3 && shape[2] == x.at.width()) {
    x.at = {x.at.buffer, x.at.column, 1, x.at.width(), x.at.width()};
    x.layout = Layout::kRows;
  } else if (shape.size() == 4 && shape[2] * shape[3] == x.at.width()) {
    x.at = {x.at.buffer, x.at.column, shape[2], shape[3], shape[3]};
    x.layout = Layout::kTokensHeads;
  } else {
    throw NotLowered{"the shape is not a regrouping of heads"};
  }
  Out(i, x);
}

void Lowering::Transpose(const Instruction& i) {
  LoweredValue x = In(i, "x");
  if (x.layout == Layout::kRows || IntsOf(i, "perm") != std::vector<int64_t>{0, 2, 1, 3}) {
    throw NotLowered{"not an exchange of heads and tokens"};
  }
  x.layout = x.layout == Layout::kTokensHeads ? Layout::kHeadsTokens : Layout::kTokensHeads;
  Out(i, x);
}

void Lowering::Slice(const Instruction& i) {
  LoweredValue x = In(i, "x");
  RequireLastAxis(i, x);
  const std::optional<int64_t> start = IntOf(i, "start");
  const std::optional<int64_t> stop = IntOf(i, "stop");
  if (!start || !stop || IntOf(i, "step") != 1) throw NotLowered{"the bounds are not literal"};
  const int64_t end = std::min(*stop, x.at.dim);
  if (*start < 0 || end <= *start) throw NotLowered{"the bounds count from the end, or leave nothing"};
  x.at.column += *start;
  x.at.dim = end - *start;
  Out(i, x);
}

void Lowering::Split(const Instruction& i) {
  const LoweredValue x = In(i, "x");
  RequireLastAxis(i, x);
  const std::vector<Tid> outs = TidsOf(i, "outs");
  const auto* sizes = std::get_if<std::vector<IntOperand>>(&FindField(i, "sizes")->value);
  int64_t column = 0;
  for (size_t n = 0; n < outs.size(); ++n) {
    // One size stands for equal pieces, the last of which may be smaller.
    const int64_t* literal = std::get_if<int64_t>(&(*sizes)[sizes->size() == 1 ? 0 : n].value);
    if (literal == nullptr) throw NotLowered{"the sizes are not literal"};
    const int64_t dim = std::min(*literal, x.at.dim - column);
    if (dim <= 0) throw NotLowered{"a piece is empty"};
    LoweredValue piece = x;
    piece.at.column += column;
    piece.at.dim = dim;
    values_[outs[n].index] = piece;
    column += dim;
  }
  if (column != x.at.dim) throw NotLowered{"the pieces do not add up"};
}

void Lowering::Concatenate(const Instruction& i) {
  std::vector<RegionValue> parts;
  const std::vector<Tid> tids = TidsOf(i, "tensors");
  if (tids.empty()) throw NotLowered{"nothing to join"};
  std::optional<LoweredValue> first;
  for (Tid tid : tids) {
    const auto found = values_.find(tid.index);
    if (found == values_.end()) throw NotLowered{"an operand is not a value of the region"};
    const LoweredValue& part = found->second;
    if (!first) first = part;
    if (part.layout != first->layout || part.at.heads != first->at.heads || part.type != first->type) {
      throw NotLowered{"the operands differ"};
    }
    parts.push_back(part.at);
  }
  RequireLastAxis(i, *first);
  const RegionValue joined = parts.size() == 1 ? parts[0] : builder_.Concatenate(parts);
  Out(i, {joined, first->layout, first->type});
}

}  // namespace offgraph::program
