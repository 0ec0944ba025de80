// offgraph chat: a conversation through the model's own template. On a terminal with line editing and history; where
// the input is no terminal, each line is one turn.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "offgraph/apps/commands.h"
#include "offgraph/apps/console.h"
#include "offgraph/apps/line_reader.h"
#include "offgraph/apps/options.h"
#include "offgraph/cache/error.h"

namespace offgraph::apps {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  offgraph chat smollm2\n"
    "  offgraph chat smollm2 --system \"Answer in one sentence.\" --temp 0\n"
    "  echo \"What is the capital of France?\" | offgraph chat smollm2\n"
    "Within a conversation, /help lists the commands.";

struct ChatFlags {
  ModelFlags model;
  llm::CacheOptions cache;
  GenerateFlags generate;
  std::string system;
  bool stats = false;
};

class Conversation {
 public:
  explicit Conversation(const ChatFlags& flags)
      : options_(Resolve(flags.generate)),
        session_(OpenModel(flags.model), flags.cache),
        system_(flags.system),
        stats_(flags.stats) {
    session_.model().chat_template();  // a model without one is told of before the first question
    Reset();
  }

  void Reset() {
    session_.Reset();
    messages_.clear();
    turns_.clear();
    if (!system_.empty()) messages_.push_back({"system", system_, ""});
  }

  // Takes the last question and its answer back. False where there is none.
  bool Undo() {
    if (turns_.empty()) return false;
    messages_.resize(turns_.back().messages);
    // A later question may have kept less of the session than this one did.
    session_.Truncate(std::min(turns_.back().tokens, static_cast<int64_t>(session_.tokens().size())));
    turns_.pop_back();
    return true;
  }

  // Asks, and prints the answer as it comes. A question that could not be answered is not part of the conversation.
  void Ask(const std::string& question) {
    const size_t before = messages_.size();
    const int64_t computed = session_.stats().computed;
    messages_.push_back({"user", question, ""});
    try {
      const int64_t kept = Prefill();
      const llm::Reply reply = Answer();
      messages_.push_back({"assistant", reply.text, ""});
      turns_.push_back({before, kept});
      PrintNotes(reply, session_.stats().computed - computed);
    } catch (...) {
      messages_.resize(before);
      throw;
    }
  }

  void PrintCache() const {
    const program::CacheMemory memory = session_.memory();
    std::cout << FormatCount(session_.cached()) << " of " << FormatCount(session_.capacity()) << " tokens; "
              << FormatBytes(static_cast<double>(memory.in_use)) << " in use, "
              << FormatBytes(static_cast<double>(memory.reserved)) << " taken, "
              << FormatBytes(static_cast<double>(memory.peak)) << " at most" << std::endl;
  }

 private:
  // Where the conversation stood before a question.
  struct Turn {
    size_t messages = 0;
    int64_t tokens = 0;  // of the session that the question left as they were
  };

  int64_t Prefill() {
    Progress progress("prompt");
    return session_.SetTokens(
        session_.model().EncodeChat(messages_),
        {.stop = Interrupted, .progress = [&](int64_t done, int64_t total) { progress.Update(done, total); }});
  }

  llm::Reply Answer() {
    const llm::TextSink print = [](std::string_view text) { std::cout << text << std::flush; };
    llm::Reply reply = llm::Generate(session_, options_, print, {.stop = Interrupted});
    ++options_.seed;  // the same question asked twice may be answered in two ways
    std::cout << std::endl;
    return reply;
  }

  void PrintNotes(const llm::Reply& reply, int64_t computed) const {
    if (reply.reason == llm::StopReason::kCacheFull) {
      std::cerr << "(the cache is full: " << session_.capacity()
                << " tokens; /undo or /reset make room, --capacity gives more)" << std::endl;
    } else if (reply.reason == llm::StopReason::kTokenLimit) {
      std::cerr << "(cut after " << reply.tokens.size() << " tokens; -n allows more)" << std::endl;
    }
    if (stats_) {
      std::cerr << "(" << computed << " tokens computed, "
                << FormatFixed(static_cast<double>(reply.tokens.size()) / std::max(reply.seconds, 1e-9), 1)
                << " tokens per second)" << std::endl;
    }
  }

  llm::GenerateOptions options_;
  llm::Session session_;
  std::string system_;
  bool stats_;
  std::vector<llm::ChatMessage> messages_;
  std::vector<Turn> turns_;
};

struct ChatCommand {
  const char* name;
  const char* help;
  void (*run)(Conversation& conversation);
};

void PrintHelp(Conversation& conversation);

constexpr std::array<ChatCommand, 4> kCommands = {
    {{"/undo", "take the last question and its answer back",
      [](Conversation& conversation) {
        std::cout << (conversation.Undo() ? "(taken back)" : "(there is nothing to take back)") << std::endl;
      }},
     {"/reset", "start over",
      [](Conversation& conversation) {
        conversation.Reset();
        std::cout << "(started over)" << std::endl;
      }},
     {"/cache", "how full the cache is, and its memory", [](Conversation& conversation) { conversation.PrintCache(); }},
     {"/help", "this list", PrintHelp}}};

void PrintHelp(Conversation&) {
  for (const ChatCommand& command : kCommands) std::cout << command.name << "\t" << command.help << "\n";
  std::cout << "/exit\tleave (Ctrl-D does, too)\nCtrl-C ends an answer; whatever does not begin with / is a question."
            << std::endl;
}

// Runs a line that begins with a slash. False where it asks to leave.
bool RunSlash(const std::string& line, Conversation& conversation) {
  const std::string name = line.substr(0, line.find_last_not_of(" \t") + 1);
  if (name == "/exit" || name == "/quit") return false;
  for (const ChatCommand& command : kCommands) {
    if (name == command.name) {
      command.run(conversation);
      return true;
    }
  }
  std::cerr << "(" << Printable(name) << " is no command; /help lists them)" << std::endl;
  return true;
}

int Chat(const ChatFlags& flags) {
  Conversation conversation(flags);
  LineReader reader("> ");
  if (reader.interactive()) std::cout << "/help lists the commands, Ctrl-D leaves." << std::endl;
  while (const std::optional<std::string> line = reader.Read()) {
    if (line->find_first_not_of(" \t") == std::string::npos) continue;
    if (line->front() == '/') {
      if (!RunSlash(*line, conversation)) break;
      continue;
    }
    try {
      conversation.Ask(*line);
    } catch (const Error& error) {
      // A person sees why and goes on; a script must not take a missing answer for one.
      if (!reader.interactive()) throw;
      std::cerr << "(" << error.what() << ")" << std::endl;
    }
    if (Interrupted() && !reader.interactive()) return kExitInterrupted;
    ClearInterrupt();
  }
  if (reader.interactive()) std::cout << std::endl;
  return 0;
}

}  // namespace

Command AddChat(CLI::App& parent) {
  auto flags = std::make_shared<ChatFlags>();
  CLI::App* command = parent.add_subcommand("chat", "Talk with a model, turn by turn");
  command->footer(kExamples);
  AddModelFlags(*command, flags->model, true);
  command->add_option("--system", flags->system, "The system message (default: the template's own)")->type_name("TEXT");
  command->add_flag("--stats", flags->stats, "After each answer, tokens computed and speed on standard error");
  flags->generate.options.max_tokens = 1024;
  AddGenerateFlags(*command, flags->generate);
  AddCacheFlags(*command, flags->cache);
  return {command, [flags] { return Chat(*flags); }};
}

}  // namespace offgraph::apps
