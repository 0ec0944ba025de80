// The message behind offgraph_error().
#pragma once

#include <string>

namespace offgraph::delegate {

// Keeps `message` for offgraph_error() on this thread.
void SetLastError(std::string message);
// "" where there was none. Valid until the next SetLastError on this thread.
const char* LastError();

}  // namespace offgraph::delegate
