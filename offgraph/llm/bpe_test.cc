#include "offgraph/llm/bpe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "offgraph/cache/error.h"
#include "offgraph/llm/flat_map.h"
#include "offgraph/llm/vocabulary.h"

namespace offgraph::llm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::shared_ptr<const Vocabulary> Tokens(const std::vector<std::string>& tokens) {
  auto vocabulary = std::make_shared<Vocabulary>();
  for (size_t i = 0; i < tokens.size(); ++i) vocabulary->Add(tokens[i], static_cast<int32_t>(i));
  vocabulary->Finish("test");
  return vocabulary;
}

template <typename Change>
BpeOptions Options(Change change) {
  BpeOptions options;
  change(&options);
  return options;
}

std::vector<int32_t> Encode(const Bpe& bpe, std::string_view word) {
  BpeEncoder encoder(bpe, word.size());
  std::vector<int32_t> ids;
  encoder.Encode(word, &ids);
  return ids;
}

TEST(Vocabulary, FindsBothWays) {
  Vocabulary vocabulary;
  for (int32_t i = 0; i < 5000; ++i)
    vocabulary.Add(std::string("t").append(std::to_string(i)), (i * 7) % 5000 + (i % 2) * 10'000);
  vocabulary.Finish("test");
  EXPECT_EQ(vocabulary.size(), 5000u);
  for (int32_t i = 0; i < 5000; ++i) {
    const std::string token = std::string("t").append(std::to_string(i));
    const std::optional<int32_t> id = vocabulary.Find(token);
    ASSERT_TRUE(id);
    ASSERT_EQ(*id, (i * 7) % 5000 + (i % 2) * 10'000);
    ASSERT_EQ(vocabulary.Token(*id), token);
  }
  EXPECT_FALSE(vocabulary.Find("t5000"));
  EXPECT_FALSE(vocabulary.Token(-1));
  EXPECT_FALSE(vocabulary.Token(7));
  EXPECT_FALSE(vocabulary.Token(1 << 30));
}

TEST(Vocabulary, TheLastIdOfATokenCounts) {
  Vocabulary vocabulary;
  vocabulary.Add("a", 5);
  vocabulary.Add("a", 2);
  vocabulary.Finish("test");
  EXPECT_EQ(vocabulary.Find("a"), 2);
  EXPECT_EQ(vocabulary.id_end(), 3);
}

TEST(Vocabulary, TwoTokensWithOneIdAreAnError) {
  Vocabulary vocabulary;
  vocabulary.Add("a", 1);
  vocabulary.Add("b", 1);
  try {
    vocabulary.Finish("file: model.vocab");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "file: model.vocab: tokens \"a\" and \"b\" share the id 1");
  }
}

TEST(FlatMap, AgreesWithStdMap) {
  std::mt19937_64 random(3);
  FlatMap map;
  std::map<uint64_t, uint64_t> model;
  for (int i = 0; i < 20'000; ++i) {
    const uint64_t key = random() % 30'000 << (random() % 2 * 32);
    map.Insert(key, static_cast<uint64_t>(i));
    model[key] = static_cast<uint64_t>(i);
  }
  EXPECT_EQ(map.size(), model.size());
  for (uint64_t key = 0; key < 30'000; ++key) {
    const auto expected = model.find(key);
    const uint64_t* found = map.Find(key);
    ASSERT_EQ(found != nullptr, expected != model.end());
    if (found != nullptr) {
      ASSERT_EQ(*found, expected->second);
    }
  }
}

TEST(Bpe, MergesTheFirstOfTheList) {
  const auto vocabulary = Tokens({"a", "b", "c", "ab", "bc", "abc"});
  EXPECT_THAT(Encode(Bpe(vocabulary, {{"a", "b"}, {"b", "c"}, {"ab", "c"}}, {}, "t"), "abc"), ElementsAre(5));
  EXPECT_THAT(Encode(Bpe(vocabulary, {{"b", "c"}, {"a", "b"}}, {}, "t"), "abc"), ElementsAre(0, 4));
  EXPECT_THAT(Encode(Bpe(vocabulary, {}, {}, "t"), "abc"), ElementsAre(0, 1, 2));
  EXPECT_THAT(Encode(Bpe(vocabulary, {}, Options([](auto* o) { o->ignore_merges = true; }), "t"), "abc"),
              ElementsAre(5));
  EXPECT_THAT(Encode(Bpe(vocabulary, {}, {}, "t"), ""), IsEmpty());
}

TEST(Bpe, UnknownCharacters) {
  const auto vocabulary = Tokens({"a", "<u>", "<0xC3>", "<0xA9>"});
  EXPECT_THAT(Encode(Bpe(vocabulary, {}, {}, "t"), "axxa"), ElementsAre(0, 0));
  EXPECT_THAT(Encode(Bpe(vocabulary, {}, Options([](auto* o) { o->unknown_token = "<u>"; }), "t"), "axxa"),
              ElementsAre(0, 1, 1, 0));
  const BpeOptions fused = Options([](auto* o) {
    o->unknown_token = "<u>";
    o->fuse_unknown = true;
    o->byte_fallback = true;
  });
  EXPECT_THAT(Encode(Bpe(vocabulary, {}, fused, "t"), "axxéa"), ElementsAre(0, 2, 3, 1, 0));
  const Bpe without(vocabulary, {}, Options([](auto* o) { o->unknown_token = "<none>"; }), "file: model");
  EXPECT_THAT(Encode(without, "a"), ElementsAre(0));
  EXPECT_THROW(Encode(without, "x"), Error);
}

TEST(Bpe, PrefixAndSuffix) {
  const auto vocabulary = Tokens({"a", "##b", "##c</w>", "a##b", "ab", "abc</w>", "a</w>"});
  const BpeOptions options = Options([](auto* o) {
    o->continuing_prefix = "##";
    o->end_of_word_suffix = "</w>";
  });
  const Bpe bpe(vocabulary, {{"a", "##b"}, {"ab", "##c</w>"}}, options, "t");
  EXPECT_THAT(Encode(bpe, "abc"), ElementsAre(5));
  EXPECT_THAT(Encode(bpe, "a"), ElementsAre(6));
}

TEST(Bpe, AMergeWithoutTokensIsAnErrorThatNamesIt) {
  const auto vocabulary = Tokens({"a", "b"});
  const auto message = [&](const Merge& merge) -> std::string {
    try {
      Bpe(vocabulary, {merge}, {}, "file: model");
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(message({"a", "b"}),
            "file: model.merges[0]: \"a\" and \"b\" are to be merged, but the vocabulary has no token \"ab\"");
  EXPECT_THAT(message({"x", "b"}), HasSubstr("no token \"x\""));
  EXPECT_THAT(message({"a", "y"}), HasSubstr("no token \"y\""));
}

// The definition, at its slowest: the best pair, leftmost first, until there is none.
std::vector<std::string> NaiveMerge(std::string_view word, const std::vector<Merge>& merges) {
  std::vector<std::string> symbols;
  for (const char c : word) symbols.emplace_back(1, c);
  for (;;) {
    size_t best = merges.size();
    size_t at = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      for (size_t rank = 0; rank < best; ++rank) {
        if (merges[rank] == Merge(symbols[i], symbols[i + 1])) {
          best = rank;
          at = i;
        }
      }
    }
    if (best == merges.size()) return symbols;
    symbols[at] += symbols[at + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

TEST(Bpe, AgreesWithTheDefinitionOnRandomMergesAndWords) {
  std::mt19937 random(11);
  for (int round = 0; round < 100; ++round) {
    std::vector<std::string> tokens = {"a", "b", "c"};
    std::vector<Merge> merges;
    for (int i = 0; i < 30; ++i) {
      const Merge merge{tokens[random() % tokens.size()], tokens[random() % tokens.size()]};
      const std::string whole = merge.first + merge.second;
      if (whole.size() > 12 || std::find(merges.begin(), merges.end(), merge) != merges.end()) continue;
      merges.push_back(merge);
      if (std::find(tokens.begin(), tokens.end(), whole) == tokens.end()) tokens.push_back(whole);
    }
    std::shuffle(merges.begin(), merges.end(), random);
    const Bpe bpe(Tokens(tokens), merges, {}, "t");
    BpeEncoder encoder(bpe, 0);
    for (int i = 0; i < 30; ++i) {
      std::string word;
      for (size_t n = random() % 100; n > 0; --n) word += static_cast<char>('a' + random() % 3);
      std::vector<int32_t> ids;
      encoder.Encode(word, &ids);
      std::vector<std::string> got;
      for (const int32_t id : ids) got.emplace_back(*bpe.vocabulary().Token(id));
      ASSERT_EQ(got, NaiveMerge(word, merges)) << word;
    }
  }
}

// Quadratic work on this word would take minutes.
TEST(Bpe, ALongWordIsNoTrap) {
  std::vector<std::string> tokens = {"a"};
  std::vector<Merge> merges;
  while (tokens.back().size() < 4096) {
    merges.emplace_back(tokens.back(), tokens.back());
    tokens.push_back(tokens.back() + tokens.back());
  }
  const Bpe bpe(Tokens(tokens), merges, {}, "t");
  EXPECT_EQ(Encode(bpe, std::string(1 << 18, 'a')).size(), (1u << 18) / 4096);
}

}  // namespace
}  // namespace offgraph::llm
