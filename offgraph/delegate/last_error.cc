#include "offgraph/delegate/last_error.h"

#include <utility>

namespace offgraph::delegate {
namespace {

std::string& Slot() {
  thread_local std::string message;
  return message;
}

}  // namespace

void SetLastError(std::string message) { Slot() = std::move(message); }
const char* LastError() { return Slot().c_str(); }

}  // namespace offgraph::delegate
