// The ExecuTorch container: any bytes are read, or refused with Error(kBadFile).
//
// Mutations are of the program's tables and fields (segments, offsets, indices of delegates and values), of the numbers
// of the extended header, and of raw bytes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "fuzz/pte_file.h"
#include "fuzz/work_limit.h"
#include "offgraph/cache/error.h"
#include "offgraph/pte/container.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

using namespace offgraph;

constexpr double kSeconds = 5;

// Reads the ends of every span that the container hands out.
void Touch(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  const volatile std::byte* data = bytes.data();
  static_cast<void>(data[0]);
  static_cast<void>(data[bytes.size() - 1]);
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  fuzz::Random random(seed);
  std::optional<fuzz::PteFile> file = fuzz::OneIn(8, random) ? std::nullopt : fuzz::ReadPte({data, size});
  if (!file) return LLVMFuzzerMutate(data, size, max_size);
  fuzz::MutatePte(&*file, random);
  const size_t written = fuzz::WritePte(*file, data, max_size);
  return written > 0 ? written : LLVMFuzzerMutate(data, size, max_size);
}

extern "C" size_t LLVMFuzzerCustomCrossOver(const uint8_t* data1, size_t size1, const uint8_t* data2, size_t size2,
                                            uint8_t* out, size_t max_size, unsigned int seed) {
  fuzz::Random random(seed);
  std::optional<fuzz::PteFile> file = fuzz::ReadPte({data1, size1});
  const std::optional<fuzz::PteFile> other = fuzz::ReadPte({data2, size2});
  if (!file || !other) return 0;
  fuzz::SplicePte(&*file, *other, random);
  return fuzz::WritePte(*file, out, max_size);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using offgraph::pte::Container;
  const fuzz::WorkLimit limit(kSeconds);
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
