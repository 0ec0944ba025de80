#include "offgraph/llm/token_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "offgraph/llm/unicode.h"

namespace offgraph::llm {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;

// A tokenizer whose tokens are exactly `tokens`, with `decoder`.
std::shared_ptr<const Tokenizer> WithDecoder(const json& decoder, const std::vector<std::string>& tokens) {
  json vocab = json::object();
  for (size_t i = 0; i < tokens.size(); ++i) vocab[tokens[i]] = i;
  const json file = {{"version", "1.0"},
                     {"decoder", decoder},
                     {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array()}}}};
  return Tokenizer::Parse(file.dump(), "t.json");
}

json Sequence(const json& decoders) { return {{"type", "Sequence"}, {"decoders", decoders}}; }
json Replace(const std::string& from, const std::string& to) {
  return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
}
json Strip(int start, int stop) { return {{"type", "Strip"}, {"content", " "}, {"start", start}, {"stop", stop}}; }
const json kByteLevel = {
    {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
const json kFuse = {{"type", "Fuse"}};
const json kByteFallback = {{"type", "ByteFallback"}};

// The text of each push, and last that of Finish.
std::vector<std::string> Steps(const std::shared_ptr<const Tokenizer>& tokenizer, const std::vector<int32_t>& ids) {
  TokenStream stream(tokenizer);
  std::vector<std::string> steps;
  for (const int32_t id : ids) steps.push_back(stream.Push(id));
  steps.push_back(stream.Finish());
  return steps;
}

std::string ByteToken(unsigned char byte) {
  std::string token;
  AppendUtf8(ByteToCharacter(byte), &token);
  return token;
}

TEST(TokenStream, ACharacterComesWhenItIsWhole) {
  const auto tokenizer =
      WithDecoder(kByteLevel, {ByteToken(0xF0), ByteToken(0x9F), ByteToken(0x98), ByteToken(0x80), "x"});
  EXPECT_THAT(Steps(tokenizer, {4, 0, 1, 2, 3, 4}), ElementsAre("x", "", "", "", "\U0001F600", "x", ""));
  EXPECT_THAT(Steps(tokenizer, {0, 1, 4}), ElementsAre("", "", "\uFFFDx", ""));
  EXPECT_THAT(Steps(tokenizer, {0, 1, 0}), ElementsAre("", "", "\uFFFD", "\uFFFD"));
  EXPECT_THAT(Steps(tokenizer, {}), ElementsAre(""));
}

// A combining mark is text of its own: its base has been sent and is not sent again.
TEST(TokenStream, CombiningMarksComeAlone) {
  const auto tokenizer = WithDecoder(kFuse, {"e", "\u0301", "x", "\U0001F3F3", "\uFE0F", "\u200D", "\U0001F308"});
  EXPECT_THAT(Steps(tokenizer, {0, 1, 2}), ElementsAre("e", "\u0301", "x", ""));
  EXPECT_THAT(Steps(tokenizer, {3, 4, 5, 6}), ElementsAre("\U0001F3F3", "\uFE0F", "\u200D", "\U0001F308", ""));
}

TEST(TokenStream, ByteTokensComeWhenTheirRunHasEnded) {
  const auto tokenizer = WithDecoder(Sequence({Replace("_", " "), kByteFallback, kFuse, Strip(1, 0)}),
                                     {"_a", "<0xC3>", "<0xA9>", "<0x0A>"});
  EXPECT_THAT(Steps(tokenizer, {0, 1, 2, 0}), ElementsAre("a", "", "", "é a", ""));
  EXPECT_THAT(Steps(tokenizer, {0, 3, 0}), ElementsAre("a", "", "\n a", ""));
  EXPECT_THAT(Steps(tokenizer, {1, 3, 0}), ElementsAre("", "", "\uFFFD\uFFFD a", ""));
  EXPECT_THAT(Steps(tokenizer, {0, 1, 2}), ElementsAre("a", "", "", "é"));
}

TEST(TokenStream, WhatMayBeStrippedWaits) {
  const auto tokenizer = WithDecoder(Sequence({kFuse, Strip(2, 2)}), {" ", "a", "  b  "});
  EXPECT_THAT(Steps(tokenizer, {0, 0, 0, 1, 0, 0, 0}), ElementsAre("", "", "", " a", "", "", " ", ""));
  EXPECT_THAT(Steps(tokenizer, {2, 1}), ElementsAre("b", "  a", ""));
}

TEST(TokenStream, WhatMayBeReplacedWaits) {
  const auto tokenizer = WithDecoder(Sequence({kFuse, Replace("abab", "!")}), {"a", "b", "x"});
  EXPECT_THAT(Steps(tokenizer, {0, 1, 0, 1, 0, 2}), ElementsAre("", "", "", "!", "", "ax", ""));
  EXPECT_THAT(Steps(tokenizer, {0, 1, 0, 0, 1, 0, 1}), ElementsAre("", "", "", "aba", "", "", "!", ""));
  EXPECT_THAT(Steps(tokenizer, {0, 1, 0}), ElementsAre("", "", "", "aba"));
}

TEST(TokenStream, AfterFinishANewTextBegins) {
  const auto tokenizer = WithDecoder(Sequence({kFuse, Strip(1, 0)}), {" a"});
  TokenStream stream(tokenizer);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(stream.Push(0), "a");
    EXPECT_EQ(stream.Push(0), " a");
    EXPECT_EQ(stream.Finish(), "");
  }
}

TEST(TokenStream, SkipsSpecialTokensOnRequest) {
  const auto tokenizer = Tokenizer::Load(std::filesystem::path(OFFGRAPH_TEST_DATA) / "tokenizer/qwen2.json");
  const std::vector<int32_t> ids = tokenizer->Encode("<|im_start|>a<|im_end|>");
  TokenStream all(tokenizer);
  TokenStream plain(tokenizer, /*skip_special=*/true);
  std::string all_text;
  std::string plain_text;
  for (const int32_t id : ids) {
    all_text += all.Push(id);
    plain_text += plain.Push(id);
  }
  EXPECT_EQ(all_text + all.Finish(), "<|im_start|>a<|im_end|>");
  EXPECT_EQ(plain_text + plain.Finish(), "a");
}

// Random ids through every decoder: each push is valid UTF-8, and all together are what Decode gives.
TEST(TokenStream, EqualsDecodeOnRandomIds) {
  std::vector<std::string> tokens = {" ",     "  ",  "_", "_a", "ab", "b",      "__",
                                     "a</w>", "##a", ".", " .", "é",  "\u0301", "\U0001F600"};
  for (const unsigned char byte : {0xC3, 0xA9, 0xF0, 0x9F, 0x98, 0x80, 0x0A, 0xFF}) {
    tokens.push_back(ByteToken(byte));
    tokens.push_back((byte == 0x0A
                          ? "<0x0A>"
                          : std::string("<0x") + "0123456789ABCDEF"[byte / 16] + "0123456789ABCDEF"[byte % 16] + ">"));
  }
  const json metaspace = {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "always"}, {"split", true}};
  const json regex = {{"type", "Replace"}, {"pattern", {{"Regex", "a+|_$"}}}, {"content", "<>"}};
  const json decoders[] = {
      kByteLevel,
      metaspace,
      regex,
      Sequence({kFuse, regex}),
      {{"type", "BPEDecoder"}, {"suffix", "</w>"}},
      {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}},
      Sequence({Replace("_", " "), kByteFallback, kFuse, Strip(1, 0)}),
      Sequence({kByteFallback, kFuse, Replace("ab", "b a"), Replace("  ", " "), Strip(2, 3)}),
      Sequence({kByteLevel, Replace("a_", "")}),
      Sequence({kFuse, kByteFallback, kByteLevel}),
      Sequence(json::array()),
      nullptr,
  };
  std::mt19937 random(9);
  for (const json& decoder : decoders) {
    SCOPED_TRACE(decoder.dump());
    const auto tokenizer = WithDecoder(decoder, tokens);
    for (int round = 0; round < 500; ++round) {
      std::vector<int32_t> ids(random() % 12);
      for (int32_t& id : ids) id = static_cast<int32_t>(random() % (tokens.size() + 1));
      std::string all;
      for (const std::string& step : Steps(tokenizer, ids)) {
        ASSERT_TRUE(IsValidUtf8(step));
        all += step;
      }
      ASSERT_EQ(all, tokenizer->Decode(ids)) << json(ids).dump();
    }
  }
}

}  // namespace
}  // namespace offgraph::llm
