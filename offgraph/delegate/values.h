// Arguments of ExecuTorch's as a program's, and back.
#pragma once

#include <executorch/runtime/core/evalue.h>

#include <string>

#include "offgraph/program/executor.h"

namespace offgraph::delegate {

// An input: a tensor in row-major order (its data are copied), an integer, a double or a bool. `what` names it in
// messages. Throws Error(kInvalidArgument) for anything else.
program::Argument FromEValue(const executorch::runtime::EValue& value, const std::string& what);

// Writes a result to an output. A tensor is resized to the result's shape, and its data are copied.
// Throws Error(kInvalidArgument) where the output is of another kind or type, and Error(kOutOfRange) where it is too
// small.
void ToEValue(const program::Argument& result, executorch::runtime::EValue& value, const std::string& what);

}  // namespace offgraph::delegate
