// The values of constant methods.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "offgraph/pte/bad_file.h"
#include "offgraph/pte/container.h"
#include "offgraph/pte/segments.h"

namespace executorch_flatbuffer {
struct ExecutionPlan;
struct Program;
}  // namespace executorch_flatbuffer

namespace offgraph::pte {

// What value `index` of `plan` holds; absent where it is no constant that a ConstantValue can hold: nothing at all, a
// list of tensors, a tensor that is written at run time, lies in another file, or has an element type without numbers
// (uint64 and quantized ones). Throws Error(kBadFile), naming `part`, where its data do not lie in the file.
// REQUIRES: index < plan.values()->size().
std::optional<ConstantValue> ReadConstant(const executorch_flatbuffer::Program& program, const Segments& segments,
                                          const executorch_flatbuffer::ExecutionPlan& plan, uint32_t index,
                                          const std::string& file, const std::string& part, Budget& budget);

}  // namespace offgraph::pte
