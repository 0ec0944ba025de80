// What one open step of a KvStore shares with the kernels that run in it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "offgraph/cache/step_plan.h"
#include "offgraph/kernels/attention.h"

namespace offgraph::bytes {

// A layer's plan as the kernels want it. The segments' spans point into `runs`.
struct KernelPlan {
  explicit KernelPlan(const cache::LayerPlan& plan) : window(plan.window), sinks(plan.sinks) {
    for (const cache::SegmentPlan& segment : plan.segments) {
      runs.push_back({Convert(segment.writes), Convert(segment.reads)});
    }
    for (size_t i = 0; i < runs.size(); ++i) {
      const cache::SegmentPlan& segment = plan.segments[i];
      segments.push_back({.token_offset = segment.token_offset,
                          .tokens = segment.tokens,
                          .position = segment.position,
                          .writes = runs[i].first,
                          .reads = runs[i].second});
    }
  }
  KernelPlan(const KernelPlan&) = delete;
  KernelPlan& operator=(const KernelPlan&) = delete;

  int64_t window;
  int64_t sinks;
  std::vector<std::pair<std::vector<kernels::RowRun>, std::vector<kernels::RowRun>>> runs;
  std::vector<kernels::AttentionSegment> segments;

 private:
  static std::vector<kernels::RowRun> Convert(const std::vector<cache::Run>& from) {
    std::vector<kernels::RowRun> to;
    to.reserve(from.size());
    for (const cache::Run& run : from) to.push_back({run.row, run.count, run.position});
    return to;
  }
};

class KvStep {
 public:
  explicit KvStep(std::shared_ptr<const cache::StepPlan> plan) : plan_(std::move(plan)) {}

  const cache::StepPlan& plan() const { return *plan_; }
  const std::shared_ptr<const cache::StepPlan>& shared_plan() const { return plan_; }

  // The plan of a layer; layers of equal configuration share one.
  std::shared_ptr<const KernelPlan> PlanOf(int64_t layer) {
    const cache::LayerPlan* plan = &plan_->layer(layer);
    std::shared_ptr<const KernelPlan>& slot = kernel_plans_[plan];
    if (slot == nullptr) slot = std::make_shared<const KernelPlan>(*plan);
    return slot;
  }

  // False once the step was committed or abandoned: its rows are no longer anybody's to write.
  bool open() const { return open_; }
  // Waits for work that is under way.
  void Close() {
    const std::lock_guard lock(work_);
    open_ = false;
  }

  // Announces work that must be done before the step is committed.
  void Expect() { ++expected_; }
  int64_t unfinished() const { return expected_ - done_; }
  // Does announced work, on any thread. Work that throws is not done: the step can then only be abandoned. Returns
  // false, with nothing done, where the step has ended: memory that the work would touch may be gone.
  template <class Work>
  bool Do(const Work& work) {
    const std::lock_guard lock(work_);
    if (!open_) return false;
    work();
    ++done_;
    return true;
  }

  // Keeps the first fault that is reported. From any thread.
  void Report(std::string fault) {
    const std::lock_guard lock(mutex_);
    if (!fault_) fault_ = std::move(fault);
  }
  std::optional<std::string> fault() const {
    const std::lock_guard lock(mutex_);
    return fault_;
  }

 private:
  std::shared_ptr<const cache::StepPlan> plan_;
  std::unordered_map<const cache::LayerPlan*, std::shared_ptr<const KernelPlan>> kernel_plans_;
  std::atomic<bool> open_ = true;
  std::atomic<int64_t> expected_ = 0;
  std::atomic<int64_t> done_ = 0;
  std::mutex work_;
  mutable std::mutex mutex_;
  std::optional<std::string> fault_;
};

}  // namespace offgraph::bytes
