// Options that several commands take, spelled and checked alike in all of them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "offgraph/llm/generate.h"
#include "offgraph/llm/model.h"
#include "offgraph/llm/session.h"

namespace CLI {
class App;
}

namespace offgraph::apps {

struct ModelFlags {
  std::string model;            // positional MODEL
  std::string tokenizer;        // --tokenizer
  int64_t threads = 0;          // --threads
  bool exact = false;           // --exact
  bool exact_products = false;  // --exact-products
};
// MODEL, --threads and --exact; --tokenizer only where `with_text`.
void AddModelFlags(CLI::App& command, ModelFlags& flags, bool with_text);
// Sets the threads, then opens the model; `options.tokenizer` and those of exactness are taken from the flags.
std::shared_ptr<const llm::Model> OpenModel(const ModelFlags& flags, llm::ModelOptions options = {});

// --capacity, --kv-dtype, --window, --sinks, --initial-capacity, --prefill-chunk, --kv-memory, --step-memory.
void AddCacheFlags(CLI::App& command, llm::CacheOptions& options);

struct GenerateFlags {
  llm::GenerateOptions options;
  std::optional<uint64_t> seed;         // --seed
  std::vector<std::string> logit_bias;  // --logit-bias ID=VALUE
};
// -n, --temp, --top-k, --top-p, --min-p, the penalties, --logit-bias, --seed, --stop, --ignore-end.
void AddGenerateFlags(CLI::App& command, GenerateFlags& flags);
// The options with the texts above parsed; without --seed a random one. Throws Error(kInvalidArgument).
llm::GenerateOptions Resolve(const GenerateFlags& flags);

void AddJsonFlag(CLI::App& command, bool& json);

}  // namespace offgraph::apps
