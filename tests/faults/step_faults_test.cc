// A step that fails leaves no trace, wherever it fails: before any instruction, between the kernel calls of a region,
// at any allocation. So does a load.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mlx/scheduler.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <new>
#include <optional>
#include <stdexcept>
#include <thread>

#include "offgraph/cache/error.h"
#include "tests/faults/failing_memory.h"
#include "tests/faults/sanitized.h"
#include "tests/fixtures/fixture.h"
#include "tests/fixtures/load_program.h"

namespace offgraph::testing {
namespace {

using program::Executor;
using program::RunOptions;

enum class Fault : uint8_t { kError, kBadAlloc, kForeign, kMlxMemory, kOwnMemory };
enum class Kind : uint8_t { kAsExported, kOptimized, kRounded };

struct Subject {
  std::string name;
  Kind kind = Kind::kOptimized;
  bool in_graph = false;  // its cache is in buffers of the graph

  program::LoadOptions load_options() const {
    return {.optimize = kind != Kind::kAsExported, .exact = kind != Kind::kRounded};
  }
};
void PrintTo(const Subject& subject, std::ostream* stream) { *stream << subject.name; }

// Runs a step that fails at its n-th place, and returns whether it did: it has fewer places otherwise. `places`, where
// it is not null, becomes their number as far as the step went.
bool FailsAt(Fault fault, int64_t n, const std::function<void(const RunOptions&)>& step, int64_t* places = nullptr) {
  int64_t asked = 0;
  RunOptions options;
  std::optional<FailingMemory> memory;
  if (fault == Fault::kMlxMemory || fault == Fault::kOwnMemory) {
    memory.emplace(fault == Fault::kMlxMemory ? Memory::kMlx : Memory::kOwn, n);
  } else {
    options.probe = [&] {
      if (++asked != n) return;
      if (fault == Fault::kError) throw Error(ErrorCode::kInvalidArgument, "injected");
      if (fault == Fault::kBadAlloc) throw std::bad_alloc();
      throw std::domain_error("injected");
    };
  }
  bool failed = false;
  try {
    step(options);
  } catch (const Error&) {
    failed = true;
  } catch (const std::bad_alloc&) {  // where even the message could not be made
    failed = true;
    EXPECT_EQ(fault, Fault::kOwnMemory);
  }
  if (memory) asked = memory->asked();
  if (places != nullptr) *places = asked;
  // An allocation that has a substitute may be refused without harm; nothing else is swallowed.
  EXPECT_TRUE(failed == (asked >= n) || fault == Fault::kOwnMemory) << "place " << n;
  return failed;
}

// A sequence of tokens: a history, then a step.
class StepFaults : public ::testing::TestWithParam<std::tuple<Subject, Fault>> {
 protected:
  static constexpr int64_t kFirst = 4;
  static constexpr int64_t kHistory = 7;
  static constexpr size_t kStep = 3;

  const Subject& subject() const { return std::get<0>(GetParam()); }
  Fault fault() const { return std::get<1>(GetParam()); }

  void SetUp() override {
    const std::string folder = OFFGRAPH_TEST_DATA + std::string(subject().in_graph ? "/programs" : "/fixtures");
    fixture_ = {subject().name.substr(0, subject().name.find('.')), folder};
    ids_ = ReadReference(fixture_).ids;
    Load();
  }
  void TearDown() override {
    EXPECT_EQ(mlx::core::scheduler::n_active_tasks(), 0) << "MLX would come to wait for work that does not exist";
  }
  // A program that never ran: its first step decides how it is computed.
  void Load() {
    if (subject().in_graph) {
      in_graph_ = LoadProgram(pte::Container::Open(fixture_.folder + "/" + fixture_.name + ".pte"), "forward",
                              subject().load_options());
    } else {
      model_.emplace(fixture_, subject().load_options());
    }
  }
  std::unique_ptr<Executor> MakeExecutor() const {
    if (!subject().in_graph) return model_->MakeExecutor(64, 8);
    return std::make_unique<Executor>(in_graph_, nullptr);
  }
  std::unique_ptr<Executor> WithHistory() const {
    std::unique_ptr<Executor> executor = MakeExecutor();
    FirstStep(*executor);
    FinishHistory(*executor);
    return executor;
  }
  void FirstStep(Executor& executor) const { RunStep(executor, std::span(ids_).first(kFirst), 0); }
  void FinishHistory(Executor& executor) const {
    RunStep(executor, std::span(ids_).subspan(kFirst, kHistory - kFirst), kFirst);
  }
  // The step's rows, and those of another one after it.
  std::vector<std::string> GoOn(Executor& executor) const {
    std::vector<std::string> rows = RowBytes(RunStep(executor, std::span(ids_).subspan(kHistory, kStep), kHistory));
    const HostTensor more = RunStep(executor, std::span(ids_).subspan(kHistory + kStep, kStep), kHistory + kStep);
    for (std::string& row : RowBytes(more)) rows.push_back(std::move(row));
    return rows;
  }
  // The step that fails: other tokens, and where the cache is in the graph, over rows of the history.
  std::function<void(const RunOptions&)> OtherStep(Executor& executor) const {
    const int64_t position = subject().in_graph ? kHistory - 4 : kHistory;
    return [&executor, arguments = StepArguments(std::span(ids_).subspan(kHistory + 4, kStep), position)](
               const RunOptions& options) { executor.Run(arguments, options); };
  }

  std::vector<int64_t> ids_;

 private:
  using HostTensor = program::HostTensor;

  Fixture fixture_;
  std::optional<Model> model_;
  std::shared_ptr<const program::Program> in_graph_;
};

TEST_P(StepFaults, AFailedStepLeavesNoTrace) {
  const std::vector<std::string> expected = GoOn(*WithHistory());
  int64_t places = 0;
  ASSERT_FALSE(FailsAt(fault(), INT64_MAX, OtherStep(*WithHistory()), &places));
  ASSERT_GT(places, 3);
  std::unique_ptr<Executor> executor = WithHistory();
  const int64_t stride = fault() >= Fault::kMlxMemory && kSanitized ? Stride(places, 300) : 1;
  for (int64_t n = 1; n <= places; n += stride) {
    if (!FailsAt(fault(), n, OtherStep(*executor))) {
      // How many allocations a step makes depends a little on how fast memory that is no longer needed comes back.
      ASSERT_GE(fault(), Fault::kMlxMemory) << "place " << n << " of " << places;
      executor = WithHistory();
    }
    if (executor->store() == nullptr) continue;
    ASSERT_EQ(executor->store()->sequences().length(), kHistory);
    ASSERT_FALSE(executor->store()->sequences().step_open());
  }
  EXPECT_TRUE(GoOn(*executor) == expected);
}

// The first step ever also lays out weights and decides how a region is computed.
TEST_P(StepFaults, AFailedFirstStepChangesNoBit) {
  const std::vector<std::string> expected = GoOn(*WithHistory());
  const auto first_step = [this](Executor& executor) {
    return [&executor, arguments = StepArguments(std::span(ids_).first(kFirst), 0)](const RunOptions& options) {
      executor.Run(arguments, options);
    };
  };
  Load();
  int64_t places = 0;
  ASSERT_FALSE(FailsAt(fault(), INT64_MAX, first_step(*MakeExecutor()), &places));
  const int64_t stride = Stride(places, 60);
  for (int64_t n = 1; n <= places; n += stride) {
    Load();
    const std::unique_ptr<Executor> executor = MakeExecutor();
    if (FailsAt(fault(), n, first_step(*executor))) FirstStep(*executor);
    FinishHistory(*executor);
    ASSERT_TRUE(GoOn(*executor) == expected) << "after a failure at place " << n;
  }
}

// Steps that fail on one thread, and steps of the same program on another.
class FaultsBesideOthers : public StepFaults {};

TEST_P(FaultsBesideOthers, AFailedStepIsItsExecutorsOwn) {
  const std::vector<std::string> expected = GoOn(*WithHistory());
  std::atomic<bool> done = false;
  std::thread others([&] {
    do EXPECT_TRUE(GoOn(*WithHistory()) == expected);
    while (!done);
  });
  const std::unique_ptr<Executor> executor = WithHistory();
  for (int64_t n = 1; FailsAt(fault(), n, OtherStep(*executor)); n += 3) {
  }
  done = true;
  others.join();
}

// While a program is loaded, only memory can fail.
class LoadFaults : public StepFaults {};

TEST_P(LoadFaults, AFailedLoadCanBeRepeated) {
  const std::vector<std::string> expected = GoOn(*WithHistory());
  const auto load = [this](const RunOptions&) { Load(); };
  int64_t places = 0;
  ASSERT_FALSE(FailsAt(fault(), INT64_MAX, load, &places));
  const int64_t stride = Stride(places, 60);
  for (int64_t n = 1; n <= places; n += stride) {
    FailsAt(fault(), n, load);
    ASSERT_EQ(mlx::core::scheduler::n_active_tasks(), 0) << "place " << n;
  }
  Load();
  EXPECT_TRUE(GoOn(*WithHistory()) == expected);
}

std::vector<Subject> Subjects() {
  return {{"llama_fp32.as_exported", Kind::kAsExported},      {"llama_fp32.optimized", Kind::kOptimized},
          {"gemma3_text_fp32.optimized", Kind::kOptimized},   {"llama_bf16_4w.as_exported", Kind::kAsExported},
          {"llama_bf16_4w.rounded", Kind::kRounded},          {"ring_in_graph.as_exported", Kind::kAsExported, true},
          {"ring_in_graph.optimized", Kind::kOptimized, true}};
}

std::string NameOf(const ::testing::TestParamInfo<std::tuple<Subject, Fault>>& one) {
  constexpr const char* kFaults[] = {"_error", "_bad_alloc", "_foreign", "_mlx_memory", "_own_memory"};
  std::string name = std::get<0>(one.param).name + kFaults[static_cast<size_t>(std::get<1>(one.param))];
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, StepFaults,
                         ::testing::Combine(::testing::ValuesIn(Subjects()),
                                            ::testing::Values(Fault::kError, Fault::kBadAlloc, Fault::kForeign,
                                                              Fault::kMlxMemory, Fault::kOwnMemory)),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(All, FaultsBesideOthers,
                         ::testing::Combine(::testing::ValuesIn(Subjects()), ::testing::Values(Fault::kError)), NameOf);
INSTANTIATE_TEST_SUITE_P(All, LoadFaults,
                         ::testing::Combine(::testing::ValuesIn(Subjects()),
                                            ::testing::Values(Fault::kMlxMemory, Fault::kOwnMemory)),
                         NameOf);

}  // namespace
}  // namespace offgraph::testing
