// The "decoder" of tokenizer.json, as a chain of steps that work on a stream of tokens: what comes out is final.
//
// Between steps run pieces. A piece is a token's string, or, behind a step that joins tokens, a longer text that
// arrives in several fragments. The output depends on the pieces alone, never on how they are cut into fragments, so
// decoding a whole list and decoding token by token are the same thing.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "offgraph/llm/tokenizer_json.h"

namespace offgraph::llm {

struct Fragment {
  std::string_view text;
  bool begins = true;  // the first fragment of its piece
  bool ends = true;    // the last one
  // The text is meant as it is, not as the byte characters of byte-level BPE.
  bool literal = false;
};

// One step at work on one stream. For one thread.
class DecodeStep {
 public:
  virtual ~DecodeStep() = default;
  virtual void Push(const Fragment& fragment) = 0;
  // The stream has ended. Called once, after all Push.
  virtual void Finish() {}

  // Where output goes: the next step, or at the end of the chain a string.
  void SetOutput(DecodeStep* next, std::string* text) {
    next_ = next;
    text_ = text;
  }

 protected:
  void Emit(const Fragment& fragment) {
    if (next_ != nullptr) {
      next_->Push(fragment);
    } else {
      text_->append(fragment.text);
    }
  }

 private:
  DecodeStep* next_ = nullptr;
  std::string* text_ = nullptr;
};

// Makes the steps of a stream. Immutable; safe to use from any thread.
class Decoder {
 public:
  // A tokenizer without a decoder puts a space between tokens.
  Decoder();
  // Throws Error(kUnsupported) for a type or field that is not known, kBadFile for a wrong value; both name the place.
  explicit Decoder(const JsonNode& node);

  std::vector<std::unique_ptr<DecodeStep>> MakeSteps() const;

 private:
  using Factory = std::function<std::unique_ptr<DecodeStep>()>;

  void Parse(const JsonNode& node);

  std::vector<Factory> factories_;
};

// A chain of steps, fed with tokens. For one thread; refers to the decoder only while it is made.
class DecodeStream {
 public:
  explicit DecodeStream(const Decoder& decoder);
  DecodeStream(const DecodeStream&) = delete;
  DecodeStream& operator=(const DecodeStream&) = delete;

  // Appends to *out what this token makes final: whole UTF-8 characters, possibly none.
  void Push(std::string_view token, bool literal, std::string* out);
  // Ends the stream and appends the rest. Push must not follow.
  void Finish(std::string* out);

 private:
  std::vector<std::unique_ptr<DecodeStep>> steps_;
  std::string text_;
};

}  // namespace offgraph::llm
