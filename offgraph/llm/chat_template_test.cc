// The templates of real models against Hugging Face transformers (tests/data/templates/make_expected.py).
#include "offgraph/llm/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <iomanip>
#include <sstream>

#include "offgraph/cache/error.h"

namespace offgraph::llm {
namespace {

namespace fs = std::filesystem;
using jinja::Kind;
using jinja::Value;
using ::testing::HasSubstr;

const fs::path kTemplates = OFFGRAPH_TEST_DATA "/templates";

std::string ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The conversation's arguments of apply_chat_template.
ChatOptions OptionsOf(const Value& conversation) {
  ChatOptions options;
  options.now = std::tm{};
  std::istringstream("2026-07-04 15:09:26") >> std::get_time(&*options.now, "%Y-%m-%d %H:%M:%S");
  for (const auto& [name, value] : conversation.dict().entries) {
    if (name.text() == "messages") continue;
    if (name.text() == "add_generation_prompt") {
      options.add_generation_prompt = value.as_bool();
    } else if (name.text() == "tools") {
      options.tools = value;
    } else {
      options.extra.emplace_back(name.text(), value);
    }
  }
  return options;
}

TEST(ChatTemplate, RendersTheTemplatesOfRealModelsAsTransformersDoes) {
  const Value expected = jinja::ParseJson(ReadFile(kTemplates / "expected.json"));
  size_t rendered = 0, refused = 0;
  for (const auto& [name, results] : expected.Find("templates")->dict().entries) {
    const ChatTemplate chat(ReadFile(kTemplates / (name.text() + ".jinja")),
                            {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
    for (const auto& [conversation, result] : results.dict().entries) {
      SCOPED_TRACE(name.text() + ": " + conversation.text());
      const Value& input = *expected.Find("conversations")->Find(conversation.text());
      try {
        const std::string text = chat.Render(*input.Find("messages"), OptionsOf(input));
        ASSERT_NE(result.Find("ok"), nullptr) << "transformers fails, this renders: " << text;
        EXPECT_EQ(text, result.Find("ok")->text());
        ++rendered;
      } catch (const Error& error) {
        EXPECT_EQ(result.Find("ok"), nullptr) << error.what();
        EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
        if (const Value* raised = result.Find("raised")) {
          EXPECT_THAT(error.what(), HasSubstr(raised->text()));
        }
        ++refused;
      }
    }
  }
  EXPECT_GT(rendered, 300u);
  EXPECT_GT(refused, 50u);
}

TEST(ChatTemplate, MessagesMayComeAsStructs) {
  const ChatTemplate chat(
      "{% for m in messages %}[{{ m.role }}|{{ m.content }}|{{ m.reasoning_content }}|{{ m.thinking }}]{% endfor %}"
      "{{ add_generation_prompt }}{{ tools }}{{ documents }}{{ bos_token }}{{ extra }}",
      {{"bos_token", "<s>"}});
  ChatOptions options;
  options.add_generation_prompt = false;
  options.extra.emplace_back("extra", Value::Bool(true));
  const std::vector<ChatMessage> messages = {{"user", "hi", ""}, {"assistant", "yes", "hm"}};
  EXPECT_EQ(chat.Render(messages, options), "[user|hi||][assistant|yes|hm|hm]FalseNoneNone<s>True");
}

TEST(ChatTemplate, RefusesWhatIsNoConversation) {
  const ChatTemplate chat("x");
  EXPECT_THROW(chat.Render(Value()), Error);
  EXPECT_THROW(chat.Render(Value::List({})), Error);
  EXPECT_THROW(chat.Render(Value::List({Value::Int(1)})), Error);
  EXPECT_THROW(chat.Render(std::vector<ChatMessage>{{"user", "\xff", ""}}), Error);
}

TEST(ChatTemplate, TellsWhetherTheTextBeginsWithBos) {
  const ChatTemplate with("{{ bos_token }}{{ messages[0].content }}", {{"bos_token", "<s>"}});
  const ChatTemplate without("{{ messages[0].content }}", {{"bos_token", "<s>"}});
  const ChatTemplate unknown("{{ bos_token }}{{ messages[0].content }}");
  const std::vector<ChatMessage> messages = {{"user", "hi", ""}};
  EXPECT_TRUE(with.BeginsWithBos(with.Render(messages)));
  EXPECT_FALSE(without.BeginsWithBos(without.Render(messages)));
  EXPECT_EQ(unknown.Render(messages), "hi");
  EXPECT_FALSE(unknown.BeginsWithBos(unknown.Render(messages)));
}

class ChatTemplateFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) / ("offgraph_chat_template_" + std::to_string(getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  void Write(const std::string& name, const std::string& text) { std::ofstream(folder_ / name) << text; }
  static std::string Show(const ChatTemplate& chat, bool tools = false) {
    ChatOptions options;
    if (tools) options.tools = Value::List({Value::Map(Value::Entries{})});
    return chat.Render(std::vector<ChatMessage>{{"user", "hi", ""}}, options);
  }

  fs::path folder_;
};

TEST_F(ChatTemplateFiles, ReadsTokenizerConfig) {
  Write("tokenizer_config.json",
        R"({"chat_template": "{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}{{ add_bos_token is defined }}",
            "bos_token": {"content": "<b>", "lstrip": false}, "eos_token": "<e>", "pad_token": null,
            "add_bos_token": true, "model_max_length": 1000000000000000019884624838656})");
  EXPECT_EQ(Show(ChatTemplate::Load(folder_)), "<b><e>FalseFalse");
  EXPECT_EQ(Show(ChatTemplate::Load(folder_ / "tokenizer_config.json")), "<b><e>FalseFalse");
}

TEST_F(ChatTemplateFiles, TakesMissingTokensFromTheSpecialTokensMap) {
  Write("tokenizer_config.json", R"({"chat_template": "{{ bos_token }}{{ eos_token }}", "eos_token": "<e>"})");
  Write("special_tokens_map.json", R"({"bos_token": "<b>", "eos_token": "<other>"})");
  EXPECT_EQ(Show(ChatTemplate::Load(folder_)), "<b><e>");
}

TEST_F(ChatTemplateFiles, AJinjaFileWins) {
  Write("tokenizer_config.json", R"({"chat_template": "config", "bos_token": "<b>"})");
  Write("chat_template.jinja", "file {{ bos_token }}\n");
  EXPECT_EQ(Show(ChatTemplate::Load(folder_)), "file <b>");
  EXPECT_EQ(Show(ChatTemplate::Load(folder_ / "chat_template.jinja")), "file <b>");
  EXPECT_EQ(ChatTemplate::Load(folder_).source(), "file {{ bos_token }}\n");
}

TEST_F(ChatTemplateFiles, ChoosesAmongNamedTemplates) {
  Write("tokenizer_config.json", R"({"chat_template": [{"name": "default", "template": "plain"},
                                                       {"name": "tool_use", "template": "tools"}]})");
  const ChatTemplate chat = ChatTemplate::Load(folder_);
  EXPECT_EQ(Show(chat), "plain");
  EXPECT_EQ(Show(chat, true), "tools");
  Write("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "r"}]})");
  EXPECT_THROW(Show(ChatTemplate::Load(folder_)), Error);
}

TEST_F(ChatTemplateFiles, SaysWhatIsMissingOrWrong) {
  const auto message = [](const fs::path& path) {
    try {
      ChatTemplate::Load(path);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(message(folder_ / "nowhere"), HasSubstr("no such file"));
  EXPECT_THAT(message(folder_), HasSubstr("chat_template.jinja"));
  EXPECT_FALSE(ChatTemplate::Find(folder_).has_value());
  Write("tokenizer_config.json", "{");
  EXPECT_THAT(message(folder_), HasSubstr("tokenizer_config.json: not JSON"));
  Write("tokenizer_config.json", R"({"chat_template": 3})");
  EXPECT_THAT(message(folder_), HasSubstr("\"chat_template\""));
  Write("tokenizer_config.json", R"({"chat_template": [{"name": "default"}]})");
  EXPECT_THAT(message(folder_), HasSubstr("lacks"));
  Write("chat_template.jinja", "{% if %}");
  Write("tokenizer_config.json", "{}");
  EXPECT_THAT(message(folder_), HasSubstr("chat_template.jinja: chat template, line 1"));
}

}  // namespace
}  // namespace offgraph::llm
