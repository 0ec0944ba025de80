// The methods (execution plans) of a program: every index checked, and the facts of MethodInfo gathered.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "offgraph/pte/bad_file.h"
#include "offgraph/pte/container.h"
#include "offgraph/pte/segments.h"

namespace offgraph::pte {

// Throws Error(kBadFile), naming method and part, for an index that is out of range, a method without a name or with
// one that another has, a delegate without payload, a constant whose data do not lie in the file.
std::vector<MethodInfo> ReadMethods(const executorch_flatbuffer::Program& program, const Segments& segments,
                                    const std::string& file, Budget& budget);

}  // namespace offgraph::pte
