// The tokens of a model: a one-to-one map between strings and ids.
//
// Filled by Add, closed by Finish, then only read, from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace offgraph::llm {

class Vocabulary {
 public:
  Vocabulary();

  // Adds a token, or gives a token that is there another id. REQUIRES: id >= 0.
  void Add(std::string_view token, int32_t id);
  // Ends the filling. Throws Error(kBadFile) where two tokens share an id; the message begins with `where`.
  void Finish(const std::string& where);

  std::optional<int32_t> Find(std::string_view token) const;
  // Valid as long as the vocabulary. Empty where no token has that id.
  std::optional<std::string_view> Token(int32_t id) const;

  size_t size() const { return entries_.size(); }
  // One more than the highest id; 0 where there is no token.
  int64_t id_end() const { return entries_.empty() ? 0 : int64_t{entries_.back().id} + 1; }
  // All token strings of `size()` tokens, by index; for loops over the vocabulary.
  std::string_view TokenAt(size_t index) const { return Text(entries_[index]); }
  int32_t IdAt(size_t index) const { return entries_[index].id; }

 private:
  struct Entry {
    size_t offset = 0;  // into text_
    uint32_t length = 0;
    int32_t id = 0;
  };

  std::string_view Text(const Entry& entry) const { return std::string_view(text_).substr(entry.offset, entry.length); }
  // The slot of `token`, or the free slot where it would go.
  size_t Position(std::string_view token) const;
  void Rehash(size_t slots);

  std::string text_;             // all tokens, one after the other
  std::vector<Entry> entries_;   // in order of id once finished
  std::vector<uint32_t> slots_;  // hash table of 1 + index into entries_; 0 is free; at least half are free
};

}  // namespace offgraph::llm
