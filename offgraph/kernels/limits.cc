#include "offgraph/kernels/limits.h"

#include "offgraph/kernels/isa.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "offgraph/kernels/limits.cc"
#include <hwy/foreach_target.h>
// Highway's macros want to come first.
#include <hwy/aligned_allocator.h>
#include <hwy/highway.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <new>

#include "offgraph/kernels/limits_job.h"

HWY_BEFORE_NAMESPACE();
namespace offgraph::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A sum over `count` numbers, so that every byte is loaded. REQUIRES: a multiple of 64.
uint32_t SumWords(const uint32_t* HWY_RESTRICT words, size_t count) {
  const hn::CappedTag<uint32_t, 16> d;
  constexpr int kSums = 4;
  hn::Vec<decltype(d)> sums[kSums];
  for (auto& sum : sums) sum = hn::Zero(d);
  const size_t step = hn::Lanes(d);
  for (size_t i = 0; i < count; i += kSums * step) {
    for (int j = 0; j < kSums; ++j) sums[j] = hn::Add(sums[j], hn::LoadU(d, words + i + j * step));
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3]))));
}

// Fused multiply-adds in registers; returns the number of operations.
int64_t SpinFloat(int64_t rounds) {
  const hn::CappedTag<float, 16> d;
  constexpr int kSums = HWY_TARGET == HWY_SCALAR ? 6 : 12;
  volatile float source = 0.5F;
  const auto factor = hn::Set(d, source);
  hn::Vec<decltype(d)> sums[kSums];
  for (auto& sum : sums) sum = hn::Set(d, source);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (auto& sum : sums) sum = hn::MulAdd(sum, factor, factor);
  }
  auto total = sums[0];
  for (int i = 1; i < kSums; ++i) total = hn::Add(total, sums[i]);
  volatile float sink = hn::GetLane(hn::SumOfLanes(d, total));
  static_cast<void>(sink);
  return rounds * kSums * static_cast<int64_t>(hn::Lanes(d)) * 2;
}

}  // namespace HWY_NAMESPACE
}  // namespace offgraph::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace offgraph::kernels {
namespace {

HWY_EXPORT(SumWords);
HWY_EXPORT(SpinFloat);

double Seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// The best of several runs over about `budget` seconds: what disturbs a run only ever makes it slower.
// `run` does some work and returns how much.
template <class Run>
double BestRate(double budget, const Run& run) {
  double best = 0;
  const double end = Seconds() + budget;
  do {
    const double start = Seconds();
    const double work = run();
    best = std::max(best, work / (Seconds() - start));
  } while (Seconds() < end);
  return best;
}

// Operations per second of `spin(rounds)` on all threads at once.
template <class Spin>
double SpinRate(ThreadPool& threads, const Spin& spin) {
  // Pieces of about 0.1 ms, so that a thread that wakes up late costs little.
  int64_t rounds = 64;
  for (double start = 0, taken = 0; taken < 1e-4; rounds *= 2) {
    start = Seconds();
    spin(rounds);
    taken = Seconds() - start;
  }
  const size_t pieces = threads.threads() * 64;
  return BestRate(0.08, [&] {
    std::atomic<int64_t> done = 0;
    threads.ParallelFor(pieces, 1, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) done += spin(rounds);
    });
    return static_cast<double>(done.load());
  });
}

}  // namespace

double MeasureReadRate(ThreadPool& threads, size_t buffer_bytes) {
  constexpr size_t kPiece = size_t{1} << 20;
  const size_t pieces = std::max<size_t>(buffer_bytes / kPiece, 1);
  const auto buffer = hwy::AllocateAligned<uint8_t>(pieces * kPiece);
  if (buffer == nullptr) throw std::bad_alloc();
  threads.ParallelFor(pieces, 1, [&](size_t begin, size_t end) {
    std::memset(buffer.get() + begin * kPiece, 0, (end - begin) * kPiece);
  });
  std::atomic<uint32_t> sink = 0;
  return BestRate(0.1, [&] {
    threads.ParallelFor(pieces, 1, [&](size_t begin, size_t end) {
      const auto* words = reinterpret_cast<const uint32_t*>(buffer.get() + begin * kPiece);
      sink += HWY_DYNAMIC_DISPATCH(SumWords)(words, (end - begin) * kPiece / sizeof(uint32_t));
    });
    return static_cast<double>(pieces * kPiece);
  });
}

MachineLimits MeasureLimits(ThreadPool& threads, size_t buffer_bytes) {
  MachineLimits limits;
  limits.threads = threads.threads();
  limits.read_bytes_per_s = MeasureReadRate(threads, buffer_bytes);
  const DotIsa best = AvailableDotIsas().back();
  limits.int8_ops_per_s = SpinRate(threads, [best](int64_t rounds) { return SpinInt8(best, rounds); });
  limits.fp32_flops_per_s = SpinRate(threads, [](int64_t rounds) { return HWY_DYNAMIC_DISPATCH(SpinFloat)(rounds); });
  return limits;
}

}  // namespace offgraph::kernels
#endif  // HWY_ONCE
