// A session whose call fails for want of memory has the tokens that it had, and computes the same bits afterwards.
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "offgraph/cache/error.h"
#include "offgraph/llm/session.h"
#include "tests/faults/failing_memory.h"
#include "tests/faults/sanitized.h"

namespace offgraph::testing {
namespace {

using llm::Session;
using llm::TokenId;

struct Case {
  const char* name;
  std::string path;
  llm::CacheOptions options;
  size_t tokens = 6;  // of the call that fails
};
void PrintTo(const Case& one, std::ostream* stream) { *stream << one.name; }

std::vector<Case> Cases() {
  const std::string stories = OFFGRAPH_MODELS "/stories260K";
  // A long step is cut into tiles, which the kernels' threads share.
  return {{"long", stories, {.capacity = 256}, 150},
          {"flat", stories, {.capacity = 64, .initial_capacity = 4, .max_step = 4}},
          {"ring", stories, {.capacity = 64, .window = 6, .sinks = 2, .max_step = 4}},
          {"in_graph", OFFGRAPH_TEST_DATA "/programs/ring_in_graph.pte", {}}};
}

class SessionFaults : public ::testing::TestWithParam<std::tuple<Case, Memory>> {};

const std::vector<TokenId> kPrompt = {1, 30, 7, 26, 8, 2, 3, 6, 1};
const std::vector<TokenId> kMore = {6, 29, 5, 22, 9};  // two steps

TEST_P(SessionFaults, AFailedCallLeavesTheTokensAndTheirLogits) {
  const Case& setup = std::get<0>(GetParam());
  const Memory memory = std::get<1>(GetParam());
  const std::vector<TokenId> other(setup.tokens, 3);
  const auto model = llm::Model::Open(setup.path, {.with_text = false});
  const auto logits_of = [](Session& session) {
    const std::span<const float> logits = session.Logits();
    return std::vector<float>(logits.begin(), logits.end());
  };
  const auto with_prompt = [&] {
    auto session = std::make_unique<Session>(model, setup.options);
    session->Append(kPrompt);
    return session;
  };
  std::unique_ptr<Session> session = with_prompt();
  session->Append(kMore);
  const std::vector<float> expected = logits_of(*session);
  // What a session gives that computes its tokens anew. Attention inside the graph is MLX's, whose last bits depend on
  // how tokens are divided into steps; those of the off-graph cache do not.
  session = std::make_unique<Session>(model, setup.options);
  std::vector<TokenId> all = kPrompt;
  all.insert(all.end(), kMore.begin(), kMore.end());
  session->Append(all);
  const std::vector<float> expected_anew = logits_of(*session);
  if (setup.name != std::string_view("in_graph")) {
    ASSERT_TRUE(expected_anew == expected);
  }

  session = with_prompt();
  int64_t places = 0;
  {
    const FailingMemory none(memory, INT64_MAX);
    session->Append(other);
    places = none.asked();
  }
  ASSERT_GT(places, 0);
  session = with_prompt();
  const int64_t stride = Stride(places, 100);
  for (int64_t n = 1; n <= places; n += stride) {
    bool failed = false;
    try {
      const FailingMemory failing(memory, n);
      session->Append(other);
    } catch (const std::exception&) {
      failed = true;
    }
    if (!failed) session = with_prompt();
    ASSERT_EQ(session->tokens(), kPrompt);
    ASSERT_LE(session->cached(), static_cast<int64_t>(kPrompt.size()));
    const bool anew = session->cached() == 0;
    session->Append(kMore);
    ASSERT_TRUE(logits_of(*session) == (anew ? expected_anew : expected)) << "after a failure at allocation " << n;
    session->Truncate(static_cast<int64_t>(kPrompt.size()));
  }
}

INSTANTIATE_TEST_SUITE_P(All, SessionFaults,
                         ::testing::Combine(::testing::ValuesIn(Cases()),
                                            ::testing::Values(Memory::kMlx, Memory::kOwn)),
                         [](const auto& one) {
                           const char* memory = std::get<1>(one.param) == Memory::kMlx ? "_mlx" : "_own";
                           return std::string(std::get<0>(one.param).name) + memory;
                         });

}  // namespace
}  // namespace offgraph::testing
