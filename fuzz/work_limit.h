// Bounds the work that one input may cause: processor time, not time on the clock, which a busy machine stretches.
#pragma once

#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>

namespace offgraph::fuzz {

// Ends the process, as a finding, where more than `seconds` of processor time pass in its scope.
class WorkLimit {
 public:
  explicit WorkLimit(double seconds) : end_(Used() + seconds) {}
  ~WorkLimit() {
    if (Used() <= end_) return;
    std::fputs("the input took too much processor time\n", stderr);
    std::abort();
  }
  WorkLimit(const WorkLimit&) = delete;
  WorkLimit& operator=(const WorkLimit&) = delete;

 private:
  static double Used() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
    };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
  }

  double end_;
};

}  // namespace offgraph::fuzz
