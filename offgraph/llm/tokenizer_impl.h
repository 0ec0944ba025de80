// What a Tokenizer is made of. For the sources of the tokenizer only.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "offgraph/llm/added_tokens.h"
#include "offgraph/llm/bpe.h"
#include "offgraph/llm/decoder.h"
#include "offgraph/llm/normalizer.h"
#include "offgraph/llm/post_processor.h"
#include "offgraph/llm/pretokenizer.h"
#include "offgraph/llm/tokenizer.h"

namespace offgraph::llm {

struct Tokenizer::Impl {
  std::unique_ptr<const Normalizer> normalizer;       // may be null
  std::unique_ptr<const PreTokenizer> pre_tokenizer;  // may be null
  std::unique_ptr<const Bpe> model;
  AddedTokens added;
  PostProcessor post_processor;
  Decoder decoder;

  int64_t IdEnd() const;
  // Appends the ids of text[begin, end), which holds no raw added token.
  void EncodeSection(std::string_view section, bool at_origin, const EncodeOptions& options, BpeEncoder* encoder,
                     std::vector<int32_t>* ids) const;
  // Feeds one id to a decoding stream.
  void Decode(int32_t id, bool skip_special, DecodeStream* stream, std::string* out) const;
};

}  // namespace offgraph::llm
