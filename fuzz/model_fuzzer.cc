// A whole .pte file, opened as `offgraph run` and `offgraph inspect` do: it becomes a model, or an Error that names the
// file; a model computes a few tokens within its limits of memory, or ends with an Error.
//
// Mutations are of the container's tables, of its payload's, and of raw bytes.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/pte_file.h"
#include "fuzz/work_limit.h"
#include "offgraph/cache/error.h"
#include "offgraph/kernels/thread_pool.h"
#include "offgraph/llm/model.h"
#include "offgraph/llm/session.h"
#include "offgraph/program/cost.h"
#include "offgraph/program/inspect.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

using namespace offgraph;

constexpr double kSeconds = 10;
constexpr int kQuestions = 5'000;  // about stopping: one before every instruction

// A file in memory with a path.
class MemoryFile {
 public:
  MemoryFile(const uint8_t* data, size_t size) : descriptor_(memfd_create("model.pte", 0)) {
    if (descriptor_ < 0 || write(descriptor_, data, size) != static_cast<ssize_t>(size)) std::abort();
  }
  ~MemoryFile() { close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

void Use(const std::string& path, bool optimize) {
  const auto model = llm::Model::Open(path, {.with_text = false, .optimize = optimize, .exact = optimize});
  (void)program::CountOps(*model->program());
  (void)program::ListWeights(*model->program());
  (void)program::ListBuffers(*model->program());
  (void)program::CostOfStep(*model->program());
  llm::CacheOptions options;
  options.initial_capacity = 4;
  options.max_step = 4;
  options.memory_limit = int64_t{16} << 20;
  options.step_memory_limit = int64_t{16} << 20;
  if (model->info().off_graph) (void)llm::SizeOfCache(model->info(), options);
  options.capacity = 8;
  llm::Session session(model, options);
  int questions = 0;
  const llm::StepControl control{.stop = [&] { return ++questions > kQuestions; }};
  session.Append(std::vector<llm::TokenId>{1, 2, 0, 3, 1}, control);
  (void)session.Logits(control);
  session.Truncate(2);
  (void)session.Logits(control);
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  kernels::ThreadPool::SetDefaultThreads(1);
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  fuzz::Random random(seed);
  std::optional<fuzz::PteFile> file = fuzz::OneIn(16, random) ? std::nullopt : fuzz::ReadPte({data, size});
  if (!file) return LLVMFuzzerMutate(data, size, max_size);
  if (fuzz::OneIn(3, random)) {
    fuzz::MutatePte(&*file, random);
  } else {
    fuzz::MutatePayloadOf(&*file, random);
  }
  const size_t written = fuzz::WritePte(*file, data, max_size);
  return written > 0 ? written : LLVMFuzzerMutate(data, size, max_size);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::WorkLimit limit(kSeconds);
  const MemoryFile file(data, size);
  for (const bool optimize : {true, false}) {
    try {
      Use(file.path(), optimize);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kInternal) std::abort();
    }
  }
  return 0;
}
