#include "offgraph/llm/token_stream.h"

#include <utility>

#include "offgraph/llm/tokenizer_impl.h"

namespace offgraph::llm {

TokenStream::TokenStream(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special)
    : tokenizer_(std::move(tokenizer)),
      skip_special_(skip_special),
      stream_(std::make_unique<DecodeStream>(tokenizer_->impl_->decoder)) {}

TokenStream::~TokenStream() = default;
TokenStream::TokenStream(TokenStream&&) noexcept = default;
TokenStream& TokenStream::operator=(TokenStream&&) noexcept = default;

std::string TokenStream::Push(int32_t id) {
  std::string text;
  tokenizer_->impl_->Decode(id, skip_special_, stream_.get(), &text);
  return text;
}

std::string TokenStream::Finish() {
  std::string text;
  stream_->Finish(&text);
  stream_ = std::make_unique<DecodeStream>(tokenizer_->impl_->decoder);
  return text;
}

}  // namespace offgraph::llm
