// Generate: text from a session, token by token, until something ends it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "offgraph/llm/sampler.h"
#include "offgraph/llm/session.h"

namespace offgraph::llm {

struct GenerateOptions {
  SamplerOptions sampler{};
  uint64_t seed = 0;                // of the random source; not used where the temperature is 0
  int64_t max_tokens = 0;           // 0: until the cache is full
  std::vector<std::string> stop{};  // texts that end the reply; they are not part of it
  bool ignore_end = false;          // the model's end tokens are tokens like others
};

enum class StopReason : uint8_t { kEndToken, kStopString, kTokenLimit, kCacheFull, kCancelled };

// "end_token", "stop_string", "token_limit", "cache_full", "cancelled".
const char* Name(StopReason reason);

struct Reply {
  std::string text;  // without stop string; special tokens are not shown
  // What was added to the session. Without an end token; with the tokens that a stop string ended in.
  std::vector<TokenId> tokens;
  StopReason reason = StopReason::kTokenLimit;
  double seconds = 0;        // in all
  double first_seconds = 0;  // until the first token was known
};

// Receives the reply's text as it comes, in pieces of whole characters. May be empty.
using TextSink = std::function<void(std::string_view text)>;

// Goes on from the session's tokens, which must not be empty. A cancelled call (control.stop) returns what there is,
// and the session holds exactly the tokens of the reply.
// Throws kInvalidArgument for options out of range (before anything is computed), and what a step throws; text that was
// handed out, and its tokens, then stay.
Reply Generate(Session& session, const GenerateOptions& options, const TextSink& on_text = {},
               const StepControl& control = {});

}  // namespace offgraph::llm
