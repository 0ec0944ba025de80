// Sampling: from the logits of one step to one token.
//
// Sample() is a function of its arguments alone; chance comes in as a number (`coin`), so that a caller can replay a
// choice. RandomSource makes coins that are the same on every machine.
//
// The steps, in this order, with x the logits of all tokens. Names and definitions are those of Hugging Face
// transformers (generation/logits_process.py); presence and frequency penalties and the bias are those of OpenAI's API
// as vLLM implements them (vllm/v1/sample/ops/{bias,penalties}.py).
//  1. logit bias         x_i += bias_i
//  2. repetition         x_i = x_i / r if x_i > 0 else x_i * r, once for each token of prompt or reply (Keskar et al.,
//                        2019, arXiv:1909.05858)
//  3. frequency          x_i -= f * (times that i occurs in the reply)
//  4. presence           x_i -= p * (1 if i occurs in the reply)
//  5. greedy, if temperature is 0: the largest x, of equal ones the smallest id. The coin is not used.
//  6. temperature        x_i /= t
//  7. top-k              keeps x_i >= the k-th largest; what equals it is kept as well
//  8. top-p              ordered by falling probability, keeps a token while those before it sum to less than top_p
//                        (Holtzman et al., 2019, arXiv:1904.09751)
//  9. min-p              keeps p_i >= min_p * (largest p) (Nguyen et al., 2024, arXiv:2407.01082)
// 10. the coin picks among the kept tokens, each with its share of their probability.
// Steps 7 to 9 always keep the largest.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace offgraph::llm {

struct SamplerOptions {
  double temperature = 1.0;         // >= 0; 0 is greedy
  int64_t top_k = 0;                // >= 0; 0 keeps all
  double top_p = 1.0;               // (0, 1]; 1 keeps all
  double min_p = 0.0;               // [0, 1]; 0 keeps all
  double repetition_penalty = 1.0;  // > 0; 1 is none, above 1 discourages
  double presence_penalty = 0.0;    // [-2, 2]; 0 is none
  double frequency_penalty = 0.0;   // [-2, 2]; 0 is none
  // (token, what is added to its logit). A bias of -infinity forbids a token. A token given twice counts twice.
  std::vector<std::pair<int32_t, float>> logit_bias;
};

// Throws kInvalidArgument that names the option, its value and its range. Token ids are checked by the Sampler.
void Validate(const SamplerOptions& options);

// What was said so far. Ids outside the vocabulary are not counted: a prompt may hold padding.
struct TokenHistory {
  std::span<const int32_t> prompt;
  std::span<const int32_t> reply;
};

// Holds validated options and working memory; no state that a result depends on. One thread at a time.
class Sampler {
 public:
  // Throws as Validate does, and kInvalidArgument for a bias of a token outside [0, vocab).
  Sampler(const SamplerOptions& options, int64_t vocab);

  // `logits` [vocab]; -infinity means impossible. `coin` in [0, 1).
  // Throws kInvalidArgument where a logit is NaN or +infinity (the message names the token), where all are -infinity,
  // where logits.size() differs from vocab, or where the coin is out of range.
  int32_t Sample(std::span<const float> logits, const TokenHistory& history, double coin);

  const SamplerOptions& options() const { return options_; }

 private:
  void Penalize(const TokenHistory& history);
  void KeepTopK();
  void KeepTopP();
  void KeepMinP();
  int32_t Pick(double coin) const;

  SamplerOptions options_;
  std::vector<float> logits_;          // [vocab], of the step, with bias and penalties
  std::vector<float> weights_;         // [vocab], proportional to the probability, 1 for the largest; 0: not kept
  std::vector<int32_t> reply_counts_;  // [vocab], all zero between calls
  std::vector<uint8_t> seen_;          // [vocab], all zero between calls
  std::vector<int32_t> touched_;       // tokens whose entries in these two are not zero
  std::vector<float> heap_;
  std::vector<int32_t> candidates_;
};

struct TokenLogprob {
  int32_t token;
  float logprob;  // natural logarithm, finite: never below kLowestLogprob
};

// What stands for the logarithm of a probability of 0, as in OpenAI's API, so that it can be written as JSON.
inline constexpr float kLowestLogprob = -9999.0f;

struct Logprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  // most probable first, equal ones by id; only tokens that are possible
};

// Log-probabilities log(exp(x_i) / sum exp(x)) under the model itself: `logits` [vocab] as they come, before bias,
// penalties and temperature. `top_n` alternatives, fewer where fewer are possible; the chosen one may be among them.
// Throws kInvalidArgument as Sample does, and for a chosen token outside the vocabulary or a negative top_n.
Logprobs ComputeLogprobs(std::span<const float> logits, int32_t chosen, int64_t top_n);

// Coins that are the same on every machine: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
// generators", OOPSLA 2014).
class RandomSource {
 public:
  explicit RandomSource(uint64_t seed) : state_(seed) {}

  uint64_t Next();
  // Uniform in [0, 1), a multiple of 2^-53.
  double Coin();

 private:
  uint64_t state_;
};

}  // namespace offgraph::llm
