// TokenStream: decodes ids as a model produces them.
//
// What it returns is final: whole characters, nothing that a later token could change, nothing twice. All of it
// together equals Tokenizer::Decode of all ids. So some text comes later than its token: the bytes of an unfinished
// character; a run of <0x..> byte tokens, which is judged as a whole; spaces that the decoder may yet strip from the
// end.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "offgraph/llm/tokenizer.h"

namespace offgraph::llm {

class DecodeStream;

// For one thread at a time.
class TokenStream {
 public:
  explicit TokenStream(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special = false);
  ~TokenStream();
  TokenStream(TokenStream&&) noexcept;
  TokenStream& operator=(TokenStream&&) noexcept;

  // The text that `id` makes final; often empty. An id without a token adds nothing.
  std::string Push(int32_t id);
  // Ends the text and returns the rest of it. The next Push begins a new text.
  std::string Finish();

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  bool skip_special_;
  std::unique_ptr<DecodeStream> stream_;
};

}  // namespace offgraph::llm
