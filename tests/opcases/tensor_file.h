// Reads the .bin files of the op cases: uint32 count; then per tensor uint32 type (0 float32, 1 float16, 2 int32,
// 3 int64, 4 bfloat16, 5 bool), uint32 rank, int32 sizes, raw data. Little endian.
#pragma once

#include <string>
#include <vector>

#include "offgraph/program/host_tensor.h"

namespace offgraph::testing {

// Throws std::runtime_error where the file is missing, cut or longer than it says.
std::vector<program::HostTensor> ReadTensorFile(const std::string& path);

// Every element as a double.
std::vector<double> ToDoubles(const program::HostTensor& tensor);

}  // namespace offgraph::testing
