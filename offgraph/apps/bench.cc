// offgraph bench: how fast a model runs here, and how far that is from what the machine can do.
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "offgraph/apps/commands.h"
#include "offgraph/apps/console.h"
#include "offgraph/apps/json.h"
#include "offgraph/apps/options.h"
#include "offgraph/apps/table.h"
#include "offgraph/cache/error.h"
#include "offgraph/kernels/limits.h"
#include "offgraph/kernels/thread_pool.h"
#include "offgraph/program/cost.h"

namespace offgraph::apps {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  offgraph bench smollm2\n"
    "  offgraph bench smollm2 --prefill 512,2048 --depth 0,4000 --decode 48 --threads 2 --json\n"
    "Figures are medians. Decode is bounded by reading every weight and every live row of K and V once per token,\n"
    "prefill by multiplying and adding; the limits are measured in the same run.";

struct BenchFlags {
  ModelFlags model;
  llm::CacheOptions cache;
  std::vector<int64_t> prefill = {512};
  std::vector<int64_t> depth = {0};
  int64_t decode = 48;
  int64_t reps = 3;
  bool json = false;
};

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

int64_t PeakRss() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

struct Figure {
  int64_t size = 0;  // tokens of a prefill, depth of a decode
  std::vector<double> tokens_per_s;
  double kv_bytes = 0;    // of a decode: live K and V that a step reads, on average
  double read_limit = 0;  // of a decode: bytes per second
};

class Bench {
 public:
  explicit Bench(const BenchFlags& flags)
      : flags_(flags),
        model_(OpenModel(flags.model, {.with_text = false})),
        session_(model_, CacheFor(flags, model_->info())) {
    for (const int64_t tokens : flags.prefill) prefill_.push_back({tokens, {}, 0});
    for (const int64_t depth : flags.depth) decode_.push_back({depth, {}, 0});
    // Pages of the file are read, and work buffers made, by the first step.
    session_.Append(Tokens(1));
    load_s_ = load_.seconds();
  }

  void Measure() {
    const auto per_rep = static_cast<int64_t>(prefill_.size() + decode_.size());
    Progress progress("bench");
    int64_t done = 0;
    const auto next = [&] { progress.Update(++done, per_rep * flags_.reps); };
    session_.Reset();
    session_.Append(Tokens(std::min<int64_t>(session_.capacity(), 16)));
    // Repetitions are the outer loop, so that a machine that drifts meets all figures alike.
    for (int64_t rep = 0; rep < flags_.reps; ++rep) {
      for (Figure& figure : prefill_) {
        MeasurePrefill(figure);
        next();
      }
      for (Figure& figure : decode_) {
        MeasureDecode(figure);
        next();
      }
    }
    peak_rss_ = PeakRss();  // before the limits are measured, whose buffers are none of the model's
    cost_ = program::CostOfStep(*model_->program());
    limits_ = kernels::MeasureLimits(kernels::ThreadPool::Default());
    for (Figure& figure : decode_) figure.read_limit = ReadLimit(BytesPerToken(figure));
  }

  void Print() const {
    if (flags_.json) {
      PrintJson(ToJson());
    } else {
      PrintTables();
    }
  }

 private:
  static llm::CacheOptions CacheFor(const BenchFlags& flags, const llm::ModelInfo& info) {
    llm::CacheOptions options = flags.cache;
    int64_t needed = 16;
    for (const int64_t tokens : flags.prefill) needed = std::max(needed, tokens);
    for (const int64_t depth : flags.depth) needed = std::max(needed, depth + flags.decode);
    if (options.capacity == 0) options.capacity = info.off_graph ? needed : info.max_context;
    return options;
  }

  // The same tokens in every run; which ones they are makes no difference to the speed.
  std::vector<llm::TokenId> Tokens(int64_t count) const {
    const int64_t vocab = std::max<int64_t>(model_->info().vocab, 16);
    std::vector<llm::TokenId> tokens(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      tokens[static_cast<size_t>(i)] = static_cast<llm::TokenId>((i * 7919 + 11) % vocab);
    }
    return tokens;
  }

  void MeasurePrefill(Figure& figure) {
    session_.Reset();
    const std::vector<llm::TokenId> tokens = Tokens(figure.size);
    const Stopwatch watch;
    session_.Append(tokens, {.stop = Interrupted});
    figure.tokens_per_s.push_back(static_cast<double>(figure.size) / watch.seconds());
  }

  void MeasureDecode(Figure& figure) {
    const std::vector<llm::TokenId> tokens = Tokens(figure.size + 1);
    session_.Reset();
    if (figure.size > 0) {
      session_.Append(std::span(tokens).first(static_cast<size_t>(figure.size)), {.stop = Interrupted});
    }
    llm::TokenId token = tokens.back();
    int64_t first_bytes = 0;
    const Stopwatch watch;
    for (int64_t i = 0; i < flags_.decode; ++i) {
      session_.Push(token);
      const std::span<const float> logits = session_.Logits({.stop = Interrupted});
      token = static_cast<llm::TokenId>(std::ranges::max_element(logits) - logits.begin());
      if (i == 0) first_bytes = session_.memory().in_use;
    }
    figure.tokens_per_s.push_back(static_cast<double>(flags_.decode) / watch.seconds());
    figure.kv_bytes = static_cast<double>(first_bytes + session_.memory().in_use) / 2;
  }

  // What reading as many bytes as a token does reaches. Above some size, caches make no difference.
  static double ReadLimit(int64_t bytes) {
    constexpr int64_t kMostBytes = int64_t{512} << 20;
    return kernels::MeasureReadRate(kernels::ThreadPool::Default(), static_cast<size_t>(std::min(bytes, kMostBytes)));
  }

  Json ToJson() const {
    Json result = {{"threads", kernels::ThreadPool::Default().threads()},
                   {"load_s", load_s_},
                   {"peak_rss_bytes", peak_rss_},
                   {"limits",
                    {{"read_bytes_per_s", limits_.read_bytes_per_s},
                     {"int8_ops_per_s", limits_.int8_ops_per_s},
                     {"fp32_flops_per_s", limits_.fp32_flops_per_s}}},
                   {"prefill", Json::array()},
                   {"decode", Json::array()}};
    for (const Figure& figure : prefill_) {
      result["prefill"].push_back({{"tokens", figure.size},
                                   {"tokens_per_s", Median(figure.tokens_per_s)},
                                   {"ops_per_token", cost_.matrix_ops}});
    }
    for (const Figure& figure : decode_) {
      result["decode"].push_back({{"depth", figure.size},
                                  {"tokens_per_s", Median(figure.tokens_per_s)},
                                  {"bytes_per_token", BytesPerToken(figure)},
                                  {"read_bytes_per_s", figure.read_limit}});
    }
    return result;
  }

  int64_t BytesPerToken(const Figure& figure) const {
    return cost_.weight_bytes + static_cast<int64_t>(figure.kv_bytes);
  }

  // "from to", the slowest and the fastest repetition.
  static std::string Spread(const std::vector<double>& values) {
    const auto [low, high] = std::ranges::minmax(values);
    return FormatFixed(low, 1) + " to " + FormatFixed(high, 1);
  }

  static std::string Percent(double share) { return FormatFixed(100 * share, 1) + " %"; }

  void PrintTables() const {
    std::cout << Printable(model_->info().name) << ": " << kernels::ThreadPool::Default().threads()
              << " threads, ready after " << FormatFixed(load_s_, 2) << " s, peak memory "
              << FormatBytes(static_cast<double>(peak_rss_)) << "\n";
    Table table({{"", Table::Align::kLeft},
                 {"tokens"},
                 {"tokens/s"},
                 {"of " + std::to_string(flags_.reps)},
                 {"per token"},
                 {"limit"},
                 {"of the limit"}});
    const double ops_limit = cost_.quantized ? limits_.int8_ops_per_s : limits_.fp32_flops_per_s;
    for (const Figure& figure : prefill_) {
      const double speed = Median(figure.tokens_per_s);
      table.AddRow({"prefill", FormatCount(figure.size), FormatFixed(speed, 1), Spread(figure.tokens_per_s),
                    FormatFixed(static_cast<double>(cost_.matrix_ops) / 1e6, 1) + " Mop",
                    FormatFixed(ops_limit / 1e12, 2) + " Top/s",
                    Percent(speed * static_cast<double>(cost_.matrix_ops) / ops_limit)});
    }
    for (const Figure& figure : decode_) {
      const double speed = Median(figure.tokens_per_s);
      const auto bytes = static_cast<double>(BytesPerToken(figure));
      table.AddRow({"decode at", FormatCount(figure.size), FormatFixed(speed, 1), Spread(figure.tokens_per_s),
                    FormatFixed(bytes / 1e6, 1) + " MB", FormatFixed(figure.read_limit / 1e9, 1) + " GB/s",
                    Percent(speed * bytes / figure.read_limit)});
    }
    std::cout << table.Draw() << "Limits, measured here: " << (cost_.quantized ? "int8" : "fp32")
              << " multiply-adds for prefill's products with weights; for decode, reading as many bytes." << std::endl;
  }

  const BenchFlags& flags_;
  Stopwatch load_;
  std::shared_ptr<const llm::Model> model_;
  llm::Session session_;
  program::StepCost cost_;
  double load_s_ = 0;
  int64_t peak_rss_ = 0;
  kernels::MachineLimits limits_;
  std::vector<Figure> prefill_;
  std::vector<Figure> decode_;
};

}  // namespace

Command AddBench(CLI::App& parent) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* command =
      parent.add_subcommand("bench", "Measure load, prefill and decode, as a share of the machine's limits");
  command->footer(kExamples);
  AddModelFlags(*command, flags->model, false);
  const CLI::Range tokens(int64_t{0}, int64_t{1} << 40);
  command->add_option("--prefill", flags->prefill, "Prompts to compute, by length")
      ->type_name("TOKENS,...")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  command->add_option("--depth", flags->depth, "Depths to decode at: tokens that are in the cache already")
      ->type_name("TOKENS,...")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str()
      ->check(tokens);
  command->add_option("--decode", flags->decode, "Tokens to decode at each depth")
      ->type_name("TOKENS")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  command->add_option("--reps", flags->reps, "Repetitions; the median counts")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  AddJsonFlag(*command, flags->json);
  AddCacheFlags(*command, flags->cache);
  return {command, [flags] {
            Bench bench(*flags);
            bench.Measure();
            bench.Print();
            return 0;
          }};
}

}  // namespace offgraph::apps
