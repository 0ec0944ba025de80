#include "offgraph/kernels/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace offgraph::kernels {
namespace {

using Clock = std::chrono::steady_clock;

// How long a thread without work looks for some before it sleeps. Within a step of a model the next call comes sooner;
// waking a sleeper takes about 50 us.
constexpr auto kSpin = std::chrono::microseconds(500);

// How long the caller waits for the last thread before it offers its core, where that thread may be waiting for one.
constexpr auto kPatience = std::chrono::microseconds(50);

// Set while a thread runs a body, so that a body may call code that is parallel itself.
thread_local bool inside_body = false;

size_t CoresOfThisProcess() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return static_cast<size_t>(std::max(1, CPU_COUNT(&set)));
  return std::max(1U, std::thread::hardware_concurrency());
}

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins until `done()` or the time is up. Returns whether it was done.
template <typename Done>
bool SpinUntil(const Done& done, Clock::duration time) {
  const Clock::time_point end = Clock::now() + time;
  do {
    for (int i = 0; i < 32; ++i) {
      if (done()) return true;
      Pause();
    }
  } while (Clock::now() < end);
  return false;
}

}  // namespace

// One job at a time. The caller publishes it by a new odd ticket, works on it like everyone else, and closes it by the
// next even ticket when no range is left. Then it waits for the threads that are inside, and for no other: a thread
// that found no core in time is not missed. (pthreadpool waits for all of its threads in every call, which costs a time
// slice of the scheduler per call where another process holds a core.)
struct ThreadPool::Impl {
  // On one cache line, so that who sees a new ticket has the job with it.
  alignas(64) std::atomic<uint32_t> ticket = 0;  // odd: a job is open
  std::atomic<bool> stop = false;
  Function function = nullptr;
  const void* context = nullptr;
  size_t count = 0;
  size_t grain = 0;

  alignas(64) std::atomic<size_t> next = 0;      // the first index that nobody took
  alignas(64) std::atomic<uint32_t> inside = 0;  // workers that may be reading the job

  std::mutex failing;          // held while `failure` is written
  std::exception_ptr failure;  // the first thing that a body of the job threw
  std::mutex one_caller;
  std::vector<std::thread> workers;

  void Work() noexcept {
    inside_body = true;
    try {
      for (;;) {
        const size_t begin = next.fetch_add(grain, std::memory_order_relaxed);
        if (begin >= count) break;
        function(context, begin, std::min(count, begin + grain));
      }
    } catch (...) {
      const std::lock_guard lock(failing);
      if (failure == nullptr) failure = std::current_exception();
      next = count;  // nobody takes a range any more
    }
    inside_body = false;
  }

  void Loop() {
    uint32_t seen = 0;
    for (;;) {
      uint32_t now = seen;
      const auto changed = [&] { return (now = ticket.load()) != seen; };
      if (!SpinUntil(changed, kSpin)) {
        ticket.wait(seen);
        continue;
      }
      if (stop) return;
      seen = now;
      if (now % 2 == 0) continue;
      // The caller closes the job, then looks for us; we say that we are here, then look whether the job is open. One
      // of the two sees the other.
      inside.fetch_add(1);
      if (ticket.load() == now) Work();
      inside.fetch_sub(1);
    }
  }
};

ThreadPool::ThreadPool(size_t threads) : impl_(std::make_unique<Impl>()) {
  const size_t wanted = threads == 0 ? CoresOfThisProcess() : threads;
  impl_->workers.reserve(wanted - 1);
  try {
    while (impl_->workers.size() + 1 < wanted) impl_->workers.emplace_back([impl = impl_.get()] { impl->Loop(); });
  } catch (const std::system_error&) {
    // The system grants no more threads: work with those there are.
  }
}

ThreadPool::~ThreadPool() {
  impl_->stop = true;
  impl_->ticket += 2;
  impl_->ticket.notify_all();
  for (std::thread& worker : impl_->workers) worker.join();
}

size_t ThreadPool::threads() const { return impl_->workers.size() + 1; }

void ThreadPool::Run(size_t count, size_t grain, Function function, const void* context) {
  if (count == 0) return;
  Impl& impl = *impl_;
  if (count <= grain || impl.workers.empty() || inside_body) {
    for (size_t begin = 0; begin < count; begin += grain) function(context, begin, std::min(count, begin + grain));
    return;
  }
  const std::lock_guard lock(impl.one_caller);
  impl.function = function;
  impl.context = context;
  impl.count = count;
  impl.grain = grain;
  impl.next = 0;
  ++impl.ticket;
  impl.ticket.notify_all();
  impl.Work();
  ++impl.ticket;
  const auto alone = [&impl] { return impl.inside == 0; };
  while (!SpinUntil(alone, kPatience)) std::this_thread::yield();
  if (impl.failure != nullptr) std::rethrow_exception(std::exchange(impl.failure, nullptr));
}

namespace {
std::mutex default_mutex;
std::unique_ptr<ThreadPool>& DefaultSlot() {
  static std::unique_ptr<ThreadPool> pool;
  return pool;
}
}  // namespace

ThreadPool& ThreadPool::Default() {
  const std::lock_guard lock(default_mutex);
  std::unique_ptr<ThreadPool>& pool = DefaultSlot();
  if (pool == nullptr) pool = std::make_unique<ThreadPool>();
  return *pool;
}

void ThreadPool::SetDefaultThreads(size_t threads) {
  auto pool = std::make_unique<ThreadPool>(threads);
  const std::lock_guard lock(default_mutex);
  DefaultSlot() = std::move(pool);
}

}  // namespace offgraph::kernels
