// Patterns of tokenizer.json: a literal string or a regular expression, and all their matches in a text.
//
// A Pattern is immutable and may be used from any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace offgraph::llm {

struct Match {
  size_t begin = 0;
  size_t end = 0;
};

class Pattern {
 public:
  // A string that matches itself. REQUIRES: not empty.
  static Pattern Literal(std::string text);
  // A regular expression in the syntax of tokenizer.json (regex_syntax.h). Throws Error(kUnsupported) for what has no
  // equal here and Error(kBadFile) for what is no regular expression; messages begin with `where`, which also names
  // the pattern in errors of matching.
  static Pattern Regex(std::string_view expression, std::string where);

  ~Pattern();
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;

  // Non-null where the pattern is a literal.
  const std::string* literal() const { return compiled_ ? nullptr : &text_; }

 private:
  friend class MatchFinder;
  struct Compiled;

  Pattern();

  std::string text_;                    // the literal, or where the expression stands in the file
  std::unique_ptr<Compiled> compiled_;  // null for a literal
};

// Finds a pattern's matches, one text after another. Cheap per text, so that it can be kept over many short ones.
// For one thread; refers to the pattern.
class MatchFinder {
 public:
  explicit MatchFinder(const Pattern& pattern);
  ~MatchFinder();
  MatchFinder(const MatchFinder&) = delete;
  MatchFinder& operator=(const MatchFinder&) = delete;

  // Begins a text of valid UTF-8, which must stay while its matches are asked for.
  void Start(std::string_view text);
  // The next match, from left to right, without overlap; false after the last. An empty match directly behind the one
  // before is passed over. Throws Error(kOutOfRange) where a match needs more steps or memory than is allowed.
  bool Next(Match* match);

 private:
  bool Search(size_t from, Match* match);

  const Pattern& pattern_;
  struct Scratch;
  std::unique_ptr<Scratch> scratch_;
  std::string_view text_;
  size_t position_ = 0;
  size_t last_end_ = 0;
  bool any_ = false;  // a match of this text was returned, and ended at last_end_
};

}  // namespace offgraph::llm
