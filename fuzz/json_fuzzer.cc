// The JSON files beside a model, and the JSON that callers give: any bytes are read, or refused with an Error.
//
// The input is up to four texts with zero bytes between them: generation_config.json, tokenizer_config.json,
// config.json and special_tokens_map.json of a model's folder. The first is also read as a conversation, and as the
// definition of a cache.
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>

#include "fuzz/work_limit.h"
#include "offgraph/cache/error.h"
#include "offgraph/delegate/cache_definition.h"
#include "offgraph/llm/chat_template.h"
#include "offgraph/llm/jinja_json.h"
#include "offgraph/llm/model_files.h"

namespace {

namespace fs = std::filesystem;
using namespace offgraph;

constexpr double kSeconds = 5;
constexpr std::array<const char*, 4> kFiles = {"generation_config.json", "tokenizer_config.json", "config.json",
                                               "special_tokens_map.json"};

// A folder of this process, gone when it ends.
class Folder {
 public:
  Folder() {
    std::string path = (fs::temp_directory_path() / "offgraph-fuzz-XXXXXX").string();
    if (mkdtemp(path.data()) == nullptr) std::abort();
    path_ = path;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// Runs `read`; it may throw an Error, and nothing else. An Error about a file names it.
template <typename Read>
void Try(const Read& read, std::string_view expected_in_message = {}) {
  try {
    read();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInternal) std::abort();
    if (std::string_view(error.what()).find(expected_in_message) == std::string_view::npos) std::abort();
  }
}

void ReadFolder(std::string_view input) {
  static const Folder folder;
  for (const char* name : kFiles) {
    const size_t end = input.find('\0');
    std::ofstream(folder.path() / name, std::ios::binary) << input.substr(0, end);
    input = end == std::string_view::npos ? std::string_view() : input.substr(end + 1);
  }
  const std::string path = folder.path().string();
  Try(
      [&] {
        const llm::SpecialTokens special = llm::ReadSpecialTokens(path);
        for (const int64_t id : special.end_ids) {
          if (id < 0 || id > std::numeric_limits<int32_t>::max()) std::abort();
        }
      },
      ".json");
  Try([&] { (void)llm::ChatTemplate::Find(folder.path()); }, ".json");
}

void ReadConversation(std::string_view text) {
  static const llm::ChatTemplate chat("{% for m in messages %}{{ m | tojson }}{{ m.content }}{% endfor %}");
  for (const auto wide : {llm::jinja::WideIntegers::kRefuse, llm::jinja::WideIntegers::kRound}) {
    Try([&] {
      llm::ChatOptions options;
      options.limits = {.steps = 20'000, .bytes = 4 << 20};
      (void)chat.Render(llm::jinja::ParseJson(text, wide), options);
    });
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::WorkLimit limit(kSeconds);
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::string_view first = input.substr(0, input.find('\0'));
  ReadFolder(input);
  ReadConversation(first);
  Try([&] { delegate::Check(delegate::ParseCacheDefinition(std::string(first))); }, "cache definition");
  return 0;
}
