#include "offgraph/llm/unicode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "offgraph/llm/unicode_late.h"

namespace offgraph::llm {
namespace {

using std::string_literals::operator""s;

constexpr char kBad[] = "\xEF\xBF\xBD";  // U+FFFD

TEST(Utf8, EveryCodePointSurvivesBothWays) {
  std::string all;
  std::vector<char32_t> expected;
  for (char32_t c = 0; c < kCodePointEnd; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    AppendUtf8(c, &all);
    expected.push_back(c);
  }
  ASSERT_TRUE(IsValidUtf8(all));
  EXPECT_EQ(RepairUtf8(all), all);
  size_t pos = 0;
  for (const char32_t c : expected) ASSERT_EQ(NextCodePoint(all, &pos), c);
  EXPECT_EQ(pos, all.size());
  for (size_t i = expected.size(); i-- > 0;) ASSERT_EQ(PreviousCodePoint(all, &pos), expected[i]);
  EXPECT_EQ(pos, 0u);
}

// From the Unicode Standard 15, tables 3-8 to 3-11, and other malformed forms.
TEST(Utf8, MalformedPartsBecomeOneReplacementEach) {
  const auto bad = [](int n) {
    std::string text;
    for (int i = 0; i < n; ++i) text += kBad;
    return text;
  };
  EXPECT_EQ(RepairUtf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), bad(8) + "A");
  EXPECT_EQ(RepairUtf8("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), bad(8) + "A");
  EXPECT_EQ(RepairUtf8("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"), bad(5) + "A" + bad(2) + "B");
  EXPECT_EQ(RepairUtf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), bad(4) + "A");
  EXPECT_EQ(RepairUtf8("ok\xE2\x82"), "ok" + bad(1));
  EXPECT_EQ(RepairUtf8("\0x"s), "\0x"s);
  EXPECT_EQ(RepairUtf8(""), "");
}

TEST(Utf8, RepairDoesNotDependOnHowTheBytesArrive) {
  std::mt19937 random(1);
  const std::string pieces[] = {"a",        "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80",
                                "\xE2\x82", "\xF0\x9F", "\x80",         "\xFF"};
  for (int round = 0; round < 2000; ++round) {
    std::string bytes;
    for (int i = 0; i < 8; ++i) bytes += pieces[random() % std::size(pieces)];
    Utf8Repair repair;
    std::string text;
    for (size_t pos = 0; pos < bytes.size();) {
      const size_t n = 1 + random() % 4;
      repair.Push(std::string_view(bytes).substr(pos, n), &text);
      ASSERT_TRUE(IsValidUtf8(text));
      pos += n;
    }
    repair.Finish(&text);
    ASSERT_EQ(text, RepairUtf8(bytes));
  }
}

TEST(Characters, Classes) {
  for (const char32_t c : {U' ', U'\t', U'\u0085', U'\u00A0', U'\u2028', U'\u3000'}) EXPECT_TRUE(IsWhitespace(c));
  for (const char32_t c : {U'\u200B', U'\u180E', U'\uFEFF', U'a', U'\u001C'}) EXPECT_FALSE(IsWhitespace(c));
  for (const char32_t c : {U'0', U'\u00B2', U'\u2167', U'\u0663', U'\U0001E4F5'}) EXPECT_TRUE(IsNumeric(c));
  EXPECT_FALSE(IsNumeric(U'\u4E00'));
  for (const char32_t c : {U'!', U'$', U'~', U'\u3002', U'\u2014'}) EXPECT_TRUE(IsPunctuation(c));
  for (const char32_t c : {U'\u20AC', U'a', U' ', U'\u00D7'}) EXPECT_FALSE(IsPunctuation(c));
  EXPECT_TRUE(IsMark(U'\u0903'));
  EXPECT_FALSE(IsNonspacingMark(U'\u0903'));
  EXPECT_TRUE(IsNonspacingMark(U'\u0301'));
  for (const char32_t c : {U'a', U'_', U'9', U'\u0301', U'\u24B6', U'\u2160', U'\u200D'})
    EXPECT_TRUE(IsWordCharacter(c));
  for (const char32_t c : {U'-', U'\u00B2', U' ', U'\u20AC'}) EXPECT_FALSE(IsWordCharacter(c));
}

TEST(Characters, LateRangesAreInOrderAndFound) {
  char32_t end = 0;
  for (const LateRange& range : LateRanges()) {
    EXPECT_GE(range.first, end);
    EXPECT_GE(range.last, range.first);
    end = range.last + 1;
    EXPECT_EQ(FindLateRange(range.first), FindLateRange(range.last));
    EXPECT_NE(FindLateRange(range.first), nullptr);
  }
  EXPECT_EQ(FindLateRange(U'\u4E00'), nullptr);
  EXPECT_EQ(FindLateRange(U'\U0010FFFF'), nullptr);
  EXPECT_TRUE(HasLateCharacter("abc \xF0\xB1\x8D\x90"));  // U+31350
  EXPECT_FALSE(HasLateCharacter("abc \xF0\xAA\x9B\x96 \xE4\xB8\x80"));
  EXPECT_TRUE(IsWordCharacter(U'\U00031350'));
}

TEST(Characters, Lowercase) { EXPECT_EQ(Lowercase("AÀΣΊΣ İ Ǆ ẞ x"), "aàσίσ i\u0307 ǆ ß x"); }

TEST(NormalForms, OfTheStandard) {
  EXPECT_EQ(Normalize(NormalForm::kNfc, "e\u0301"), "\u00E9");
  EXPECT_EQ(Normalize(NormalForm::kNfd, "\u00E9"), "e\u0301");
  EXPECT_EQ(Normalize(NormalForm::kNfkc, "\uFB01\u2460"), "fi1");
  EXPECT_EQ(Normalize(NormalForm::kNfkd, "\uFB03\u00E9"), "ffie\u0301");
  EXPECT_EQ(Normalize(NormalForm::kNfc, "\u1112\u1161\u11AB"), "\uD55C");
  EXPECT_EQ(Normalize(NormalForm::kNfc, "\u212B\u0958"), "\u00C5\u0915\u093C");
  // Marks are ordered by class before they compose.
  EXPECT_EQ(Normalize(NormalForm::kNfc, "q\u0307\u0323"), "q\u0323\u0307");
  EXPECT_EQ(Normalize(NormalForm::kNfc, "a\u0302\u0323"), "\u1EAD");
  EXPECT_EQ(Normalize(NormalForm::kNfkd, "\uFDFA").size(), 33u);
  EXPECT_EQ(Normalize(NormalForm::kNfc, ""), "");
}

TEST(NormalForms, AreIdempotentOnEveryCodePoint) {
  std::string all;
  for (char32_t c = 1; c < 0x30000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    AppendUtf8(c, &all);
    all += ' ';
  }
  for (const NormalForm form : {NormalForm::kNfc, NormalForm::kNfd, NormalForm::kNfkc, NormalForm::kNfkd}) {
    const std::string once = Normalize(form, all);
    EXPECT_TRUE(Normalize(form, once) == once);
    EXPECT_TRUE(IsValidUtf8(once));
  }
}

TEST(NormalForms, ALongRunOfMarksIsNoTrap) {
  std::string marks = "a";
  for (int i = 0; i < 200'000; ++i) marks += i % 2 == 0 ? "\u0301" : "\u0323";
  const std::string result = Normalize(NormalForm::kNfd, marks);
  EXPECT_EQ(result.substr(0, 5), "a\u0323\u0323");
  EXPECT_EQ(result.substr(result.size() - 4), "\u0301\u0301");
}

TEST(ByteCharacters, AreOneToOne) {
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t c = ByteToCharacter(static_cast<unsigned char>(byte));
    EXPECT_EQ(CharacterToByte(c), byte);
    EXPECT_FALSE(IsWhitespace(c));
  }
  EXPECT_EQ(ByteToCharacter(' '), U'\u0120');
  EXPECT_EQ(ByteToCharacter('\n'), U'\u010A');
  EXPECT_EQ(CharacterToByte(U' '), -1);
  EXPECT_EQ(CharacterToByte(U'\u4E00'), -1);
}

}  // namespace
}  // namespace offgraph::llm
