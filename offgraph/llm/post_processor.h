// The "post_processor" of tokenizer.json: the special tokens around the ids of a text.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "offgraph/llm/tokenizer_json.h"

namespace offgraph::llm {

// Immutable; safe to use from any thread.
class PostProcessor {
 public:
  // Adds nothing.
  PostProcessor() = default;
  // `id_end` is above every id of the tokenizer. Throws Error(kUnsupported) for a type or field that is not known,
  // kBadFile for a wrong value; both name the place.
  PostProcessor(const JsonNode& node, int64_t id_end);

  std::vector<int32_t> Apply(std::vector<int32_t> ids, bool add_special_tokens) const;

 private:
  // Special tokens by id; nothing stands for the ids of the text.
  using Template = std::vector<std::optional<int32_t>>;

  void Parse(const JsonNode& node, int64_t id_end);
  static Template ParseTemplate(const JsonNode& node, int64_t id_end);

  std::vector<Template> templates_;  // applied one after the other
};

}  // namespace offgraph::llm
