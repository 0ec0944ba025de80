#include "offgraph/apps/options.h"

#include <CLI/CLI.hpp>
#include <cmath>
#include <limits>
#include <random>

#include "offgraph/cache/error.h"
#include "offgraph/kernels/thread_pool.h"

namespace offgraph::apps {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

CLI::Range AtLeast(int64_t lowest) { return CLI::Range(lowest, kMost, "INT >= " + std::to_string(lowest)); }

std::pair<int32_t, float> ParseBias(const std::string& text) {
  size_t id_end = 0;
  size_t value_end = 0;
  try {
    const int id = std::stoi(text, &id_end);
    if (id_end < text.size() && text[id_end] == '=') {
      const std::string value = text.substr(id_end + 1);
      const float bias = std::stof(value, &value_end);
      if (value_end == value.size() && !std::isnan(bias)) return {id, bias};
    }
  } catch (const std::logic_error&) {
    // Neither a number, nor one that fits: the message below says what was expected.
  }
  throw Error(ErrorCode::kInvalidArgument,
              "--logit-bias " + text + ": expected TOKEN_ID=VALUE, for example 42=-5, or 42=-inf to forbid it");
}

}  // namespace

void AddModelFlags(CLI::App& command, ModelFlags& flags, bool with_text) {
  command.add_option("model", flags.model, "A .pte file, or a folder that holds one")->required()->type_name("MODEL");
  if (with_text) {
    command
        .add_option("--tokenizer", flags.tokenizer,
                    "tokenizer.json, or the folder of the checkpoint that it belongs to (default: beside the model)")
        ->type_name("FILE");
  }
  command.add_option("--threads", flags.threads, "Threads to compute with (default: the cores it may use)")
      ->type_name("N")
      ->check(CLI::Range(1, 4096));
  CLI::Option* exact =
      command.add_flag("--exact", flags.exact,
                       "Compute quantized models as their ops and types say (several times slower): do "
                       "not round activations to 12 bits, and round results as the program does");
  command
      .add_flag("--exact-products", flags.exact_products,
                "Do not round the activations of quantized layers to 12 bits, but keep results in fp32 as the default "
                "does: what the rounding alone costs is measured against this")
      ->excludes(exact);
}

std::shared_ptr<const llm::Model> OpenModel(const ModelFlags& flags, llm::ModelOptions options) {
  if (flags.threads > 0) kernels::ThreadPool::SetDefaultThreads(static_cast<size_t>(flags.threads));
  options.tokenizer = flags.tokenizer;
  options.exact = flags.exact || flags.exact_products;
  options.fp32_results = flags.exact_products;
  return llm::Model::Open(flags.model, options);
}

void AddCacheFlags(CLI::App& command, llm::CacheOptions& options) {
  const std::string group = "Cache";
  command.add_option("--capacity", options.capacity, "Tokens that the cache holds (default: the exported context)")
      ->type_name("TOKENS")
      ->check(AtLeast(1))
      ->group(group);
  command
      .add_option("--kv-dtype", options.kv_type,
                  "How K and V are stored: same (as the model computes them, the default), fp32, fp16 or bf16")
      ->type_name("TYPE")
      ->check(CLI::IsMember({"same", "fp32", "fp16", "bf16"}))
      ->group(group);
  command
      .add_option("--window", options.window,
                  "Every layer sees at most the newest TOKENS; 0: all of them (default: the model's own windows)")
      ->type_name("TOKENS")
      ->check(AtLeast(0))
      ->group(group);
  command.add_option("--sinks", options.sinks, "First tokens that layers with a window go on seeing")
      ->type_name("TOKENS")
      ->check(AtLeast(0))
      ->group(group);
  command
      .add_option("--initial-capacity", options.initial_capacity,
                  "Tokens that memory is taken for at first (default: 256); it grows as it is needed")
      ->type_name("TOKENS")
      ->check(AtLeast(1))
      ->group(group);
  command.add_option("--prefill-chunk", options.max_step, "Tokens computed at once (default, and most: as exported)")
      ->type_name("TOKENS")
      ->check(AtLeast(1))
      ->group(group);
  command.add_option("--kv-memory", options.memory_limit, "Most bytes that the cache may take (default: no limit)")
      ->type_name("BYTES")
      ->check(AtLeast(1))
      ->group(group);
  command
      .add_option("--step-memory", options.step_memory_limit,
                  "Most bytes that a step may take beside weights and cache (default: no limit)")
      ->type_name("BYTES")
      ->check(AtLeast(1))
      ->group(group);
}

void AddGenerateFlags(CLI::App& command, GenerateFlags& flags) {
  const std::string group = "Generation";
  llm::SamplerOptions& sampler = flags.options.sampler;
  sampler.temperature = 0.8;
  sampler.top_p = 0.95;
  command
      .add_option("-n,--max-tokens", flags.options.max_tokens, "Tokens to generate at most; 0: until the cache is full")
      ->type_name("TOKENS")
      ->capture_default_str()
      ->check(AtLeast(0))
      ->group(group);
  struct Number {
    const char* name;
    double* value;
    const char* help;
  };
  for (const Number& number :
       {Number{"--temp", &sampler.temperature, "Temperature; 0 always takes the most probable token"},
        Number{"--top-p", &sampler.top_p, "Sample from the most probable tokens that together have this probability"},
        Number{"--min-p", &sampler.min_p, "Drop tokens below this share of the largest probability"},
        Number{"--repetition-penalty", &sampler.repetition_penalty, "Above 1 discourages tokens that occurred"},
        Number{"--presence-penalty", &sampler.presence_penalty, "Taken from the logit of a token that occurred"},
        Number{"--frequency-penalty", &sampler.frequency_penalty, "The same, each time that it occurred"}}) {
    command.add_option(number.name, *number.value, number.help)->type_name("X")->capture_default_str()->group(group);
  }
  command.add_option("--top-k", sampler.top_k, "Sample from the K most probable tokens; 0: from all")
      ->type_name("K")
      ->capture_default_str()
      ->group(group);
  command.add_option("--logit-bias", flags.logit_bias, "Added to the logit of a token; may be repeated")
      ->type_name("ID=X")
      ->take_all()
      ->allow_extra_args(false)
      ->group(group);
  command.add_option("--seed", flags.seed, "Makes the choices repeatable (default: a random one)")
      ->type_name("N")
      ->group(group);
  command.add_option("--stop", flags.options.stop, "End where this text would appear; may be repeated")
      ->type_name("TEXT")
      ->take_all()
      ->allow_extra_args(false)
      ->group(group);
  command.add_flag("--ignore-end", flags.options.ignore_end, "Go on past the model's end tokens")->group(group);
}

llm::GenerateOptions Resolve(const GenerateFlags& flags) {
  llm::GenerateOptions options = flags.options;
  for (const std::string& text : flags.logit_bias) options.sampler.logit_bias.push_back(ParseBias(text));
  options.seed = flags.seed ? *flags.seed : std::random_device()();
  return options;
}

void AddJsonFlag(CLI::App& command, bool& json) { command.add_flag("--json", json, "Print the result as JSON"); }

}  // namespace offgraph::apps
