// The ExecuTorch container: any bytes are read, or refused with Error(kBadFile).
#include <cstdint>
#include <cstdlib>
#include <span>

#include "offgraph/cache/error.h"
#include "offgraph/pte/container.h"

namespace {

// Reads the ends of every span that the container hands out.
void Touch(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  const volatile std::byte* data = bytes.data();
  static_cast<void>(data[0]);
  static_cast<void>(data[bytes.size() - 1]);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using offgraph::pte::Container;
  try {
    const auto container = Container::Parse(std::as_bytes(std::span(data, size)), "input");
    for (const auto& method : container->methods()) {
      for (const auto& delegate : method.delegates) Touch(delegate.processed);
      if (container->FindMethod(method.name) == nullptr) std::abort();
    }
    for (const auto& key : container->DataKeys()) Touch(container->FindData(key).value());
  } catch (const offgraph::Error& error) {
    if (error.code() != offgraph::ErrorCode::kBadFile) std::abort();
  }
  return 0;
}
