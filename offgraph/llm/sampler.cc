#include "offgraph/llm/sampler.h"

#include <algorithm>
#include <cmath>
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

bool IsMoreLikely(const Sampler::Candidate& a, const Sampler::Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

// Proportional to the probability; 1 for the largest logit.
double Weight(float logit, float largest = 0.0f) {
  return std::exp(static_cast<double>(logit) - static_cast<double>(largest));
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

  // The largest becomes 0 first, so that no temperature makes a logit infinite that matters.
  const float largest = logits_[static_cast<size_t>(best)];
  for (float& logit : logits_) {
    logit = static_cast<float>((static_cast<double>(logit) - static_cast<double>(largest)) / options_.temperature);
  }
  SelectTopK();
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

// Fills kept_ with the candidates that are possible and pass top-k, by id.
void Sampler::SelectTopK() {
  kept_.clear();
  const auto k = static_cast<size_t>(options_.top_k);
  const float smallest = k == 0 || k >= logits_.size() ? kImpossible : KthLargest(logits_, k, &heap_);
  for (size_t i = 0; i < logits_.size(); ++i) {
    if (logits_[i] >= smallest && logits_[i] > kImpossible) kept_.push_back({logits_[i], static_cast<int32_t>(i)});
  }
}

// Orders kept_ by falling probability and cuts it off.
void Sampler::KeepTopP() {
  if (options_.top_p >= 1.0) return;
  double total = 0.0;
  for (const Candidate& candidate : kept_) total += Weight(candidate.logit);
  // A token that is kept has, with the n - 1 at most that come after it, more than (1 - top_p) of the mass: so it has
  // more than an n-th of that itself. What has less need not be sorted, which is nearly everything.
  constexpr double kSlack = 0.5;
  const double least = kSlack * (1.0 - options_.top_p) * total / static_cast<double>(kept_.size());
  const auto floor = static_cast<float>(std::log(std::max(least, std::numeric_limits<double>::min())));
  std::erase_if(kept_, [&](const Candidate& candidate) { return candidate.logit < std::min(floor, 0.0f); });
  std::sort(kept_.begin(), kept_.end(), IsMoreLikely);
  double before = 0.0;
  size_t count = 0;
  while (count < kept_.size() && (count == 0 || before < options_.top_p * total)) {
    before += Weight(kept_[count++].logit);
  }
  kept_.resize(count);
}

void Sampler::KeepMinP() {
  if (options_.min_p == 0.0) return;
  std::erase_if(kept_, [&](const Candidate& candidate) { return Weight(candidate.logit) < options_.min_p; });
}

int32_t Sampler::Pick(double coin) const {
  double total = 0.0;
  for (const Candidate& candidate : kept_) total += Weight(candidate.logit);
  const double target = coin * total;
  double sum = 0.0;
  for (const Candidate& candidate : kept_) {
    sum += Weight(candidate.logit);
    if (sum > target) return candidate.token;
  }
  return kept_.back().token;  // rounding left the target at the very end
}

Logprobs ComputeLogprobs(std::span<const float> logits, int32_t chosen, int64_t top_n) {
  if (chosen < 0 || static_cast<size_t>(chosen) >= logits.size()) {
    throw Error(ErrorCode::kInvalidArgument,
                "token " + std::to_string(chosen) + " is not in the vocabulary of " + std::to_string(logits.size()));
  }
  if (top_n < 0) throw Error(ErrorCode::kInvalidArgument, "top_n is " + std::to_string(top_n));
  const float largest = logits[static_cast<size_t>(CheckedArgmax(logits))];
  double total = 0.0;
  for (const float logit : logits) total += Weight(logit, largest);
  const double log_total = std::log(total) + static_cast<double>(largest);
  const auto logprob = [&](float logit) {
    return std::max(static_cast<float>(static_cast<double>(logit) - log_total), kLowestLogprob);
  };
  Logprobs result{{chosen, logprob(logits[static_cast<size_t>(chosen)])}, {}};
  if (top_n == 0) return result;
  const size_t count = std::min(static_cast<size_t>(top_n), logits.size());
  std::vector<float> heap;
  const float smallest = KthLargest(logits, count, &heap);
  std::vector<Sampler::Candidate> candidates;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] >= smallest && logits[i] > kImpossible) candidates.push_back({logits[i], static_cast<int32_t>(i)});
  }
  std::sort(candidates.begin(), candidates.end(), IsMoreLikely);
  candidates.resize(std::min(count, candidates.size()));
  for (const Sampler::Candidate& candidate : candidates) {
    result.top.push_back({candidate.token, logprob(candidate.logit)});
  }
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
