#include "offgraph/llm/chat_template.h"

#include <array>

#include "offgraph/cache/error.h"
#include "offgraph/llm/model_files.h"

namespace offgraph::llm {
namespace {

namespace fs = std::filesystem;
using jinja::Kind;
using jinja::Value;

constexpr std::string_view kDefaultName = "default";
constexpr std::string_view kToolName = "tool_use";

// Says in which file an error arose.
template <class Work>
auto InFile(const fs::path& path, Work work) {
  try {
    return work();
  } catch (const Error& error) {
    throw Error(error.code(), path.string() + ": " + error.what());
  }
}

Value ReadJson(const fs::path& path) {
  if (!fs::exists(path)) return {};
  const std::string text = ReadSmallFile(path.string());
  return InFile(path, [&] { return jinja::ParseJson(text, jinja::WideIntegers::kRound); });
}

// Adds the entries whose name ends in "_token": a text, or an object with the text in "content".
void AddSpecialTokens(const Value& config, ChatTemplate::SpecialTokens* tokens) {
  if (!config.is(Kind::kDict)) return;
  for (const auto& [name, value] : config.dict().entries) {
    if (!name.text().ends_with("_token")) continue;
    const Value* content = value.is(Kind::kDict) ? value.Find("content") : &value;
    if (content != nullptr && content->is(Kind::kString)) tokens->emplace(name.text(), content->text());
  }
}

// Drops keys with null, and gives reasoning the names that templates look for.
Value NormalizeMessage(const Value& message, size_t index) {
  constexpr std::array kReasoningNames = {"reasoning_content", "thinking", "reasoning"};
  const std::string place = "message " + std::to_string(index);
  if (!message.is(Kind::kDict)) throw Error(ErrorCode::kInvalidArgument, place + " is not an object");
  Value::Entries entries;
  const Value* reasoning = nullptr;
  for (const char* name : kReasoningNames) {
    const Value* value = message.Find(name);
    if (reasoning == nullptr && value != nullptr && !value->is(Kind::kNone)) reasoning = value;
  }
  // In the place that transformers gives them, for templates that print a whole message.
  if (reasoning != nullptr) entries.emplace_back(Value::TrustedString("thinking"), *reasoning);
  for (const auto& entry : message.dict().entries) {
    if (!entry.second.is(Kind::kNone)) entries.push_back(entry);
  }
  if (reasoning != nullptr) entries.emplace_back(Value::TrustedString("reasoning_content"), *reasoning);
  return Value::Map(std::move(entries));
}

Value NormalizeMessages(const Value& messages) {
  if (!messages.is(Kind::kSequence)) throw Error(ErrorCode::kInvalidArgument, "the messages are not a list");
  if (messages.items().empty()) {
    throw Error(ErrorCode::kInvalidArgument, "the conversation is empty; it needs at least one message");
  }
  Value::Items normalized;
  for (size_t i = 0; i < messages.items().size(); ++i) normalized.push_back(NormalizeMessage(messages.items()[i], i));
  return Value::List(std::move(normalized));
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view source, SpecialTokens special_tokens)
    : special_tokens_(std::move(special_tokens)) {
  AddNamed(std::string(kDefaultName), source);
}

void ChatTemplate::AddNamed(const std::string& name, std::string_view source) {
  templates_.insert_or_assign(name, jinja::Template(source));
}

ChatTemplate ChatTemplate::Load(const fs::path& path) {
  if (!fs::exists(path)) throw Error(ErrorCode::kIo, path.string() + ": no such file or folder");
  const fs::path folder = fs::is_directory(path) ? path : path.parent_path();
  std::optional<ChatTemplate> found;
  if (path.extension() == ".jinja") {
    found = Read(path, folder / "tokenizer_config.json");
  } else if (fs::is_directory(path)) {
    found = Find(path);
  } else {
    found = Read({}, path);
  }
  if (!found) {
    throw Error(ErrorCode::kIo, path.string() + ": no chat template: there is neither a chat_template.jinja nor a " +
                                    "\"chat_template\" in tokenizer_config.json");
  }
  return *std::move(found);
}

std::optional<ChatTemplate> ChatTemplate::Find(const fs::path& folder) {
  return Read(folder / "chat_template.jinja", folder / "tokenizer_config.json");
}

std::optional<ChatTemplate> ChatTemplate::Read(const fs::path& jinja_file, const fs::path& config_file) {
  ChatTemplate result;
  const Value config = ReadJson(config_file);
  AddSpecialTokens(config, &result.special_tokens_);
  AddSpecialTokens(ReadJson(config_file.parent_path() / "special_tokens_map.json"), &result.special_tokens_);
  if (!jinja_file.empty() && fs::exists(jinja_file)) {
    const std::string source = ReadSmallFile(jinja_file.string());
    InFile(jinja_file, [&] { result.AddNamed(std::string(kDefaultName), source); });
    return result;
  }
  const Value* entry = config.Find("chat_template");
  if (entry == nullptr || entry->is(Kind::kNone)) return std::nullopt;
  InFile(config_file, [&] { result.AddEntry(*entry); });
  return result;
}

void ChatTemplate::AddEntry(const Value& entry) {
  if (entry.is(Kind::kString)) {
    AddNamed(std::string(kDefaultName), entry.text());
    return;
  }
  if (entry.is(Kind::kSequence)) {
    for (const Value& named : entry.items()) {
      const Value *name = named.Find("name"), *source = named.Find("template");
      const bool valid = name != nullptr && name->is(Kind::kString) && source != nullptr && source->is(Kind::kString);
      if (!valid) throw Error(ErrorCode::kBadFile, "\"chat_template\": an entry lacks a \"name\" or a \"template\"");
      AddNamed(name->text(), source->text());
    }
  }
  if (templates_.empty())
    throw Error(ErrorCode::kBadFile, "\"chat_template\" is neither a text nor a list of named ones");
}

const jinja::Template& ChatTemplate::Choose(bool with_tools) const {
  if (with_tools) {
    if (const auto found = templates_.find(std::string(kToolName)); found != templates_.end()) return found->second;
  }
  if (const auto found = templates_.find(std::string(kDefaultName)); found != templates_.end()) return found->second;
  std::string names;
  for (const auto& [name, unused] : templates_) names += (names.empty() ? "" : ", ") + name;
  throw Error(ErrorCode::kUnsupported, "the model has several chat templates and none is called \"default\": " + names);
}

std::string ChatTemplate::Render(const Value& messages, const ChatOptions& options) const {
  std::vector<std::pair<std::string, Value>> variables;
  for (const auto& [name, token] : special_tokens_) variables.emplace_back(name, Value::String(token));
  variables.insert(variables.end(), options.extra.begin(), options.extra.end());
  variables.emplace_back("messages", NormalizeMessages(messages));
  variables.emplace_back("tools", options.tools);
  variables.emplace_back("documents", options.documents);
  variables.emplace_back("add_generation_prompt", Value::Bool(options.add_generation_prompt));
  return Choose(!options.tools.is(Kind::kNone)).Render(variables, {options.limits, options.now});
}

std::string ChatTemplate::Render(std::span<const ChatMessage> messages, const ChatOptions& options) const {
  Value::Items items;
  for (const ChatMessage& message : messages) {
    std::vector<std::pair<std::string, Value>> entries = {{"role", Value::String(message.role)},
                                                          {"content", Value::String(message.content)}};
    if (!message.reasoning.empty()) entries.emplace_back("reasoning_content", Value::String(message.reasoning));
    items.push_back(Value::Map(std::move(entries)));
  }
  return Render(Value::List(std::move(items)), options);
}

const std::string& ChatTemplate::source() const { return Choose(false).source(); }

std::string_view ChatTemplate::bos_token() const {
  const auto found = special_tokens_.find("bos_token");
  return found == special_tokens_.end() ? std::string_view() : std::string_view(found->second);
}

bool ChatTemplate::BeginsWithBos(std::string_view rendered) const {
  return !bos_token().empty() && rendered.starts_with(bos_token());
}

}  // namespace offgraph::llm
