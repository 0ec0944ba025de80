#include "offgraph/kernels/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace offgraph::kernels {
namespace {

TEST(ThreadPoolTest, EveryIndexIsVisitedOnceInRangesNoLongerThanTheGrain) {
  for (const size_t threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const size_t count : {0, 1, 2, 7, 64, 1000}) {
      for (const size_t grain : {1, 2, 7, 64, 5000}) {
        std::vector<std::atomic<int>> visits(count);
        std::atomic<bool> in_bounds = true;
        pool.ParallelFor(count, grain, [&](size_t begin, size_t end) {
          if (begin >= end || end > count || end - begin > grain) in_bounds = false;
          for (size_t i = begin; i < end; ++i) ++visits[i];
        });
        EXPECT_TRUE(in_bounds);
        for (size_t i = 0; i < count; ++i) ASSERT_EQ(visits[i], 1) << "index " << i << " of " << count;
      }
    }
  }
}

TEST(ThreadPoolTest, CallsFromSeveralThreadsAllComplete) {
  ThreadPool pool(2);
  std::atomic<size_t> sum = 0;
  std::vector<std::thread> callers;
  callers.reserve(4);
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int repeat = 0; repeat < 200; ++repeat) {
        pool.ParallelFor(100, 3, [&](size_t begin, size_t end) { sum += end - begin; });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum, 4U * 200 * 100);
}

TEST(ThreadPoolTest, ResultsAreVisibleToTheCaller) {
  ThreadPool pool(4);
  std::vector<size_t> values(1000);
  for (size_t repeat = 1; repeat < 500; ++repeat) {
    pool.ParallelFor(values.size(), 10, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) values[i] = i * repeat;
    });
    for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], i * repeat);
  }
}

TEST(ThreadPoolTest, CallsFromInsideABodyComplete) {
  ThreadPool pool(3);
  std::atomic<size_t> sum = 0;
  pool.ParallelFor(
      20, 1, [&](size_t, size_t) { pool.ParallelFor(10, 3, [&](size_t begin, size_t end) { sum += end - begin; }); });
  EXPECT_EQ(sum, 200U);
}

// What a body throws on a worker reaches the caller, once, and the pool goes on working.
TEST(ThreadPoolTest, AThrowingBodyFailsTheCall) {
  ThreadPool pool(3);
  for (int repeat = 0; repeat < 20; ++repeat) {
    const std::thread::id caller = std::this_thread::get_id();
    std::atomic<size_t> running = 0;
    std::atomic<bool> thrown = false;
    const auto call = [&] {
      pool.ParallelFor(1000, 1, [&](size_t, size_t) {
        ++running;
        const bool worker = std::this_thread::get_id() != caller;
        while (!worker && !thrown) std::this_thread::yield();  // until a worker has thrown
        --running;
        if (worker) {
          thrown = true;
          throw std::bad_alloc();
        }
      });
    };
    EXPECT_THROW(call(), std::bad_alloc);
    EXPECT_EQ(running, 0U) << "the call ended before its bodies";
    std::atomic<size_t> sum = 0;
    pool.ParallelFor(100, 3, [&](size_t begin, size_t end) { sum += end - begin; });
    EXPECT_EQ(sum, 100U);
  }
}

TEST(ThreadPoolTest, WorkersThatSleptAreWoken) {
  ThreadPool pool(2);
  for (int repeat = 0; repeat < 5; ++repeat) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    std::atomic<int> met = 0;
    // Each of the two ranges waits for the other: only two threads can finish this.
    pool.ParallelFor(2, 1, [&](size_t, size_t) {
      ++met;
      while (met < 2) std::this_thread::yield();
    });
    EXPECT_EQ(met, 2);
  }
}

TEST(ThreadPoolTest, DefaultPoolHasTheSizeThatWasSet) {
  EXPECT_GE(ThreadPool::Default().threads(), 1U);
  ThreadPool::SetDefaultThreads(3);
  EXPECT_EQ(ThreadPool::Default().threads(), 3U);
  ThreadPool::SetDefaultThreads(0);
  EXPECT_GE(ThreadPool::Default().threads(), 1U);
}

}  // namespace
}  // namespace offgraph::kernels
