// tokenizer.json: any bytes are read, or refused with an Error; a tokenizer that was read encodes and decodes any text.
//
// The input is a tokenizer.json, optionally followed by a zero byte and a text.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "offgraph/cache/error.h"
#include "offgraph/llm/token_stream.h"
#include "offgraph/llm/tokenizer.h"
#include "offgraph/llm/unicode.h"

namespace {

constexpr std::string_view kText =
    "Hello  wörld, e\xCC\x81 12345\n\t<s> don't <|end|> \xF0\x9F\x98\x80\xFF\xE2\x96\x81 _x_";
constexpr size_t kLongestText = 2000;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace offgraph::llm;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = input.find('\0');
  const std::string_view text = end == std::string_view::npos ? kText : input.substr(end + 1).substr(0, kLongestText);
  try {
    const auto tokenizer = Tokenizer::Parse(input.substr(0, end), "input");
    for (const bool special : {false, true}) {
      const auto ids = tokenizer->Encode(text, {.add_special_tokens = special, .special_tokens_as_text = special});
      const std::string decoded = tokenizer->Decode(ids, special);
      TokenStream stream(tokenizer, special);
      std::string streamed;
      for (const int32_t id : ids) {
        if (!tokenizer->IdToToken(id)) std::abort();
        streamed += stream.Push(id);
        if (!IsValidUtf8(streamed)) std::abort();
      }
      streamed += stream.Finish();
      if (streamed != decoded) std::abort();
    }
  } catch (const offgraph::Error& error) {
    if (error.code() == offgraph::ErrorCode::kInternal) std::abort();
  }
  return 0;
}
