// Byte-pair encoding of one word: from characters, always merge the neighbours that the list of merges names first.
// (Sennrich et al. 2016, arXiv:1508.07909; settings as in the "BPE" model of Hugging Face's tokenizer.json.)
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "offgraph/llm/flat_map.h"
#include "offgraph/llm/vocabulary.h"

namespace offgraph::llm {

struct BpeOptions {
  // Stands for a character that the vocabulary lacks. Without it such characters vanish.
  std::optional<std::string> unknown_token;
  bool fuse_unknown = false;  // neighbouring unknown characters become one unknown token
  // A character that the vocabulary lacks is spelled with the tokens <0x00> ... <0xFF> of its UTF-8 bytes.
  bool byte_fallback = false;
  // A word that is a token as a whole is that token, whatever the merges say.
  bool ignore_merges = false;
  std::string continuing_prefix;   // in front of every character of a word but the first
  std::string end_of_word_suffix;  // behind the last character of a word
};

// A merge by the ids of its two halves' tokens.
using Merge = std::pair<std::string, std::string>;

// Immutable; safe to use from any thread.
class Bpe {
 public:
  // `merges` in order of priority. Throws Error(kBadFile), with a message that begins with `where`, for a merge whose
  // halves or whole are no tokens.
  Bpe(std::shared_ptr<const Vocabulary> vocabulary, const std::vector<Merge>& merges, BpeOptions options,
      std::string where);

  const Vocabulary& vocabulary() const { return *vocabulary_; }

 private:
  friend class BpeEncoder;

  // The token of one character with the prefix and suffix of its place; -1 where there is none.
  int32_t CharacterToken(std::string_view character, bool first, bool last) const;
  int32_t UnknownToken() const;

  std::shared_ptr<const Vocabulary> vocabulary_;
  BpeOptions options_;
  std::string where_;
  FlatMap merges_;                    // left id << 32 | right id  ->  rank << 32 | merged id
  FlatMap characters_;                // code point -> id, where no prefix and suffix apply
  std::vector<int32_t> byte_tokens_;  // with byte_fallback: [256], -1 where <0x..> is missing
};

// Encodes many words of one text, with a cache of the words met. Made for one call on one thread.
class BpeEncoder {
 public:
  // `text_bytes` is about how much text will come; it sizes the cache.
  BpeEncoder(const Bpe& bpe, size_t text_bytes);

  // Appends the ids of `word` to *ids. Time is O(n log n) in the word. REQUIRES: valid UTF-8 below 2^31 bytes.
  // Throws Error(kBadFile) where the unknown token is needed and is no token.
  void Encode(std::string_view word, std::vector<int32_t>* ids);

 private:
  struct Symbol {
    int32_t id = 0;
    int32_t previous = 0;  // -1: none
    int32_t next = 0;      // -1: none
  };
  struct Candidate {
    uint64_t rank_and_position = 0;  // rank << 32 | index of the left symbol: the smallest is merged first
    int32_t left = 0;                // ids when the candidate was made; another id since then makes it stale
    int32_t right = 0;
    int32_t merged = 0;
  };
  struct CachedWord {
    std::string word;
    std::vector<int32_t> ids;
  };

  void SplitIntoSymbols(std::string_view word);
  void AddSymbol(int32_t id);
  void MergeSymbols();
  void AddCandidate(int32_t left);

  const Bpe& bpe_;
  std::vector<CachedWord> cache_;  // direct mapped by hash; a power of two
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
};

}  // namespace offgraph::llm
