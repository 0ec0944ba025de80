#include "offgraph/llm/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "offgraph/cache/error.h"

namespace offgraph::llm {
namespace {

constexpr float kImpossible = -std::numeric_limits<float>::infinity();

void Require(bool holds, const char* name, double value, const char* range) {
  if (holds) return;
  throw Error(ErrorCode::kInvalidArgument,
              std::string(name) + " is " + std::to_string(value) + "; it must be " + range);
}

// The token with the largest logit, of equal ones the first. Throws where the logits are no logits.
int32_t CheckedArgmax(std::span<const float> logits) {
  size_t best = 0;
  bool all_numbers = true;
  for (size_t i = 0; i < logits.size(); ++i) {
    all_numbers &= logits[i] < std::numeric_limits<float>::infinity();  // false for NaN as well
    if (logits[i] > logits[best]) best = i;
  }
  if (!all_numbers) {
    const auto bad = std::find_if(logits.begin(), logits.end(), [](float x) { return !(x < HUGE_VALF); });
    throw Error(ErrorCode::kInvalidArgument, "the logit of token " + std::to_string(bad - logits.begin()) + " is " +
                                                 (std::isnan(*bad) ? "NaN" : "+infinity") +
                                                 ": the model computed something that is no probability");
  }
  if (logits.empty() || logits[best] == kImpossible) {
    throw Error(ErrorCode::kInvalidArgument, "no token is possible: all logits are -infinity");
  }
  return static_cast<int32_t>(best);
}

// What exp takes for 0: from here on its result's exponent is.
constexpr float kLowestExponent = -88.0f;

// exp(x) for x in [kLowestExponent, 0], within 2 units in the last place. In plain arithmetic, so that it is the same
// on every machine and a compiler makes as many at a time as the processor can: over a vocabulary the library's exp
// takes as long as a layer of a small model.
float Exp(float x) {
  constexpr float kLog2E = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
  const float n = (x * kLog2E + kRounder) - kRounder;
  const float r = x - n * kLn2High - n * kLn2Low;
  // Minimax polynomial on [-ln 2 / 2, ln 2 / 2] (Cephes, expf).
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  return p * std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
}

// weights[i] = exp((logits[i] - largest) / temperature): 1 for the largest. Two loops, because compilers vectorize each
// of them and not both in one.
void Weigh(std::span<const float> logits, float largest, float temperature, std::span<float> weights) {
  for (size_t i = 0; i < logits.size(); ++i) {
    const float x = (logits[i] - largest) / temperature;
    weights[i] = x > kLowestExponent ? x : kLowestExponent;
  }
  for (float& weight : weights) weight = Exp(weight);
}

double Sum(std::span<const float> values) {
  // Four chains of additions, for the sake of their latency.
  double sums[4] = {};
  const size_t whole = values.size() / 4 * 4;
  for (size_t i = 0; i < whole; i += 4) {
    for (size_t j = 0; j < 4; ++j) sums[j] += static_cast<double>(values[i + j]);
  }
  for (size_t i = whole; i < values.size(); ++i) sums[0] += static_cast<double>(values[i]);
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

void CheckVocab(std::span<const float> logits, size_t expected) {
  if (logits.size() == expected) return;
  throw Error(ErrorCode::kInvalidArgument, "there are " + std::to_string(logits.size()) +
                                               " logits for a vocabulary of " + std::to_string(expected) + " tokens");
}

// The k-th largest of `values`, which are at least k. Cheap where k is small: most values lose against the smallest of
// the heap at once.
float KthLargest(std::span<const float> values, size_t k, std::vector<float>* heap) {
  heap->assign(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(k));
  std::make_heap(heap->begin(), heap->end(), std::greater<>());
  for (const float value : values.subspan(k)) {
    if (!(value > heap->front())) continue;
    std::pop_heap(heap->begin(), heap->end(), std::greater<>());
    heap->back() = value;
    std::push_heap(heap->begin(), heap->end(), std::greater<>());
  }
  return heap->front();
}

// Most likely first, of equal ones the smallest id.
void SortByLogit(std::span<const float> logits, std::vector<int32_t>* tokens) {
  std::sort(tokens->begin(), tokens->end(), [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
}

}  // namespace

void Validate(const SamplerOptions& options) {
  const auto finite = [](double value) { return std::isfinite(value); };
  Require(finite(options.temperature) && options.temperature >= 0, "temperature", options.temperature, "0 or more");
  Require(options.top_k >= 0, "top_k", static_cast<double>(options.top_k), "0 (all tokens) or more");
  Require(options.top_p > 0 && options.top_p <= 1, "top_p", options.top_p, "above 0 and at most 1");
  Require(options.min_p >= 0 && options.min_p <= 1, "min_p", options.min_p, "from 0 to 1");
  Require(finite(options.repetition_penalty) && options.repetition_penalty > 0, "repetition_penalty",
          options.repetition_penalty, "above 0");
  const auto within = [](double value) { return value >= -2 && value <= 2; };
  Require(within(options.presence_penalty), "presence_penalty", options.presence_penalty, "from -2 to 2");
  Require(within(options.frequency_penalty), "frequency_penalty", options.frequency_penalty, "from -2 to 2");
  for (const auto& [token, bias] : options.logit_bias) {
    if (bias < HUGE_VALF) continue;
    throw Error(ErrorCode::kInvalidArgument, "the logit bias of token " + std::to_string(token) + " is " +
                                                 std::to_string(bias) + "; it must be a number, or -infinity");
  }
}

Sampler::Sampler(const SamplerOptions& options, int64_t vocab) : options_(options) {
  Validate(options);
  if (vocab <= 0 || vocab > std::numeric_limits<int32_t>::max()) {
    throw Error(ErrorCode::kInvalidArgument, "a vocabulary of " + std::to_string(vocab) + " tokens");
  }
  for (const auto& [token, bias] : options.logit_bias) {
    if (token >= 0 && token < vocab) continue;
    throw Error(ErrorCode::kInvalidArgument,
                "logit_bias names token " + std::to_string(token) + "; the vocabulary has " + std::to_string(vocab));
  }
  logits_.resize(static_cast<size_t>(vocab));
  weights_.resize(static_cast<size_t>(vocab));
  reply_counts_.resize(static_cast<size_t>(vocab));
  seen_.resize(static_cast<size_t>(vocab));
}

int32_t Sampler::Sample(std::span<const float> logits, const TokenHistory& history, double coin) {
  CheckVocab(logits, logits_.size());
  if (!(coin >= 0.0 && coin < 1.0)) {
    throw Error(ErrorCode::kInvalidArgument, "the coin is " + std::to_string(coin) + "; it must be in [0, 1)");
  }
  std::copy(logits.begin(), logits.end(), logits_.begin());
  for (const auto& [token, bias] : options_.logit_bias) logits_[static_cast<size_t>(token)] += bias;
  Penalize(history);
  const int32_t best = CheckedArgmax(logits_);
  if (options_.temperature == 0.0) return best;

  const float largest = logits_[static_cast<size_t>(best)];
  const auto temperature = static_cast<float>(
      std::clamp<double>(options_.temperature, std::numeric_limits<float>::min(), std::numeric_limits<float>::max()));
  Weigh(logits_, largest, temperature, weights_);
  KeepTopK();
  KeepTopP();
  KeepMinP();
  return Pick(coin);
}

void Sampler::Penalize(const TokenHistory& history) {
  const bool repetition = options_.repetition_penalty != 1.0;
  const bool counted = options_.presence_penalty != 0.0 || options_.frequency_penalty != 0.0;
  if (!repetition && !counted) return;
  const auto note = [&](std::span<const int32_t> tokens, bool reply) {
    for (const int32_t token : tokens) {
      if (token < 0 || static_cast<size_t>(token) >= seen_.size()) continue;
      const auto i = static_cast<size_t>(token);
      if (seen_[i] == 0) touched_.push_back(token);
      seen_[i] = 1;
      if (reply) ++reply_counts_[i];
    }
  };
  if (repetition) note(history.prompt, false);
  note(history.reply, true);
  for (const int32_t token : touched_) {
    const auto i = static_cast<size_t>(token);
    double x = logits_[i];
    x = x > 0.0 ? x / options_.repetition_penalty : x * options_.repetition_penalty;
    x -= options_.frequency_penalty * reply_counts_[i];
    if (reply_counts_[i] > 0) x -= options_.presence_penalty;
    logits_[i] = static_cast<float>(x);
    seen_[i] = 0;
    reply_counts_[i] = 0;
  }
  touched_.clear();
}

void Sampler::KeepTopK() {
  const auto k = static_cast<size_t>(options_.top_k);
  if (k == 0 || k >= logits_.size()) return;
  const float smallest = KthLargest(logits_, k, &heap_);
  for (size_t i = 0; i < logits_.size(); ++i) weights_[i] = logits_[i] >= smallest ? weights_[i] : 0.0f;
}

void Sampler::KeepTopP() {
  if (options_.top_p >= 1.0) return;
  const double total = Sum(weights_);
  // A token that is kept has, with the n - 1 at most that come after it, more than (1 - top_p) of the mass: so it has
  // more than an n-th of that itself. What has less need not be sorted, which is nearly everything.
  constexpr double kSlack = 0.5;
  const auto least = static_cast<float>(kSlack * (1.0 - options_.top_p) * total / static_cast<double>(weights_.size()));
  candidates_.clear();
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (weights_[i] > 0.0f && weights_[i] >= least) candidates_.push_back(static_cast<int32_t>(i));
  }
  SortByLogit(logits_, &candidates_);
  double before = 0.0;
  size_t count = 0;
  while (count < candidates_.size() && (count == 0 || before < options_.top_p * total)) {
    before += static_cast<double>(weights_[static_cast<size_t>(candidates_[count++])]);
  }
  candidates_.resize(count);
  heap_.clear();
  for (const int32_t token : candidates_) heap_.push_back(weights_[static_cast<size_t>(token)]);
  std::fill(weights_.begin(), weights_.end(), 0.0f);
  for (size_t i = 0; i < count; ++i) weights_[static_cast<size_t>(candidates_[i])] = heap_[i];
}

void Sampler::KeepMinP() {
  if (options_.min_p == 0.0) return;
  const auto least = static_cast<float>(options_.min_p);
  for (float& weight : weights_) weight = weight >= least ? weight : 0.0f;
}

int32_t Sampler::Pick(double coin) const {
  // Block by block first: most of the vocabulary is passed by at the speed of a sum.
  constexpr size_t kBlock = 256;
  const std::span<const float> weights = weights_;
  double target = coin * Sum(weights);
  size_t begin = 0;
  for (; begin + kBlock < weights.size(); begin += kBlock) {
    const double block = Sum(weights.subspan(begin, kBlock));
    if (target < block) break;
    target -= block;
  }
  size_t last = 0;
  for (size_t i = begin; i < weights.size(); ++i) {
    if (weights[i] == 0.0f) continue;
    target -= static_cast<double>(weights[i]);
    if (target < 0.0) return static_cast<int32_t>(i);
    last = i;
  }
  // Rounding left the target at the very end.
  while (weights[last] == 0.0f) last = last == 0 ? weights.size() - 1 : last - 1;
  return static_cast<int32_t>(last);
}

Logprobs ComputeLogprobs(std::span<const float> logits, int32_t chosen, int64_t top_n) {
  if (chosen < 0 || static_cast<size_t>(chosen) >= logits.size()) {
    throw Error(ErrorCode::kInvalidArgument,
                "token " + std::to_string(chosen) + " is not in the vocabulary of " + std::to_string(logits.size()));
  }
  if (top_n < 0) throw Error(ErrorCode::kInvalidArgument, "top_n is " + std::to_string(top_n));
  const float largest = logits[static_cast<size_t>(CheckedArgmax(logits))];
  std::vector<float> weights(logits.size());
  Weigh(logits, largest, 1.0f, weights);
  const double log_total = std::log(Sum(weights)) + static_cast<double>(largest);
  const auto logprob = [&](int32_t token) {
    const auto logit = static_cast<double>(logits[static_cast<size_t>(token)]);
    return std::max(static_cast<float>(logit - log_total), kLowestLogprob);
  };
  Logprobs result{{chosen, logprob(chosen)}, {}};
  if (top_n == 0) return result;
  const size_t count = std::min(static_cast<size_t>(top_n), logits.size());
  std::vector<float> heap;
  const float smallest = KthLargest(logits, count, &heap);
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] >= smallest && logits[i] > kImpossible) tokens.push_back(static_cast<int32_t>(i));
  }
  SortByLogit(logits, &tokens);
  tokens.resize(std::min(count, tokens.size()));
  for (const int32_t token : tokens) result.top.push_back({token, logprob(token)});
  return result;
}

uint64_t RandomSource::Next() {
  state_ += 0x9E3779B97F4A7C15;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

double RandomSource::Coin() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

}  // namespace offgraph::llm
