#include "offgraph/program/host_tensor.h"

#include <array>

namespace offgraph::program {
namespace {

struct TypeRow {
  ScalarType type;
  const char* name;
  int64_t size;
};

constexpr std::array<TypeRow, 13> kTypes = {{
    {ScalarType::kByte, "uint8", 1},
    {ScalarType::kChar, "int8", 1},
    {ScalarType::kShort, "int16", 2},
    {ScalarType::kInt, "int32", 4},
    {ScalarType::kLong, "int64", 8},
    {ScalarType::kHalf, "fp16", 2},
    {ScalarType::kFloat, "fp32", 4},
    {ScalarType::kDouble, "fp64", 8},
    {ScalarType::kBool, "bool", 1},
    {ScalarType::kBFloat16, "bf16", 2},
    {ScalarType::kUInt16, "uint16", 2},
    {ScalarType::kUInt32, "uint32", 4},
    {ScalarType::kUInt64, "uint64", 8},
}};

const TypeRow* Find(ScalarType type) {
  for (const TypeRow& row : kTypes) {
    if (row.type == type) return &row;
  }
  return nullptr;
}

}  // namespace

std::string Name(ScalarType type) {
  const TypeRow* row = Find(type);
  return row != nullptr ? row->name : "type " + std::to_string(static_cast<int>(type));
}

int64_t SizeOf(ScalarType type) {
  const TypeRow* row = Find(type);
  return row != nullptr ? row->size : 0;
}

}  // namespace offgraph::program
