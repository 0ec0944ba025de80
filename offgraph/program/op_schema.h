// OpSchema: the payload's ops and their fields, as the schema's own description (reflection) has them.
//
// The schema is ExecuTorch's, and a newer release may bring ops, fields and kinds of fields that this build does not
// handle: everything here is data, and nothing names an op.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "offgraph/program/graph.h"

namespace reflection {
struct Field;
}

namespace offgraph::program {

// How a field of an op is stored, and what it becomes (FieldValue of graph.h has the same order).
enum class FieldKind : uint8_t {
  kBool,
  kInt,
  kFloat,
  kString,
  kTid,
  kVid,
  kIntOperand,
  kFloatOperand,
  kSlotOperand,
  kIndexOperand,
  kIntVector,
  kFloatVector,
  kStringVector,
  kTidVector,
  kIntOperandVector,
  kUnknown,  // a kind that a newer schema brings
};
// "tensor", "int or value", "list of ints", for people.
std::string ToString(FieldKind kind);

struct FieldSchema {
  std::string name;
  FieldKind kind = FieldKind::kUnknown;
  bool required = false;                     // the file is damaged where it is absent
  FieldValue default_value;                  // of a number or flag; std::monostate where absence means something
  const reflection::Field* field = nullptr;  // lives as long as the process
};

struct OpSchema {
  std::string name;                 // "AddNode"
  std::vector<FieldSchema> fields;  // in the schema's order
};

// The ops by their number in the schema's union; an entry without a name (the first) is no op.
const std::vector<OpSchema>& OpSchemas();

}  // namespace offgraph::program
