// The "normalizer" of tokenizer.json: what happens to text before it is split.
#pragma once

#include <memory>
#include <string>

#include "offgraph/llm/regex.h"
#include "offgraph/llm/tokenizer_json.h"

namespace offgraph::llm {

struct NormalizedText {
  std::string text;
  // Whether the first character stems from the beginning of the whole input. Metaspace with the scheme "first" asks.
  bool at_origin = false;
};

// Immutable; safe to use from any thread.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual void Apply(NormalizedText* text) const = 0;
};

// Throws Error(kUnsupported) for a type or field that is not known, kBadFile for a wrong value; both name the place.
std::unique_ptr<const Normalizer> ParseNormalizer(const JsonNode& node);

// {"String": "..."} or {"Regex": "..."}, as normalizers, pre-tokenizers and decoders have it.
Pattern ParsePattern(const JsonNode& node);

}  // namespace offgraph::llm
