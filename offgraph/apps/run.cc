// offgraph run: a prompt in, the model's text out.
#include <CLI/CLI.hpp>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "offgraph/apps/commands.h"
#include "offgraph/apps/console.h"
#include "offgraph/apps/json.h"
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
    "  offgraph run model.pte --tokenizer checkpoint/ -f prompt.txt --kv-dtype fp16 --json";

struct RunFlags {
  ModelFlags model;
  llm::CacheOptions cache;
  GenerateFlags generate;
  std::string prompt;
  std::string prompt_file;
  std::string system;
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

int Run(const RunFlags& flags) {
  const llm::GenerateOptions options = Resolve(flags.generate);
  const std::string prompt = Prompt(flags);
  const std::shared_ptr<const llm::Model> model = OpenModel(flags.model);
  const std::vector<llm::TokenId> tokens = PromptTokens(*model, flags, prompt);
  llm::Session session(model, flags.cache);

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
  command->add_flag("--echo", flags->echo, "Print the prompt in front of the text");
  command->add_flag("-q,--quiet", flags->quiet, "No statistics on standard error");
  AddJsonFlag(*command, flags->json);
  flags->generate.options.max_tokens = 255;  // 256 with the token that an empty prompt starts from
  AddGenerateFlags(*command, flags->generate);
  AddCacheFlags(*command, flags->cache);
  return {command, [flags] { return Run(*flags); }};
}

}  // namespace offgraph::apps
