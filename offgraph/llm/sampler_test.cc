#include "offgraph/llm/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <sstream>

#include "offgraph/cache/error.h"
#include "offgraph/llm/jinja_value.h"

namespace offgraph::llm {
namespace {

using jinja::Kind;
using jinja::Value;
using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <class Work>
std::string MessageOf(Work work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

int32_t SampleOnce(const SamplerOptions& options, const std::vector<float>& logits, double coin,
                   const TokenHistory& history = {}) {
  return Sampler(options, static_cast<int64_t>(logits.size())).Sample(logits, history, coin);
}

// The probability of each token, from coins that are spread evenly. Exact to about 2 / coins.
std::vector<double> Frequencies(const SamplerOptions& options, const std::vector<float>& logits,
                                const TokenHistory& history, int coins) {
  std::vector<double> frequencies(logits.size());
  Sampler sampler(options, static_cast<int64_t>(logits.size()));
  for (int i = 0; i < coins; ++i) {
    const int32_t token = sampler.Sample(logits, history, (i + 0.5) / coins);
    frequencies[static_cast<size_t>(token)] += 1.0 / coins;
  }
  return frequencies;
}

template <class T>
std::vector<T> Numbers(const Value& list, T absent) {
  std::vector<T> result;
  for (const Value& item : list.items()) {
    result.push_back(item.is(Kind::kNone) ? absent : static_cast<T>(item.as_double()));
  }
  return result;
}

SamplerOptions OptionsOf(const Value& dict) {
  SamplerOptions options;
  const std::map<std::string, double*> numbers = {{"temperature", &options.temperature},
                                                  {"top_p", &options.top_p},
                                                  {"min_p", &options.min_p},
                                                  {"repetition_penalty", &options.repetition_penalty},
                                                  {"presence_penalty", &options.presence_penalty},
                                                  {"frequency_penalty", &options.frequency_penalty}};
  for (const auto& [name, value] : dict.dict().entries) {
    if (const auto found = numbers.find(name.text()); found != numbers.end()) {
      *found->second = value.as_double();
    } else if (name.text() == "top_k") {
      options.top_k = value.as_int();
    } else {
      for (const Value& pair : value.items()) {
        options.logit_bias.emplace_back(static_cast<int32_t>(pair.items()[0].as_int()),
                                        static_cast<float>(pair.items()[1].as_double()));
      }
    }
  }
  return options;
}

TEST(Sampler, HasTheDistributionOfTransformers) {
  std::ifstream file(OFFGRAPH_TEST_DATA "/sampler/expected.json", std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  const Value expected = jinja::ParseJson(text.str());
  size_t cases = 0;
  for (const Value& test : expected.Find("cases")->items()) {
    SCOPED_TRACE(cases++);
    const auto logits = Numbers<float>(*test.Find("logits"), -kInfinity);
    const auto prompt = Numbers<int32_t>(*test.Find("prompt"), 0);
    const auto reply = Numbers<int32_t>(*test.Find("reply"), 0);
    constexpr int kCoins = 4000;
    const auto frequencies = Frequencies(OptionsOf(*test.Find("options")), logits, {prompt, reply}, kCoins);
    const auto probabilities = Numbers<double>(*test.Find("probabilities"), 0.0);
    for (size_t i = 0; i < logits.size(); ++i) {
      EXPECT_NEAR(frequencies[i], probabilities[i], 2.0 / kCoins) << "token " << i;
      if (probabilities[i] == 0.0) {
        EXPECT_EQ(frequencies[i], 0.0) << "token " << i;
      }
    }
    const auto logprobs = Numbers<float>(*test.Find("logprobs"), kLowestLogprob);
    for (size_t i = 0; i < logits.size(); ++i) {
      EXPECT_NEAR(ComputeLogprobs(logits, static_cast<int32_t>(i), 0).chosen.logprob, logprobs[i], 2e-5f);
    }
  }
  EXPECT_EQ(cases, 16u);
}

TEST(Sampler, GreedyTakesTheFirstOfTheLargest) {
  SamplerOptions greedy;
  greedy.temperature = 0.0;
  EXPECT_EQ(SampleOnce(greedy, {1.0f, 3.0f, 3.0f, -kInfinity}, 0.99), 1);
  EXPECT_EQ(SampleOnce(greedy, {-kInfinity, -kInfinity, -5.0f}, 0.0), 2);
  greedy.logit_bias = {{1, -kInfinity}};
  EXPECT_EQ(SampleOnce(greedy, {1.0f, 3.0f, 3.0f}, 0.0), 2);
  greedy.logit_bias = {};
  greedy.repetition_penalty = 2.0;
  const std::vector<int32_t> prompt = {1, 1, -1, 99};  // ids outside the vocabulary do not count
  EXPECT_EQ(SampleOnce(greedy, {1.0f, 3.0f, 2.0f}, 0.0, {prompt, {}}), 2);
}

TEST(Sampler, ExtremesStaySane) {
  SamplerOptions options;
  options.temperature = 5e-324;
  EXPECT_EQ(SampleOnce(options, {1.0f, 1.5f, -3e38f}, 0.999), 1);
  options.temperature = 1e300;
  EXPECT_EQ(SampleOnce(options, {-1e38f, 1e38f, -kInfinity}, 0.0), 0);
  EXPECT_EQ(SampleOnce(options, {-1e38f, 1e38f, -kInfinity}, 1.0 - 0x1p-53), 1);
  options = {};
  options.min_p = 1.0;
  EXPECT_EQ(SampleOnce(options, {1.0f, 2.0f}, 0.0), 1);
  options = {};
  options.top_p = 1e-300;
  EXPECT_EQ(SampleOnce(options, {1.0f, 2.0f}, 0.0), 1);
  options = {};
  options.top_k = 1000;
  EXPECT_EQ(SampleOnce(options, {0.0f}, 0.5), 0);
  // What equals the k-th largest stays.
  options.top_k = 2;
  const auto frequencies = Frequencies(options, {1.0f, 1.0f, 1.0f, 0.5f}, {}, 3000);
  EXPECT_NEAR(frequencies[0], 1.0 / 3, 1e-3);
  EXPECT_EQ(frequencies[3], 0.0);
}

// Steps 6 to 9 spelled out: sort everything, and walk.
std::vector<double> Reference(const SamplerOptions& options, const std::vector<float>& logits) {
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  std::vector<double> weight(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    weight[i] =
        std::exp((static_cast<double>(logits[i]) - static_cast<double>(logits[order[0]])) / options.temperature);
  }
  const auto k = static_cast<size_t>(options.top_k);
  if (k > 0 && k < order.size()) {
    const float smallest = logits[order[k - 1]];
    for (size_t i = 0; i < logits.size(); ++i) weight[i] = logits[i] < smallest ? 0.0 : weight[i];
  }
  const double total = std::accumulate(weight.begin(), weight.end(), 0.0);
  double before = 0.0;
  for (const size_t i : order) {
    const double own = weight[i];
    if (i != order[0] && (before >= options.top_p * total || own < options.min_p)) weight[i] = 0.0;
    before += own;
  }
  const double kept = std::accumulate(weight.begin(), weight.end(), 0.0);
  for (double& w : weight) w /= kept;
  return weight;
}

TEST(Sampler, AgreesWithAReferenceOnRandomLogits) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::uniform_real_distribution<double> uniform(0.01, 1.0);
  for (int round = 0; round < 100; ++round) {
    const size_t vocab = 1 + random() % 300;
    std::vector<float> logits(vocab);
    // Rounded, so that equal logits occur.
    for (float& logit : logits) logit = std::round(normal(random) * 8.0f) / 8.0f;
    SamplerOptions options;
    options.temperature = uniform(random) * 3.0;
    if (round % 2 == 1) options.top_k = static_cast<int64_t>(random() % (vocab + 5));
    if (round % 3 == 1) options.min_p = uniform(random) * 0.2;
    constexpr int kCoins = 1000;
    const auto expected = Reference(options, logits);
    const auto frequencies = Frequencies(options, logits, {}, kCoins);
    for (size_t i = 0; i < vocab; ++i) ASSERT_NEAR(frequencies[i], expected[i], 2.0 / kCoins) << round;
  }
  // With top-p the order of equal logits matters: they are distinct here.
  for (int round = 0; round < 100; ++round) {
    const size_t vocab = 1 + random() % 300;
    std::vector<float> logits(vocab);
    for (float& logit : logits) logit = normal(random);
    SamplerOptions options;
    options.top_p = uniform(random);
    options.temperature = uniform(random) * 3.0;
    constexpr int kCoins = 1000;
    const auto expected = Reference(options, logits);
    const auto frequencies = Frequencies(options, logits, {}, kCoins);
    for (size_t i = 0; i < vocab; ++i) ASSERT_NEAR(frequencies[i], expected[i], 2.0 / kCoins) << round;
  }
}

TEST(Sampler, KeepsNoStateBetweenCalls) {
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  std::vector<float> logits(500);
  for (float& logit : logits) logit = normal(random);
  SamplerOptions options;
  options.repetition_penalty = 1.2;
  options.frequency_penalty = 0.5;
  options.top_p = 0.9;
  const std::vector<int32_t> prompt = {1, 2, 3, 499}, reply = {4, 4, 2};
  Sampler used(options, 500);
  for (int i = 0; i < 200; ++i) {
    const double coin = (i + 0.5) / 200;
    ASSERT_EQ(used.Sample(logits, {prompt, reply}, coin), SampleOnce(options, logits, coin, {prompt, reply}));
    ASSERT_EQ(used.Sample(logits, {}, coin), SampleOnce(options, logits, coin));
  }
}

TEST(Sampler, BadLogitsAreNamed) {
  for (const double temperature : {0.0, 1.0}) {
    SamplerOptions options;
    options.temperature = temperature;
    EXPECT_THAT(MessageOf([&] { SampleOnce(options, {1.0f, kNan, 2.0f}, 0.0); }), HasSubstr("token 1 is NaN"));
    EXPECT_THAT(MessageOf([&] { SampleOnce(options, {kNan, 2.0f}, 0.0); }), HasSubstr("token 0 is NaN"));
    EXPECT_THAT(MessageOf([&] { SampleOnce(options, {1.0f, 2.0f, kInfinity}, 0.0); }), HasSubstr("token 2 is +inf"));
    EXPECT_THAT(MessageOf([&] { SampleOnce(options, {-kInfinity, -kInfinity}, 0.0); }), HasSubstr("all logits"));
  }
  EXPECT_THAT(MessageOf([&] { Sampler({}, 3).Sample(std::vector<float>{1.0f}, {}, 0.0); }), HasSubstr("vocabulary"));
  EXPECT_THAT(MessageOf([&] { SampleOnce({}, {1.0f}, 1.0); }), HasSubstr("coin"));
  EXPECT_THAT(MessageOf([&] { SampleOnce({}, {1.0f}, std::nan("")); }), HasSubstr("coin"));
}

TEST(Sampler, OptionsAreValidated) {
  const double nan = std::nan("");
  const auto refused = [](const char* name, double SamplerOptions::*field, std::initializer_list<double> values) {
    for (const double value : values) {
      SamplerOptions options;
      options.*field = value;
      EXPECT_THAT(MessageOf([&] { Validate(options); }), HasSubstr(name)) << value;
    }
  };
  refused("temperature", &SamplerOptions::temperature, {-0.1, nan, HUGE_VAL});
  refused("top_p", &SamplerOptions::top_p, {0.0, -1.0, 1.01, nan});
  refused("min_p", &SamplerOptions::min_p, {-0.1, 1.1, nan});
  refused("repetition_penalty", &SamplerOptions::repetition_penalty, {0.0, -1.0, nan, HUGE_VAL});
  refused("presence_penalty", &SamplerOptions::presence_penalty, {-2.1, 2.1, nan});
  refused("frequency_penalty", &SamplerOptions::frequency_penalty, {-2.1, 2.1, nan});
  SamplerOptions options;
  options.top_k = -1;
  EXPECT_THAT(MessageOf([&] { Validate(options); }), HasSubstr("top_k"));
  options = {};
  options.logit_bias = {{3, kNan}};
  EXPECT_THAT(MessageOf([&] { Validate(options); }), HasSubstr("token 3"));
  options.logit_bias = {{10, 1.0f}};
  EXPECT_THAT(MessageOf([&] { Sampler(options, 10); }), HasSubstr("token 10"));
  options.logit_bias = {{-1, 1.0f}};
  EXPECT_THAT(MessageOf([&] { Sampler(options, 10); }), HasSubstr("token -1"));
}

TEST(Logprobs, AreFiniteAndOrdered) {
  const std::vector<float> logits = {1.0f, -kInfinity, 2.0f, 1.0f, -kInfinity};
  const Logprobs result = ComputeLogprobs(logits, 1, 5);
  EXPECT_EQ(result.chosen.token, 1);
  EXPECT_EQ(result.chosen.logprob, kLowestLogprob);
  ASSERT_EQ(result.top.size(), 3u);
  EXPECT_EQ(result.top[0].token, 2);
  EXPECT_EQ(result.top[1].token, 0);
  EXPECT_EQ(result.top[2].token, 3);
  double sum = 0.0;
  for (const TokenLogprob& entry : result.top) sum += std::exp(static_cast<double>(entry.logprob));
  EXPECT_NEAR(sum, 1.0, 1e-6);
  const Logprobs certain = ComputeLogprobs(std::vector<float>{-kInfinity, 3e38f}, 1, 5);
  EXPECT_EQ(certain.chosen.logprob, 0.0f);
  EXPECT_EQ(certain.top.size(), 1u);
  // Of equal ones the first ids are listed.
  const Logprobs equal = ComputeLogprobs(std::vector<float>(10, 0.5f), 9, 2);
  ASSERT_EQ(equal.top.size(), 2u);
  EXPECT_EQ(equal.top[1].token, 1);
  EXPECT_THAT(MessageOf([&] { ComputeLogprobs(logits, 5, 1); }), HasSubstr("token 5"));
  EXPECT_THAT(MessageOf([&] { ComputeLogprobs(logits, 0, -1); }), HasSubstr("top_n"));
  EXPECT_THAT(MessageOf([&] { ComputeLogprobs(std::vector<float>{kNan}, 0, 1); }), HasSubstr("NaN"));
}

TEST(RandomSource, IsSplitMix64) {
  // The generator's published first outputs for the seed 1234567.
  RandomSource random(1234567);
  EXPECT_EQ(random.Next(), 6457827717110365317u);
  EXPECT_EQ(random.Next(), 3203168211198807973u);
  EXPECT_EQ(random.Next(), 9817491932198370423u);
}

TEST(RandomSource, CoinsAreUniform) {
  RandomSource random(42), again(42), other(43);
  constexpr int kBins = 16, kCoins = 160000;
  std::vector<int> bins(kBins);
  bool differs = false;
  for (int i = 0; i < kCoins; ++i) {
    const double coin = random.Coin();
    ASSERT_GE(coin, 0.0);
    ASSERT_LT(coin, 1.0);
    ASSERT_EQ(coin, again.Coin());
    differs |= coin != other.Coin();
    ++bins[static_cast<size_t>(coin * kBins)];
  }
  EXPECT_TRUE(differs);
  // Chi-squared with 15 degrees of freedom; 37.7 is exceeded once in a thousand, and the seed is fixed.
  double chi = 0.0;
  constexpr double kExpected = kCoins / kBins;
  for (const int count : bins) chi += (count - kExpected) * (count - kExpected) / kExpected;
  EXPECT_LT(chi, 37.7);
}

}  // namespace
}  // namespace offgraph::llm
