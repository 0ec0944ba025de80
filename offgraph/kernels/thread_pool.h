// The threads that kernels run on.
//
// A thread without work looks for some for half a millisecond, then sleeps. A call waits for the ranges only, not for
// threads: where other processes hold the cores, the caller does the work alone.
//
// Thread rule: ParallelFor may be called from any thread; concurrent calls run one after the other. A call from inside
// a body runs on the calling thread alone.
#pragma once

#include <cstddef>
#include <memory>

namespace offgraph::kernels {

class ThreadPool {
 public:
  // `threads` counts the calling thread; 0 means the cores that this process may use (its affinity mask). Where the
  // system grants fewer threads, there are fewer.
  explicit ThreadPool(size_t threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  size_t threads() const;

  // Calls body(begin, end) for disjoint ranges that cover [0, count), each at most `grain` long, on up to threads()
  // threads, and returns when all are done. Which thread runs which range is not fixed: results must not depend on it.
  // Throws the first thing that a body throws, on whichever thread (memory for its scratch may be refused), once no
  // body runs any more; ranges that nobody had taken by then are left out. REQUIRES: grain > 0.
  template <typename Body>
  void ParallelFor(size_t count, size_t grain, const Body& body) {
    Run(
        count, grain,
        [](const void* context, size_t begin, size_t end) { (*static_cast<const Body*>(context))(begin, end); }, &body);
  }

  // The pool that all kernels of the process use unless they are handed another. Made at the first use.
  static ThreadPool& Default();
  // Replaces the default pool's size. Call it before work starts: running kernels must not be using the pool.
  static void SetDefaultThreads(size_t threads);

 private:
  using Function = void (*)(const void* context, size_t begin, size_t end);
  void Run(size_t count, size_t grain, Function function, const void* context);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace offgraph::kernels
