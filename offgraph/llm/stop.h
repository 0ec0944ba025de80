// StopMatcher: finds stop strings in text that arrives in pieces, and says what may already be shown.
//
// The result does not depend on how the text is cut into pieces. The stop is the first place where any stop string
// ends; of those that end there, the longest. Text is withheld exactly as long as it could still be the beginning of a
// stop string: what is withheld is the longest end of the text so far that begins one.
//
// An automaton (Aho and Corasick, "Efficient string matching", CACM 18(6), 1975) over bytes. Where stop strings and
// text are valid UTF-8, so is what is emitted: a stop string begins with the first byte of a character.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace offgraph::llm {

// One thread at a time.
class StopMatcher {
 public:
  // Throws kInvalidArgument for an empty stop string, or more than kMaxBytes bytes of them. None at all is allowed.
  explicit StopMatcher(std::span<const std::string> stop_strings);

  // Takes the next piece of text; returns what is now safe to show. After a stop string was found the rest of the
  // piece, and every later piece, is dropped.
  std::string Feed(std::string_view piece);
  // The text has ended: returns what was withheld, nothing where a stop string was found.
  std::string Finish();
  // Forgets the text, keeps the stop strings.
  void Reset();

  // Index of the stop string that was found, in the order given (of equal ones, the first).
  std::optional<size_t> stopped_by() const { return stopped_by_; }
  // Bytes that are withheld at present.
  size_t withheld() const { return withheld_.size(); }

  static constexpr size_t kMaxBytes = 1 << 16;

 private:
  static constexpr int32_t kNone = -1;

  struct Node {
    std::array<int32_t, 256> next;  // by byte; complete once built
    int32_t fallback = 0;           // node of the longest proper end of this node's text that is a node as well
    int32_t found = kNone;          // stop string that ends here, the longest one
    int32_t depth = 0;              // bytes of this node's text
  };

  void Insert(std::string_view text, int32_t index);
  void Complete();

  std::vector<Node> nodes_;  // nodes_[0]: nothing matched
  std::vector<size_t> lengths_;
  int32_t state_ = 0;
  std::string withheld_;  // the text of nodes_[state_]
  std::optional<size_t> stopped_by_;
};

}  // namespace offgraph::llm
