// Session: one sequence of tokens on a model, and the cache that holds its history. Tokens only; text is generate.h.
//
// The session keeps what the sequence *is* (tokens()); how much of it the cache holds at a moment is the cache's own
// length, and the only position there is. Whatever the cache lacks is computed before logits are needed. So every
// change of the sequence is exact: rows that are still there are reused, and where the cache cannot give back an
// earlier state (a ring that has been overwritten) the tokens are computed again.
//
// Thread rule: one thread at a time per session; different sessions, of one model too, may run on different threads.
//
// Invariants:
//  1. A method that throws leaves tokens() as it was. Work that the cache had done may be lost, never its correctness.
//  2. Logits() depends on tokens() alone, bit for bit: not on chunks, undo, reuse or earlier failures (the storage
//     type and a window of the options apart).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "offgraph/llm/model.h"

namespace offgraph::llm {

// How a session's cache is made.
struct CacheOptions {
  // Tokens that the sequence may hold; 0: the context length that the program was exported for.
  int64_t capacity = 0;
  // Storage of K and V: "fp32", "fp16", "bf16", or "same", the type that the model computes them in. "same" is the
  // default because it is the one that never changes a value; fp16 halves the memory of an fp32 model.
  std::string kv_type = "same";
  // Absent: the model's own windows. Else every layer sees at most this many positions (a layer with a smaller window
  // keeps it); 0: full attention in every layer. Changes what the model computes.
  std::optional<int64_t> window = std::nullopt;
  // First positions that stay visible in layers with a window.
  int64_t sinks = 0;
  // Rows that a layer's memory starts with; it doubles from there up to the capacity.
  int64_t initial_capacity = 256;
  // Tokens of one prefill step; 0: what the program was exported for. A ring needs that many rows beyond its window.
  int64_t max_step = 0;
  // Extra ring rows, so that an undo of up to that many tokens never computes anything again.
  int64_t rewind_reserve = 0;
  // Bytes that the cache may take; 0: no limit.
  int64_t memory_limit = 0;
  // Bytes that one step may take beside the cache and the weights, an upper bound that is known before any is taken;
  // 0: no limit. A smaller max_step needs less.
  int64_t step_memory_limit = 0;
};

// What to do during a call that may take long.
struct StepControl {
  // Asked between steps and while one is prepared, on the calling thread; true ends the call with Error(kCancelled).
  // May be empty. It may look at a flag that another thread or a signal sets.
  std::function<bool()> stop{};
  // Called after each step with the tokens computed so far and in all; may be empty.
  std::function<void(int64_t done, int64_t total)> progress{};
  // Called with the logits [vocab] that follow each computed token, in order; may be empty, and then only those of the
  // last token are computed.
  std::function<void(std::span<const float> logits)> each_row{};
};

struct SessionStats {
  int64_t computed = 0;  // tokens that went through the model
  int64_t reused = 0;    // tokens of SetTokens that did not have to
};

// Bytes of K and V of a cache that is full to its capacity, and the type that they are stored in.
struct CacheSize {
  int64_t bytes = 0;
  std::string kv_type;
};
// Computes it; makes no cache. For "same", the type of K and V is taken to be that of the logits, as it is in every
// export of a Hugging Face model. Throws as Session's constructor does. REQUIRES: info.off_graph.
CacheSize SizeOfCache(const ModelInfo& info, const CacheOptions& options);

class Session {
 public:
  // Throws kInvalidArgument for options out of range.
  explicit Session(std::shared_ptr<const Model> model, const CacheOptions& options = {});
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const Model& model() const;
  const std::vector<TokenId>& tokens() const;
  int64_t capacity() const;
  // Length of the cache: tokens().size(), or less where tokens were taken back or not computed yet.
  int64_t cached() const;
  program::CacheMemory memory() const;
  // Since the session was made.
  const SessionStats& stats() const;

  // Adds tokens and computes them, in steps of at most the program's and the cache's largest.
  // Throws kOutOfRange, before anything is computed, where they do not fit the capacity; kInvalidArgument for an id
  // outside the vocabulary; kCancelled.
  void Append(std::span<const TokenId> tokens, const StepControl& control = {});
  // Adds one token that is computed when logits are wanted next: the last token of a reply may never have to be.
  // Throws as Append does.
  void Push(TokenId token);
  // Makes `tokens` the sequence. What it has in common with the present one, from the first token on, is kept.
  // Returns how many tokens were kept. REQUIRES: not empty. Throws as Append does.
  int64_t SetTokens(std::span<const TokenId> tokens, const StepControl& control = {});
  // Keeps the first `length` tokens. Throws kInvalidArgument where there are fewer.
  void Truncate(int64_t length);
  void Reset() { Truncate(0); }

  // Logits [vocab] of the token that follows tokens(). Valid until the next call that is not const.
  // Computes what the cache lacks. Throws kInvalidArgument where the sequence is empty, and as Append does.
  std::span<const float> Logits(const StepControl& control = {});

 private:
  void Compute(std::vector<TokenId> next, int64_t common, const StepControl& control);
  void Check(std::span<const TokenId> added, int64_t total) const;
  void ForgetFrom(int64_t length) noexcept;

  std::shared_ptr<const Model> model_;
  program::TokenRunner runner_;
  int64_t chunk_;
  std::vector<TokenId> tokens_;
  std::vector<float> logits_;  // of the token after tokens_; empty where they are not computed
  SessionStats stats_;
};

}  // namespace offgraph::llm
