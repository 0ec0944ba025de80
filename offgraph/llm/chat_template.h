// ChatTemplate: a model's own Jinja template, which turns a conversation into the text that the model was trained on.
//
// Renders byte for byte what `apply_chat_template(..., tokenize=False)` of Hugging Face transformers does (tested
// against version 5; jinja.h says which part of the language that takes). As there,
//  - keys of a message whose value is null are dropped;
//  - a message's reasoning may come as "reasoning_content", "thinking" or "reasoning", and the template finds it under
//    the first two;
//  - `tools` and `documents` are null where there are none, and special tokens (bos_token, ...) are variables.
//
// The rendered text holds the template's own special tokens as text: encode it without adding any. Whether it begins
// with the beginning-of-sequence token depends on the template; BeginsWithBos() tells, so that a caller who adds the
// token himself does not add a second one.
//
// A template is code from a stranger: it cannot reach files, clock or network, and its steps, memory and recursion are
// bounded (RenderLimits). Immutable; any number of threads may render at once.
#pragma once

#include <cstdint>
#include <ctime>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "offgraph/llm/jinja.h"
#include "offgraph/llm/jinja_value.h"

namespace offgraph::llm {

// One message of a conversation, for callers who do not have it as JSON.
struct ChatMessage {
  std::string role;  // "system", "user", "assistant", "tool"; the template decides which it knows
  std::string content;
  std::string reasoning;  // what an assistant thought before it answered; empty: the message has none
};

struct ChatOptions {
  bool add_generation_prompt = true;  // end with the header that makes the model answer
  jinja::Value tools;                 // null, or a list of JSON schemas
  jinja::Value documents;             // null, or a list of objects
  // Further variables: enable_thinking, date_string, ...; they win over special tokens of the same name.
  std::vector<std::pair<std::string, jinja::Value>> extra;
  std::optional<std::tm> now;  // what strftime_now sees; absent: the local time
  jinja::RenderLimits limits;
};

class ChatTemplate {
 public:
  using SpecialTokens = std::map<std::string, std::string>;  // "bos_token" -> "<s>", ...

  // Throws kBadFile where the template does not parse, kUnsupported where it uses a statement that is not known; both
  // name the line.
  explicit ChatTemplate(std::string_view source, SpecialTokens special_tokens = {});

  // `path`: a model's folder, a .jinja file, or a tokenizer_config.json. In a folder, chat_template.jinja wins over the
  // "chat_template" of tokenizer_config.json, which may be one template or a list of named ones. Special tokens come
  // from tokenizer_config.json (in the same folder), and from special_tokens_map.json what that lacks.
  // Throws kIo where there is no template, naming the places that were searched, and as the constructor does.
  static ChatTemplate Load(const std::filesystem::path& path);
  // As Load, but nothing where a folder holds no template.
  static std::optional<ChatTemplate> Find(const std::filesystem::path& folder);

  // `messages`: a list of objects, as in OpenAI's API (jinja::ParseJson reads them).
  // Of several named templates, "tool_use" serves conversations with tools where it exists, and "default" the others.
  // Throws kInvalidArgument with the template's own words where it refuses the conversation, or where messages are of
  // another form; kUnsupported for a part of the language that is not known, with its line; kOutOfRange past a limit.
  std::string Render(const jinja::Value& messages, const ChatOptions& options = {}) const;
  std::string Render(std::span<const ChatMessage> messages, const ChatOptions& options = {}) const;

  // The text of the template that serves conversations without tools.
  const std::string& source() const;
  const SpecialTokens& special_tokens() const { return special_tokens_; }
  // Empty where the model has none.
  std::string_view bos_token() const;
  // Whether `rendered` begins with the beginning-of-sequence token; false where the model has none.
  bool BeginsWithBos(std::string_view rendered) const;

 private:
  ChatTemplate() = default;
  static std::optional<ChatTemplate> Read(const std::filesystem::path& jinja_file,
                                          const std::filesystem::path& config_file);
  void AddNamed(const std::string& name, std::string_view source);
  void AddEntry(const jinja::Value& entry);  // "chat_template" of a tokenizer_config.json
  const jinja::Template& Choose(bool with_tools) const;

  std::map<std::string, jinja::Template> templates_;  // by name; never empty once made
  SpecialTokens special_tokens_;
};

}  // namespace offgraph::llm
