#include "offgraph/llm/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "offgraph/cache/error.h"
#include "offgraph/llm/regex_syntax.h"

namespace offgraph::llm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> Matches(const Pattern& pattern, std::string_view text) {
  MatchFinder finder(pattern);
  finder.Start(text);
  std::vector<std::string> found;
  for (Match match; finder.Next(&match);) found.emplace_back(text.substr(match.begin, match.end - match.begin));
  return found;
}

std::vector<std::string> Matches(std::string_view expression, std::string_view text) {
  return Matches(Pattern::Regex(expression, "file: here"), text);
}

std::string Refusal(std::string_view expression) {
  try {
    Pattern::Regex(expression, "file: here");
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Pattern, Literal) {
  EXPECT_THAT(Matches(Pattern::Literal("aa"), "aaaab aa"), ElementsAre("aa", "aa", "aa"));
  EXPECT_THAT(Matches(Pattern::Literal("x"), ""), IsEmpty());
}

TEST(Pattern, EmptyMatchesAreThoseOfTheReference) {
  EXPECT_THAT(Matches("x*", "axxb"), ElementsAre("", "xx", ""));
  EXPECT_THAT(Matches("", "é"), ElementsAre("", ""));
  EXPECT_THAT(Matches("$", "a\nb"), ElementsAre("", ""));
}

TEST(Pattern, AFinderGoesFromTextToText) {
  const Pattern pattern = Pattern::Regex(R"(\p{L}+)", "x");
  MatchFinder finder(pattern);
  Match match;
  for (const char* text : {"ab cd", "", "\xF0\xB1\x8D\x90z", "ef"}) {  // with a late character in between
    finder.Start(text);
    std::string joined;
    while (finder.Next(&match)) joined += std::string(text).substr(match.begin, match.end - match.begin) + "|";
    EXPECT_FALSE(finder.Next(&match));
    if (std::string(text) == "ab cd") {
      EXPECT_EQ(joined, "ab|cd|");
    } else if (*text != '\0') {
      EXPECT_EQ(joined, std::string(text) + "|");
    }
  }
}

TEST(Syntax, SpacesAreThoseOfUnicode) {
  EXPECT_THAT(Matches(R"(\s)", "a\u180Eb\u0085c\u3000"), ElementsAre("\u0085", "\u3000"));
  EXPECT_THAT(Matches(R"([^\s]+)", "a\u180Eb\u00A0c"), ElementsAre("a\u180Eb", "c"));
  EXPECT_THAT(Matches(R"([\S]+)", "a\u180Eb\u00A0c"), ElementsAre("a\u180Eb", "c"));
}

TEST(Syntax, WordsHaveMarks) {
  EXPECT_THAT(Matches(R"(\w+)", "e\u0301_9-x\u2074"), ElementsAre("e\u0301_9", "x"));
  EXPECT_THAT(Matches(R"(\W+)", "a-\u2074b\u00B2"), ElementsAre("-\u2074"));
  EXPECT_THAT(Matches(R"(\w+)", "-\U000143A5"), ElementsAre("\U000143A5"));
  EXPECT_THAT(Matches(R"(\b.)", "ab cd"), ElementsAre("a", " ", "c"));
  EXPECT_THAT(Matches(R"(\B.)", "ab cd"), ElementsAre("b", "d"));
}

TEST(Syntax, Properties) {
  EXPECT_THAT(Matches(R"(\p{Han}+)", "a\u4E00\u3001\u3005b"), ElementsAre("\u4E00", "\u3005"));
  EXPECT_THAT(Matches(R"(\p{Letter}+)", "ab1"), ElementsAre("ab"));
  EXPECT_THAT(Matches(R"(\p{uppercase_letter}+\P{^Nd})", "AB1"), ElementsAre("AB1"));
  EXPECT_THAT(Matches(R"(\p{L})", "\U00031350"), ElementsAre("\U00031350"));
  EXPECT_THAT(Matches(R"([^\s\p{L}])", "\U00031350"), IsEmpty());
  EXPECT_THAT(Matches(R"(\P{L})", "\U00031350-"), ElementsAre("-"));
}

TEST(Syntax, Intervals) {
  EXPECT_THAT(Matches(R"(a{,2}b)", "aaab"), ElementsAre("aab"));
  EXPECT_THAT(Matches(R"(ba{2}?)", "baab"), ElementsAre("baa", "b"));
  EXPECT_THAT(Matches(R"((ba){1,2}+c)", "bababac"), ElementsAre("bababac"));
  EXPECT_THAT(Matches(R"(a{1,2}?)", "aa"), ElementsAre("a", "a"));
  EXPECT_THAT(Matches(R"(x{a}{)", "x{a}{"), ElementsAre("x{a}{"));
}

TEST(Syntax, Escapes) {
  EXPECT_THAT(Matches(R"(\u00e9\x{1F600}\x41)", "é\U0001F600A"), ElementsAre("é\U0001F600A"));
  EXPECT_THAT(Matches(R"([\]\-\\a]+)", "]-\\ab"), ElementsAre("]-\\a"));
  EXPECT_THAT(Matches(R"([]x]+)", "x]"), ElementsAre("x]"));
  EXPECT_THAT(Matches("\\\u00e9", "é"), ElementsAre("é"));
  EXPECT_THAT(Matches(R"((?i)AB|c)", "abC"), ElementsAre("ab", "C"));
}

TEST(Syntax, WhatHasNoEqualIsRefusedByName) {
  EXPECT_THAT(Refusal("a\\h"), HasSubstr("file: here: the regular expression a\\h has the escape \\h at byte 1"));
  EXPECT_THAT(Refusal("[a[b]]"), HasSubstr("a set within a set"));
  EXPECT_THAT(Refusal("[a&&b]"), HasSubstr("intersection"));
  EXPECT_THAT(Refusal("[\\W]"), HasSubstr("\\W in a set"));
  EXPECT_THAT(Refusal("(a)\\1"), HasSubstr("the escape \\1"));
  EXPECT_THAT(Refusal("(?m:.)"), HasSubstr("a group \"(?m:\""));
  EXPECT_THAT(Refusal("(?<n>a)"), HasSubstr("a group"));
  EXPECT_THAT(Refusal("a(?i)b"), HasSubstr("a group"));
  EXPECT_THAT(Refusal("\\pL"), HasSubstr("\\p without {name}"));
  EXPECT_THAT(Refusal("\\p{Ho ho}"), HasSubstr("does not compile"));
}

TEST(Syntax, BrokenExpressionsAreErrors) {
  for (const char* expression :
       {"(", ")", "[", "[^", "[]", "a**", "\\", "(?", "\\p{", "\\x{}", "\\u12", "+", "(?<=a+)"}) {
    EXPECT_NE(Refusal(expression), "accepted") << expression;
  }
  EXPECT_THAT(Refusal(std::string(100'000, 'a')), HasSubstr("at most 65536"));
  EXPECT_NE(Refusal(std::string(5'000, '(') + std::string(5'000, ')')), "accepted");
  EXPECT_NE(Refusal("(?:(?:a{1000}){1000}){1000}"), "accepted");
}

TEST(Matching, BacktrackingWithoutEndIsAnError) {
  const Pattern pattern = Pattern::Regex("(?:a|aa)+[bc]", "file: here");
  const std::string text(200, 'a');
  MatchFinder finder(pattern);
  finder.Start(text);
  Match match;
  try {
    finder.Next(&match);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfRange);
    EXPECT_THAT(error.what(), HasSubstr("file: here: matching the regular expression failed"));
  }
}

TEST(Matching, LongMatchesAreFine) {
  const std::string spaces(3'000'000, ' ');
  EXPECT_EQ(Matches(R"(\s*[\r\n]+|\s+(?!\S)|\s+)", spaces).size(), 1u);
  EXPECT_EQ(Matches(R"([^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})", std::string(3'000'000, 'x')).size(), 1u);
  EXPECT_EQ(Matches(R"((?:ab|c)+)", std::string(1'000'000, 'c')).size(), 1u);
}

}  // namespace
}  // namespace offgraph::llm
