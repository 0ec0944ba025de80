// offgraph run: a prompt in, the model's text out.
#include <CLI/CLI.hpp>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "offgraph/apps/commands.h"
#include "offgraph/apps/console.h"
#include "offgraph/apps/json.h"
#include "offgraph/apps/npy_file.h"
#include "offgraph/apps/options.h"
#include "offgraph/cache/error.h"
#include "offgraph/llm/model_files.h"

namespace offgraph::apps {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  offgraph run models/stories260K --temp 0\n"
    "  offgraph run smollm2 -p \"The capital of France is\" -n 20 --temp 0\n"
    "  offgraph run smollm2 --chat -p \"What is the capital of France?\"\n"
    "  offgraph run model.pte --tokenizer checkpoint/ -f prompt.txt --kv-dtype fp16 --json\n"
    "  offgraph run smollm2 -f text.txt --logits logits.npy";

struct RunFlags {
  ModelFlags model;
  llm::CacheOptions cache;
  GenerateFlags generate;
  std::string prompt;
  std::string prompt_file;
  std::string system;
  std::string logits_file;
  bool chat = false;
  bool echo = false;
  bool quiet = false;
  bool json = false;
};

std::string Prompt(const RunFlags& flags) {
  if (flags.prompt_file.empty()) return flags.prompt;
  return flags.prompt_file == "-" ? ReadStdin() : llm::ReadSmallFile(flags.prompt_file);
}

std::vector<llm::TokenId> PromptTokens(const llm::Model& model, const RunFlags& flags, const std::string& prompt) {
  if (!flags.chat) return model.EncodePrompt(prompt);
  std::vector<llm::ChatMessage> messages;
  if (!flags.system.empty()) messages.push_back({"system", flags.system, ""});
  messages.push_back({"user", prompt, ""});
  return model.EncodeChat(messages);
}

void PrintStatistics(const llm::Reply& reply, size_t prompt_tokens, double prefill_seconds) {
  const auto count = static_cast<double>(reply.tokens.size());
  std::cerr << prompt_tokens << " tokens of prompt in " << FormatFixed(prefill_seconds, 2) << " s ("
            << FormatFixed(static_cast<double>(prompt_tokens) / std::max(prefill_seconds, 1e-9), 1)
            << " tokens per second), " << reply.tokens.size() << " generated in " << FormatFixed(reply.seconds, 2)
            << " s (" << FormatFixed(count / std::max(reply.seconds, 1e-9), 1)
            << " tokens per second), ended by: " << llm::Name(reply.reason) << std::endl;
}

// The logits after every token of the prompt, as [tokens, vocab]; nothing is generated.
int DumpLogits(const RunFlags& flags, std::span<const llm::TokenId> tokens, llm::Session& session) {
  const Stopwatch watch;
  std::optional<NpyFile> file;
  {
    Progress progress("logits");
    session.Append(tokens, {.stop = Interrupted,
                            .progress = [&](int64_t done, int64_t total) { progress.Update(done, total); },
                            .each_row =
                                [&](std::span<const float> row) {
                                  if (!file) {
                                    file.emplace(flags.logits_file, static_cast<int64_t>(tokens.size()),
                                                 static_cast<int64_t>(row.size()));
                                  }
                                  file->WriteRow(row);
                                }});
  }
  if (file) file->Finish();
  const int64_t vocab = static_cast<int64_t>(session.Logits().size());
  if (flags.json) {
    PrintJson({{"logits", flags.logits_file}, {"tokens", tokens}, {"vocab", vocab}, {"prompt_s", watch.seconds()}});
  } else if (!flags.quiet) {
    std::cerr << "logits after " << tokens.size() << " tokens, " << vocab << " each, in "
              << FormatFixed(watch.seconds(), 2) << " s: " << Printable(flags.logits_file) << std::endl;
  }
  return 0;
}

int Run(const RunFlags& flags) {
  const llm::GenerateOptions options = Resolve(flags.generate);
  const std::string prompt = Prompt(flags);
  const std::shared_ptr<const llm::Model> model = OpenModel(flags.model);
  const std::vector<llm::TokenId> tokens = PromptTokens(*model, flags, prompt);
  llm::Session session(model, flags.cache);
  if (!flags.logits_file.empty()) return DumpLogits(flags, tokens, session);

  const Stopwatch prefill;
  {
    Progress progress("prompt");
    session.Append(
        tokens, {.stop = Interrupted, .progress = [&](int64_t done, int64_t total) { progress.Update(done, total); }});
  }
  const double prefill_seconds = prefill.seconds();
  if (flags.echo && !flags.json) std::cout << prompt << std::flush;
  const llm::TextSink print = [](std::string_view text) { std::cout << text << std::flush; };
  const llm::Reply reply = llm::Generate(session, options, flags.json ? llm::TextSink() : print, {.stop = Interrupted});
  if (flags.json) {
    PrintJson({{"text", reply.text},
               {"tokens", reply.tokens},
               {"reason", llm::Name(reply.reason)},
               {"prompt_tokens", tokens.size()},
               {"prompt_s", prefill_seconds},
               {"generate_s", reply.seconds},
               {"seed", options.seed}});
  } else if (reply.text.empty() || reply.text.back() != '\n') {
    std::cout << std::endl;
  }
  if (!flags.quiet && !flags.json) PrintStatistics(reply, tokens.size(), prefill_seconds);
  return reply.reason == llm::StopReason::kCancelled ? kExitInterrupted : 0;
}

}  // namespace

Command AddRun(CLI::App& parent) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App* command = parent.add_subcommand("run", "Go on from a prompt");
  command->footer(kExamples);
  AddModelFlags(*command, flags->model, true);
  auto* prompt = command->add_option("-p,--prompt", flags->prompt,
                                     "The prompt, as it is (default: empty, the beginning-of-sequence token alone)");
  prompt->type_name("TEXT");
  command->add_option("-f,--file", flags->prompt_file, "Read the prompt from a file; - is standard input")
      ->type_name("FILE")
      ->excludes(prompt);
  auto* chat = command->add_flag("--chat", flags->chat, "The prompt is a question, asked through the chat template");
  command->add_option("--system", flags->system, "With --chat: the system message")->type_name("TEXT")->needs(chat);
  command
      ->add_option("--logits", flags->logits_file,
                   "Write the logits after every token of the prompt, fp32 [tokens, vocab] as .npy, and end there")
      ->type_name("FILE");
  command->add_flag("--echo", flags->echo, "Print the prompt in front of the text");
  command->add_flag("-q,--quiet", flags->quiet, "No statistics on standard error");
  AddJsonFlag(*command, flags->json);
  flags->generate.options.max_tokens = 255;  // 256 with the token that an empty prompt starts from
  AddGenerateFlags(*command, flags->generate);
  AddCacheFlags(*command, flags->cache);
  return {command, [flags] { return Run(*flags); }};
}

}  // namespace offgraph::apps
