// The "added_tokens" of tokenizer.json: strings that are one token wherever they stand in a text, special ones like
// <|im_end|> and others, found before the model sees the text.
//
// Tokens with normalized = false are looked for in the text as it is; the others, in their normalized form, in what is
// left, once that is normalized.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "offgraph/llm/flat_map.h"
#include "offgraph/llm/normalizer.h"
#include "offgraph/llm/tokenizer_json.h"
#include "offgraph/llm/vocabulary.h"

namespace offgraph::llm {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  // found only where neither side is a word character
  bool lstrip = false;       // takes the white space in front of it
  bool rstrip = false;       // takes the white space behind it
  bool normalized = false;
  bool special = false;  // what `skip_special` leaves out of decoded text
  // What decoding starts from: the content, in its normalized form where it is looked for in normalized text, so that
  // the decoder can undo the normalization.
  std::string to_decode;
  // The token was matched as it is written and is decoded to just that, even where its characters could be byte
  // characters. False where the model's own vocabulary has the token: there it stands for bytes.
  bool literal = false;
};

// A part of a text: an added token, or (token == nullptr) text between them.
struct AddedTokenSplit {
  const AddedToken* token = nullptr;
  size_t begin = 0;
  size_t end = 0;
};

// Immutable; safe to use from any thread.
class AddedTokens {
 public:
  enum class Stage { kRaw, kNormalized };

  AddedTokens() = default;
  // `normalizer` may be null. Throws Error(kBadFile) for an id that is not the one the reference would use: that of
  // the same string in the vocabulary, else the next one behind the vocabulary and the tokens before it.
  AddedTokens(const JsonNode& node, const Vocabulary& vocabulary, const Normalizer* normalizer);

  const std::vector<AddedToken>& tokens() const { return tokens_; }
  const AddedToken* Find(int32_t id) const;
  const AddedToken* Find(std::string_view content) const;

  // Cuts `text` at the tokens of `stage`; at each place the longest that fits. The parts cover the text. With
  // `skip_special`, special tokens count as text.
  std::vector<AddedTokenSplit> Split(std::string_view text, Stage stage, bool skip_special) const;

 private:
  // All contents of one stage as a tree of bytes.
  class Trie {
   public:
    Trie();
    // The first to come keeps its place. REQUIRES: content not empty.
    void Add(std::string_view content, int32_t token);
    // The token with the longest content at text[pos], or -1; *end is where it ends.
    int32_t Longest(std::string_view text, size_t pos, size_t* end) const;

   private:
    FlatMap children_;               // node << 8 | byte -> node
    std::vector<int32_t> token_;     // by node; -1: none ends here. Node 0 is the root.
    std::array<bool, 256> first_{};  // bytes that begin a content
  };

  Trie& trie(Stage stage) { return tries_[stage == Stage::kNormalized]; }
  const Trie& trie(Stage stage) const { return tries_[stage == Stage::kNormalized]; }

  std::vector<AddedToken> tokens_;
  std::unordered_map<int32_t, size_t> by_id_;
  std::unordered_map<std::string_view, size_t> by_content_;  // keys point into tokens_
  std::array<Trie, 2> tries_;
};

}  // namespace offgraph::llm
