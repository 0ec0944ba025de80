// offgraph tokenize: text to token ids, and back.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "offgraph/apps/commands.h"
#include "offgraph/apps/console.h"
#include "offgraph/apps/json.h"
#include "offgraph/apps/options.h"
#include "offgraph/cache/error.h"
#include "offgraph/llm/tokenizer.h"

namespace offgraph::apps {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  printf 'Once upon a time' | offgraph tokenize --tokenizer models/stories260K/tokenizer.json\n"
    "  offgraph tokenize --tokenizer smollm2 --json < text.txt\n"
    "  echo '[403, 407, 261, 378]' | offgraph tokenize --tokenizer models/stories260K --decode";

struct TokenizeFlags {
  std::string tokenizer;
  bool decode = false;
  bool add_special = false;
  bool skip_special = false;
  bool json = false;
};

[[noreturn]] void NotAnId(std::string_view word) {
  throw Error(ErrorCode::kInvalidArgument,
              "standard input: \"" + Printable(std::string(word.substr(0, 40))) + "\" is not a token id");
}

// Ids as words, or as a JSON array.
std::vector<int32_t> ParseIds(const std::string& text) {
  std::string list = text;
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && text[first] == '[') {
    const Json array = Json::parse(text, nullptr, false);
    if (!array.is_array()) throw Error(ErrorCode::kInvalidArgument, "standard input: not a JSON array of token ids");
    list.clear();
    for (const Json& id : array) {
      if (id.is_structured()) NotAnId(id.type_name());
      list += id.dump(-1, ' ', false, Json::error_handler_t::replace) + " ";
    }
  }
  std::vector<int32_t> ids;
  const char* const end = list.data() + list.size();
  for (const char* at = list.data(); at < end;) {
    if (std::string_view(" \t\r\n").find(*at) != std::string_view::npos) {
      ++at;
      continue;
    }
    const char* const word_end = std::find_if(at, end, [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); });
    int32_t id = 0;
    const auto [parsed_to, error] = std::from_chars(at, word_end, id);
    if (error != std::errc() || parsed_to != word_end) {
      NotAnId({at, static_cast<size_t>(word_end - at)});
    }
    ids.push_back(id);
    at = word_end;
  }
  return ids;
}

int Decode(const llm::Tokenizer& tokenizer, const TokenizeFlags& flags) {
  const std::vector<int32_t> ids = ParseIds(ReadStdin());
  for (const int32_t id : ids) {
    if (!tokenizer.IdToToken(id)) {
      throw Error(ErrorCode::kInvalidArgument, "standard input: no token has the id " + std::to_string(id) +
                                                   "; they go up to " + std::to_string(tokenizer.vocab_size() - 1));
    }
  }
  const std::string text = tokenizer.Decode(ids, flags.skip_special);
  if (flags.json) {
    PrintJson(text, -1);
  } else {
    std::cout << text << "\n";
  }
  return 0;
}

int Encode(const llm::Tokenizer& tokenizer, const TokenizeFlags& flags) {
  const std::vector<int32_t> ids = tokenizer.Encode(ReadStdin(), {.add_special_tokens = flags.add_special});
  if (flags.json) {
    PrintJson(ids, -1);
    return 0;
  }
  for (size_t i = 0; i < ids.size(); ++i) std::cout << (i > 0 ? " " : "") << ids[i];
  std::cout << "\n";
  return 0;
}

int Tokenize(const TokenizeFlags& flags) {
  std::filesystem::path file = flags.tokenizer;
  if (std::filesystem::is_directory(file)) file /= "tokenizer.json";
  const std::shared_ptr<const llm::Tokenizer> tokenizer = llm::Tokenizer::Load(file);
  return flags.decode ? Decode(*tokenizer, flags) : Encode(*tokenizer, flags);
}

}  // namespace

Command AddTokenize(CLI::App& parent) {
  auto flags = std::make_shared<TokenizeFlags>();
  CLI::App* command = parent.add_subcommand("tokenize", "Text on standard input to token ids, and back");
  command->footer(kExamples);
  command->add_option("--tokenizer", flags->tokenizer, "tokenizer.json, or the folder that holds it")
      ->type_name("FILE")
      ->required();
  auto* decode = command->add_flag("--decode", flags->decode, "Ids, as words or as a JSON array, to text");
  command->add_flag("--add-special", flags->add_special, "Add the special tokens that begin or end a text")
      ->excludes(decode);
  command->add_flag("--skip-special", flags->skip_special, "With --decode: leave special tokens out")->needs(decode);
  AddJsonFlag(*command, flags->json);
  return {command, [flags] { return Tokenize(*flags); }};
}

}  // namespace offgraph::apps
