#include "offgraph/llm/stop.h"

#include <gtest/gtest.h>

#include <random>

#include "offgraph/cache/error.h"

namespace offgraph::llm {
namespace {

struct Outcome {
  std::string text;
  std::optional<size_t> stopped_by;
};

// The definition: the first place where a stop string ends, the longest that ends there, the first of equal ones.
Outcome SearchWhole(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::optional<size_t> best;
    for (size_t i = 0; i < stops.size(); ++i) {
      if (!std::string_view(text).substr(0, end).ends_with(stops[i])) continue;
      if (!best || stops[i].size() > stops[*best].size()) best = i;
    }
    if (best) return {text.substr(0, end - stops[*best].size()), best};
  }
  return {text, std::nullopt};
}

// How much of `text` must be withheld: its longest end that begins a stop string.
size_t MustWithhold(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t length = text.size(); length > 0; --length) {
    const std::string end = text.substr(text.size() - length);
    for (const std::string& stop : stops) {
      if (stop.starts_with(end)) return length;
    }
  }
  return 0;
}

TEST(StopMatcher, EmitsTextUpToTheStop) {
  const std::vector<std::string> stops = {"</s>", "User:"};
  StopMatcher matcher(stops);
  EXPECT_EQ(matcher.Feed("Hello"), "Hello");
  EXPECT_EQ(matcher.Feed(" <"), " ");
  EXPECT_EQ(matcher.withheld(), 1u);
  EXPECT_EQ(matcher.Feed("b> </"), "<b> ");
  EXPECT_EQ(matcher.Feed("s> more"), "");
  EXPECT_EQ(matcher.stopped_by(), 0u);
  EXPECT_EQ(matcher.Feed("never shown"), "");
  EXPECT_EQ(matcher.Finish(), "");
  matcher.Reset();
  EXPECT_FALSE(matcher.stopped_by().has_value());
  EXPECT_EQ(matcher.Feed("xUse"), "x");
  EXPECT_EQ(matcher.Finish(), "Use");
  EXPECT_EQ(matcher.Finish(), "");
}

TEST(StopMatcher, WithoutStopStringsNothingIsWithheld) {
  StopMatcher matcher({});
  const std::string text("a\0b", 3);
  EXPECT_EQ(matcher.Feed(text), text);
  EXPECT_EQ(matcher.withheld(), 0u);
}

TEST(StopMatcher, RefusesEmptyAndEndlessStopStrings) {
  const std::vector<std::string> empty = {"a", ""};
  EXPECT_THROW(StopMatcher{empty}, Error);
  const std::vector<std::string> endless = {std::string(StopMatcher::kMaxBytes + 1, 'a')};
  EXPECT_THROW(StopMatcher{endless}, Error);
}

TEST(StopMatcher, KeepsCharactersWhole) {
  const std::vector<std::string> stops = {"\u00E9\u00E9", "\u65E5\u672C"};
  StopMatcher matcher(stops);
  EXPECT_EQ(matcher.Feed("a\u00E9"), "a");
  EXPECT_EQ(matcher.Feed("\u00E8"), "\u00E9\u00E8");
  EXPECT_EQ(matcher.Feed("\u65E5"), "");
  EXPECT_EQ(matcher.Feed("\u672C"), "");
  EXPECT_EQ(matcher.stopped_by(), 1u);
}

TEST(StopMatcher, AgreesWithASearchOfTheWholeText) {
  std::mt19937 random(1);
  const auto below = [&](unsigned n) { return static_cast<size_t>(random() % n); };
  // Few letters, so that stop strings overlap themselves and each other.
  const auto text_of = [&](size_t length) {
    std::string text;
    for (size_t i = 0; i < length; ++i) text += static_cast<char>('a' + below(3));
    return text;
  };
  size_t stopped = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stops(below(4));
    for (std::string& stop : stops) stop = text_of(1 + below(6));
    const std::string text = text_of(below(30));
    const Outcome expected = SearchWhole(text, stops);
    StopMatcher matcher(stops);
    std::string emitted;
    for (size_t pos = 0; pos < text.size();) {
      const size_t length = std::min(below(5), text.size() - pos);
      emitted += matcher.Feed(std::string_view(text).substr(pos, length));
      pos += length;
      if (matcher.stopped_by()) continue;
      ASSERT_EQ(matcher.withheld(), MustWithhold(text.substr(0, pos), stops));
      ASSERT_EQ(emitted.size() + matcher.withheld(), pos);
    }
    emitted += matcher.Finish();
    ASSERT_EQ(emitted, expected.text) << text;
    ASSERT_EQ(matcher.stopped_by(), expected.stopped_by) << text;
    stopped += expected.stopped_by ? 1 : 0;
  }
  EXPECT_GT(stopped, 5000u);
}

}  // namespace
}  // namespace offgraph::llm
