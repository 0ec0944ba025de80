#include "offgraph/llm/generate.h"

#include <algorithm>
#include <chrono>

#include "offgraph/cache/error.h"
#include "offgraph/llm/stop.h"
#include "offgraph/llm/token_stream.h"

namespace offgraph::llm {
namespace {

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The text of a reply: tokens in; what may be shown out, to the sink and into the reply.
class ReplyText {
 public:
  // The stream reads the prompt first: how a token is written may depend on what stands before it (a space that is
  // dropped at the beginning of a text only).
  ReplyText(const Session& session, const GenerateOptions& options, const TextSink& sink, Reply& reply)
      : stream_(session.model().tokenizer(), true), matcher_(options.stop), sink_(sink), reply_(reply) {
    size_t passed = 0;
    for (const TokenId token : session.tokens()) passed += stream_.Push(token).size();
    const std::string prompt = session.model().tokenizer()->Decode(session.tokens(), true);
    prompt_rest_ = prompt.substr(std::min(passed, prompt.size()));
  }

  // False where a stop string ended.
  bool Add(TokenId token) {
    Show(matcher_.Feed(WithoutPrompt(stream_.Push(token))));
    return !stopped();
  }
  void Finish() {
    Show(matcher_.Feed(WithoutPrompt(stream_.Finish())));
    Show(matcher_.Finish());
  }
  bool stopped() const { return matcher_.stopped_by().has_value(); }

 private:
  // What the stream still held of the prompt comes out with the reply's first tokens, and is dropped. Where the reply
  // made something else of it (half a character that it completed), all of that belongs to the reply.
  std::string WithoutPrompt(std::string piece) {
    const auto [in_piece, in_rest] = std::ranges::mismatch(piece, prompt_rest_);
    if (in_piece != piece.end() && in_rest != prompt_rest_.end()) {
      prompt_rest_.clear();
      return piece;
    }
    prompt_rest_.erase(prompt_rest_.begin(), in_rest);
    piece.erase(piece.begin(), in_piece);
    return piece;
  }

  void Show(const std::string& text) {
    if (text.empty()) return;
    reply_.text += text;
    if (sink_) sink_(text);
  }

  TokenStream stream_;
  StopMatcher matcher_;
  const TextSink& sink_;
  Reply& reply_;
  std::string prompt_rest_;
};

bool IsEnd(const Session& session, const GenerateOptions& options, TokenId token) {
  return !options.ignore_end &&
         std::ranges::find(session.model().end_tokens(), token) != session.model().end_tokens().end();
}

}  // namespace

const char* Name(StopReason reason) {
  switch (reason) {
    case StopReason::kEndToken:
      return "end_token";
    case StopReason::kStopString:
      return "stop_string";
    case StopReason::kTokenLimit:
      return "token_limit";
    case StopReason::kCacheFull:
      return "cache_full";
    case StopReason::kCancelled:
      return "cancelled";
  }
  return "unknown";
}

Reply Generate(Session& session, const GenerateOptions& options, const TextSink& on_text, const StepControl& control) {
  if (options.max_tokens < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "the token limit is " + std::to_string(options.max_tokens) + "; expected 0 (none) or more");
  }
  Validate(options.sampler);
  const auto start = std::chrono::steady_clock::now();
  Reply reply;
  ReplyText text(session, options, on_text, reply);
  RandomSource random(options.seed);
  std::optional<Sampler> sampler;  // made with the first logits, which say how large the vocabulary is
  const size_t prompt = session.tokens().size();
  const auto next_token = [&] {
    const std::span<const float> logits = session.Logits(control);
    if (!sampler) sampler.emplace(options.sampler, static_cast<int64_t>(logits.size()));
    const std::span<const TokenId> all = session.tokens();
    return sampler->Sample(logits, {all.first(prompt), all.subspan(prompt)}, random.Coin());
  };
  const auto step = [&]() -> std::optional<StopReason> {
    if (options.max_tokens > 0 && static_cast<int64_t>(reply.tokens.size()) == options.max_tokens) {
      return StopReason::kTokenLimit;
    }
    if (control.stop && control.stop()) return StopReason::kCancelled;
    const TokenId token = next_token();
    if (reply.tokens.empty()) reply.first_seconds = SecondsSince(start);
    if (IsEnd(session, options, token)) return StopReason::kEndToken;
    if (static_cast<int64_t>(session.tokens().size()) == session.capacity()) return StopReason::kCacheFull;
    session.Push(token);
    reply.tokens.push_back(token);
    if (!text.Add(token)) return StopReason::kStopString;
    return std::nullopt;
  };
  std::optional<StopReason> reason;
  while (!reason) {
    try {
      reason = step();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kCancelled) throw;
      reason = StopReason::kCancelled;
    }
  }
  text.Finish();
  reply.reason = text.stopped() ? StopReason::kStopString : *reason;
  reply.seconds = SecondsSince(start);
  return reply;
}

}  // namespace offgraph::llm
