// Any text as a chat template, rendered for a conversation with tools. It may fail with an offgraph::Error and with
// nothing else, within its limits.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "offgraph/cache/error.h"
#include "offgraph/llm/chat_template.h"

namespace {

constexpr std::string_view kConversation = R"([
  {"role": "system", "content": "Be brief."},
  {"role": "user", "content": "What is the weather in Z\u00fcrich? \ud83d\ude00"},
  {"role": "assistant", "content": null, "reasoning": "a tool knows",
   "tool_calls": [{"id": "call12345", "type": "function",
                   "function": {"name": "weather", "arguments": {"city": "Z\u00fcrich", "days": 3, "x": [1.5, null]}}}]},
  {"role": "tool", "tool_call_id": "call12345", "content": "{\"temp\": 21}"},
  {"role": "user", "content": [{"type": "text", "text": "Thanks"}]}])";

constexpr std::string_view kTools = R"([{"type": "function", "function": {"name": "weather", "description": "d",
  "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}])";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const offgraph::llm::jinja::Value kMessages = offgraph::llm::jinja::ParseJson(kConversation);
  static const offgraph::llm::jinja::Value kToolList = offgraph::llm::jinja::ParseJson(kTools);
  offgraph::llm::ChatOptions options;
  options.tools = kToolList;
  options.now = std::tm{};
  options.limits = {.steps = 20'000, .bytes = 4 << 20};
  try {
    const offgraph::llm::ChatTemplate chat(std::string_view(reinterpret_cast<const char*>(data), size),
                                           {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
    (void)chat.Render(kMessages, options);
  } catch (const offgraph::Error&) {
    // What the template did wrong is said in it.
  }
  return 0;
}
