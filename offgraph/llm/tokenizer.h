// Tokenizer: text to token ids and back, as a Hugging Face tokenizer.json says, with the ids that the `tokenizers`
// package gives.
//
// Supported are BPE models with everything that Llama, SmolLM, Qwen, Gemma, Mistral and Phi put around them; the list
// is in docs/tokenizer.md. What is not known is refused by name when the file is loaded, never ignored.
//
// Thread rule: a Tokenizer is immutable; all of it may be used from any thread at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace offgraph::llm {

struct EncodeOptions {
  // Add what the file's post-processor adds, for example the beginning-of-sequence token. Off, since a chat template
  // has written these tokens already.
  bool add_special_tokens = false;
  // Special tokens that are spelled out in the text are ordinary text: for text from somebody who must not be able to
  // end a turn.
  bool special_tokens_as_text = false;
};

class Tokenizer {
 public:
  // Throws Error: kIo where the file cannot be read, kBadFile where it is damaged or contradicts itself, kUnsupported
  // for a component, field or value that is not known. The message says where in the file.
  static std::shared_ptr<const Tokenizer> Load(const std::filesystem::path& path);
  // The same from memory; `name` is what messages call the file.
  static std::shared_ptr<const Tokenizer> Parse(std::string_view json, const std::string& name);

  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Malformed UTF-8 is read as U+FFFD, one for each maximal malformed part, as Python's errors="replace" does before
  // the reference sees a text. Truncation and padding that the file asks for are for batches and not applied.
  // Throws Error(kOutOfRange) for a text of 1 GiB or more, or one on which a regular expression of the file needs more
  // work than is allowed.
  std::vector<int32_t> Encode(std::string_view text, const EncodeOptions& options = {}) const;

  // Valid UTF-8 whatever the ids. Ids without a token are passed over, as the reference does: a model's logits often
  // have more entries than the tokenizer has tokens. For ids that come one by one see TokenStream.
  std::string Decode(std::span<const int32_t> ids, bool skip_special = false) const;

  // The token with exactly this string, added tokens first.
  std::optional<int32_t> TokenToId(std::string_view token) const;
  // The token's string as the file has it (byte-level tokens as byte characters); nothing for an id without a token.
  // Valid as long as the tokenizer.
  std::optional<std::string_view> IdToToken(int32_t id) const;
  // Whether `skip_special` passes over it.
  bool IsSpecial(int32_t id) const;
  // All ids for which IsSpecial holds, ascending.
  std::vector<int32_t> SpecialIds() const;

  // One more than the highest id. Ids may have gaps.
  int64_t vocab_size() const;

 private:
  friend class TokenStream;
  struct Impl;

  explicit Tokenizer(std::unique_ptr<const Impl> impl);

  std::unique_ptr<const Impl> impl_;
};

}  // namespace offgraph::llm
