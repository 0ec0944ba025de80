// offgraph inspect: what a file holds, and the memory that a context takes.
#include "offgraph/program/inspect.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "offgraph/apps/commands.h"
#include "offgraph/apps/console.h"
#include "offgraph/apps/json.h"
#include "offgraph/apps/options.h"
#include "offgraph/apps/table.h"
#include "offgraph/cache/error.h"

namespace offgraph::apps {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  offgraph inspect models/stories260K\n"
    "  offgraph inspect smollm2 --context 8192 --kv-dtype fp16\n"
    "  offgraph inspect model.pte --weights --json";

struct InspectFlags {
  ModelFlags model;
  llm::CacheOptions cache;
  int64_t context = 0;
  bool weights = false;
  bool optimized = false;
  bool instructions = false;
  bool json = false;
};

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

int64_t SumBytes(const std::vector<program::WeightInfo>& infos) {
  int64_t bytes = 0;
  for (const program::WeightInfo& info : infos) bytes += info.bytes;
  return bytes;
}

struct TypeSum {
  std::string type;
  int64_t count = 0;
  int64_t bytes = 0;
};

// The most bytes first.
std::vector<TypeSum> SumByType(const std::vector<program::WeightInfo>& infos) {
  std::vector<TypeSum> sums;
  for (const program::WeightInfo& info : infos) {
    const std::string type = program::Name(info.type);
    auto sum = std::ranges::find(sums, type, &TypeSum::type);
    if (sum == sums.end()) sum = sums.insert(sums.end(), {type, 0, 0});
    ++sum->count;
    sum->bytes += info.bytes;
  }
  std::ranges::stable_sort(sums, std::ranges::greater(), &TypeSum::bytes);
  return sums;
}

// Everything that is printed, in one of two forms.
class Report {
 public:
  explicit Report(const InspectFlags& flags)
      : flags_(flags),
        model_(OpenModel(flags.model, {.with_text = false, .optimize = flags.optimized, .lay_out = false})),
        ops_(program::CountOps(*model_->program())),
        weights_(program::ListWeights(*model_->program())),
        buffers_(program::ListBuffers(*model_->program())),
        context_(Context(flags, model_->info())) {
    if (!model_->info().off_graph) return;
    llm::CacheOptions options = flags.cache;
    options.capacity = context_;
    const llm::CacheSize size = llm::SizeOfCache(model_->info(), options);
    cache_bytes_ = size.bytes;
    kv_type_ = size.kv_type;
  }

  Json ToJson() const {
    const llm::ModelInfo& info = model_->info();
    Json json = {{"file", info.name},
                 {"file_bytes", model_->container().size()},
                 {"methods", Json::array()},
                 {"max_context", info.max_context},
                 {"prefill_chunk", info.prefill_chunk},
                 {"vocab", info.vocab},
                 {"ops", Json::array()},
                 {"weights", Json::array()},
                 {"buffers", Json::array()}};
    for (const pte::MethodInfo& method : model_->container().methods()) json["methods"].push_back(method.name);
    for (const program::OpCount& op : ops_) json["ops"].push_back({{"name", op.op}, {"count", op.count}});
    for (const auto& [key, infos] : {std::pair("weights", &weights_), std::pair("buffers", &buffers_)}) {
      for (const program::WeightInfo& weight : *infos) {
        json[key].push_back({{"name", weight.name},
                             {"type", program::Name(weight.type)},
                             {"shape", weight.shape},
                             {"bytes", weight.bytes}});
      }
    }
    json["cache"] = {{"off_graph", info.off_graph}};
    if (info.off_graph) {
      json["cache"].update({{"n_caches", info.n_caches},
                            {"kv_heads", info.kv_heads},
                            {"head_dims", info.head_dims},
                            {"windows", info.windows}});
    }
    json["memory"] = {{"context", context_},
                      {"kv_type", kv_type_},
                      {"weight_bytes", SumBytes(weights_)},
                      {"buffer_bytes", SumBytes(buffers_)},
                      {"cache_bytes", cache_bytes_}};
    return json;
  }

  void Print() const {
    const llm::ModelInfo& info = model_->info();
    std::cout << Printable(info.name) << ": " << FormatBytes(static_cast<double>(model_->container().size())) << "\n\n"
              << "context   " << FormatCount(info.max_context) << " tokens as exported, steps of up to "
              << FormatCount(info.prefill_chunk) << "\n"
              << "logits    " << FormatCount(info.vocab) << " per token\n"
              << "methods   " << MethodNames() << "\n\n";
    PrintOps();
    PrintWeights();
    PrintCache();
    if (flags_.instructions) std::cout << "\n" << program::DumpInstructions(*model_->program());
    std::cout << std::flush;
  }

 private:
  static int64_t Context(const InspectFlags& flags, const llm::ModelInfo& info) {
    if (flags.context > 0) return flags.context;
    return flags.cache.capacity > 0 ? flags.cache.capacity : info.max_context;
  }

  std::string MethodNames() const {
    std::string names;
    for (const pte::MethodInfo& method : model_->container().methods()) {
      names += (names.empty() ? "" : ", ") + Printable(method.name);
    }
    return names;
  }

  void PrintOps() const {
    Table table({{"op", Table::Align::kLeft}, {"count"}});
    for (const program::OpCount& op : ops_) table.AddRow({op.op, FormatCount(op.count)});
    std::cout << table.Draw() << "\n";
  }

  void PrintWeights() const {
    Table sums({{"weights", Table::Align::kLeft}, {"count"}, {"size"}});
    for (const TypeSum& sum : SumByType(weights_)) {
      sums.AddRow({sum.type, FormatCount(sum.count), FormatBytes(static_cast<double>(sum.bytes))});
    }
    std::cout << sums.Draw();
    if (!flags_.weights) return;
    Table all({{"weight", Table::Align::kLeft}, {"type", Table::Align::kLeft}, {"shape"}, {"size"}});
    for (const program::WeightInfo& weight : weights_) {
      all.AddRow({Printable(weight.name), program::Name(weight.type), ShapeText(weight.shape),
                  FormatBytes(static_cast<double>(weight.bytes))});
    }
    std::cout << all.Draw();
  }

  // Neighbouring caches that are alike share a line.
  void PrintCache() const {
    const llm::ModelInfo& info = model_->info();
    if (!info.off_graph) {
      std::cout << "\nThe cache is inside the graph: " << FormatBytes(static_cast<double>(SumBytes(buffers_)))
                << " of buffers.\n";
      return;
    }
    Table table({{"cache"}, {"sees", Table::Align::kLeft}, {"K/V heads"}, {"head size"}});
    const auto kind = [&](size_t i) { return std::tuple(info.windows[i], info.kv_heads[i], info.head_dims[i]); };
    for (size_t first = 0; first < info.windows.size();) {
      size_t end = first + 1;
      while (end < info.windows.size() && kind(end) == kind(first)) ++end;
      table.AddRow({std::to_string(first) + (end - first > 1 ? " to " + std::to_string(end - 1) : ""),
                    info.windows[first] == 0 ? "everything" : "the newest " + FormatCount(info.windows[first]),
                    std::to_string(info.kv_heads[first]), std::to_string(info.head_dims[first])});
      first = end;
    }
    std::cout << "\n"
              << table.Draw() << "\nMemory for a context of " << FormatCount(context_)
              << " tokens: " << FormatBytes(static_cast<double>(SumBytes(weights_)))
              << " of weights (mapped from the file), " << FormatBytes(static_cast<double>(cache_bytes_))
              << " of K and V in " << kv_type_ << ".\n";
  }

  const InspectFlags& flags_;
  std::shared_ptr<const llm::Model> model_;
  std::vector<program::OpCount> ops_;
  std::vector<program::WeightInfo> weights_;
  std::vector<program::WeightInfo> buffers_;
  int64_t context_;
  int64_t cache_bytes_ = 0;
  std::string kv_type_ = "same";
};

}  // namespace

Command AddInspect(CLI::App& parent) {
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* command = parent.add_subcommand("inspect", "What a file holds, and the memory that a context takes");
  command->footer(kExamples);
  AddModelFlags(*command, flags->model, false);
  command
      ->add_option("--context", flags->context, "Tokens that memory is told for (default: --capacity, or as exported)")
      ->type_name("TOKENS")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  command->add_flag("--weights", flags->weights, "List every weight");
  command->add_flag("--optimized", flags->optimized, "Ops and weights as they run, not as they are in the file");
  command->add_flag("--instructions", flags->instructions, "List every instruction");
  AddJsonFlag(*command, flags->json);
  AddCacheFlags(*command, flags->cache);
  return {command, [flags] {
            const Report report(*flags);
            if (flags->json) {
              PrintJson(report.ToJson());
            } else {
              report.Print();
            }
            return 0;
          }};
}

}  // namespace offgraph::apps
