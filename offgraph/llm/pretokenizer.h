// The "pre_tokenizer" of tokenizer.json: how normalized text is cut into the words that the model encodes one by one.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "offgraph/llm/tokenizer_json.h"

namespace offgraph::llm {

struct Word {
  std::string_view text;
  bool at_origin = false;  // begins with the first character of the whole input (see NormalizedText)
};

// The words of a text in order, and the memory of those that were rewritten.
struct Words {
  std::vector<Word> words;
  std::deque<std::string> storage;  // strings never move once they are in
};

// Immutable; safe to use from any thread.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Replaces the words by smaller or rewritten ones. No word is empty.
  virtual void Apply(Words* words) const = 0;
};

// Throws Error(kUnsupported) for a type or field that is not known, kBadFile for a wrong value; both name the place.
std::unique_ptr<const PreTokenizer> ParsePreTokenizer(const JsonNode& node);

// What Metaspace says in pre-tokenizer and decoder.
struct MetaspaceSettings {
  enum class Prepend { kFirst, kAlways, kNever };
  std::string replacement;  // one character
  Prepend prepend = Prepend::kAlways;
  bool split = true;
};
MetaspaceSettings ParseMetaspace(const JsonNode& node);

}  // namespace offgraph::llm
