// The promise of attention.h: a query's bits depend on the query, on what it sees and on where that is, alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "offgraph/kernels/attention.h"
#include "offgraph/kernels/attention_test_util.h"

namespace offgraph::kernels::test {
namespace {

// Where a sequence's positions lie in the pool.
enum class Layout { kFlat, kRing, kPages };
constexpr Layout kLayouts[] = {Layout::kFlat, Layout::kRing, Layout::kPages};

class Placement {
 public:
  // `base` is the first row of the pool that belongs to the sequence. A ring keeps the sinks, then the last `ring`
  // rows.
  Placement(Layout layout, const Shape& shape, int64_t length, int64_t largest_step, int64_t base, std::mt19937& random)
      : row_of_(static_cast<size_t>(length)) {
    if (layout == Layout::kRing && shape.window > 0) {
      ring_ = shape.window + largest_step - 1;
      sinks_ = shape.sinks;
      for (int64_t p = 0; p < length; ++p) Row(p) = base + (p < sinks_ ? p : sinks_ + (p - sinks_) % ring_);
    } else if (layout == Layout::kPages) {
      constexpr int64_t kPage = 16;
      std::vector<int64_t> pages(static_cast<size_t>((length + kPage - 1) / kPage));
      std::iota(pages.begin(), pages.end(), 0);
      std::shuffle(pages.begin(), pages.end(), random);
      for (int64_t p = 0; p < length; ++p) Row(p) = base + pages[static_cast<size_t>(p / kPage)] * kPage + p % kPage;
    } else {
      for (int64_t p = 0; p < length; ++p) Row(p) = base + p;
    }
  }

  std::vector<RowRun> Writes(int64_t begin, int64_t end) const { return RunsOf(row_of_, begin, end); }
  // What lies in the pool and may be seen by [begin, end): all that a ring still holds.
  std::vector<RowRun> Reads(int64_t begin, int64_t end, int64_t window) const {
    if (ring_ == 0) return RunsOf(row_of_, 0, end);
    const int64_t oldest = std::max<int64_t>(0, begin - window + 1);
    std::vector<RowRun> runs = RunsOf(row_of_, 0, std::min({sinks_, oldest, end}));
    for (const RowRun& run : RunsOf(row_of_, std::min(oldest, end), end)) runs.push_back(run);
    return runs;
  }

 private:
  int64_t& Row(int64_t p) { return row_of_[static_cast<size_t>(p)]; }
  std::vector<int64_t> row_of_;
  int64_t ring_ = 0;
  int64_t sinks_ = 0;
};

// A sequence under way in a pool that others may share.
struct Member {
  const Sequence* sequence;
  Placement placement;
  int64_t at = 0;
  Tensor out;
};

// Takes steps until all members are through: `next` says how many tokens a member adds (0: it sits this one out).
template <class Next>
void Drive(const Shape& shape, Pool& pool, std::vector<Member>& members, ThreadPool& threads, const Next& next) {
  for (;;) {
    std::vector<std::vector<RowRun>> runs;
    runs.reserve(members.size() * 2);
    std::vector<AttentionSegment> segments;
    std::vector<Member*> owners;
    int64_t tokens = 0;
    bool unfinished = false;
    for (Member& member : members) {
      const int64_t count = std::min(next(member), member.sequence->length - member.at);
      unfinished = unfinished || member.at < member.sequence->length;
      if (count <= 0) continue;
      const int64_t end = member.at + count;
      runs.push_back(member.placement.Writes(member.at, end));
      runs.push_back(member.placement.Reads(member.at, end, shape.window));
      segments.push_back({.token_offset = tokens,
                          .tokens = count,
                          .position = member.at,
                          .writes = runs[runs.size() - 2],
                          .reads = runs.back()});
      owners.push_back(&member);
      tokens += count;
    }
    if (!unfinished) return;
    if (tokens == 0) continue;
    Tensor q(tokens, shape.n_heads, shape.k_dim, shape.in_type);
    Tensor out(tokens, shape.n_heads, shape.v_dim, shape.out_type);
    const auto q_row = static_cast<size_t>(shape.n_heads * shape.k_dim) * SizeOf(shape.in_type);
    const auto out_row = static_cast<size_t>(shape.n_heads * shape.v_dim) * SizeOf(shape.out_type);
    for (size_t i = 0; i < segments.size(); ++i) {
      const AttentionSegment& segment = segments[i];
      const Sequence& sequence = *owners[i]->sequence;
      std::memcpy(q.At(q.Index(segment.token_offset, 0, 0)), sequence.q.At(sequence.q.Index(segment.position, 0, 0)),
                  q_row * static_cast<size_t>(segment.tokens));
      AttentionSegment store = segment;
      store.token_offset = segment.position;
      ASSERT_FALSE(StoreRows(pool.View(), store, ViewFrom(sequence.k, 0), ViewFrom(sequence.v, 0), threads).found);
    }
    Attend(pool.View(), segments, ViewFrom(q, 0), MutableViewFrom(out, 0), OptionsOf(shape), threads);
    for (size_t i = 0; i < segments.size(); ++i) {
      Member& member = *owners[i];
      std::memcpy(member.out.At(member.out.Index(segments[i].position, 0, 0)),
                  out.At(out.Index(segments[i].token_offset, 0, 0)), out_row * static_cast<size_t>(segments[i].tokens));
      member.at += segments[i].tokens;
    }
  }
}

std::vector<Shape> Shapes() {
  return {
      {.n_heads = 9, .n_kv_heads = 3, .k_dim = 64, .v_dim = 64, .k_type = DType::kFloat16, .v_type = DType::kFloat16},
      {.n_heads = 4, .n_kv_heads = 4, .k_dim = 20, .v_dim = 12, .out_type = DType::kBFloat16, .window = 33},
      {.n_heads = 6, .n_kv_heads = 1, .k_dim = 80, .v_dim = 100, .k_type = DType::kBFloat16, .window = 70, .sinks = 5},
      {.n_heads = 4, .n_kv_heads = 2, .k_dim = 16, .v_dim = 16, .window = 4, .sinks = 2, .soft_cap = 5},
      {.n_heads = 25, .n_kv_heads = 1, .k_dim = 12, .v_dim = 16},
  };
}

TEST(AttentionBitsTest, ChunksLayoutsThreadsAndNeighboursChangeNothing) {
  constexpr int64_t kLargestStep = 140;
  std::mt19937 random(2024);
  ForEachTarget([&](const std::string& target) {
    for (Shape shape : Shapes()) {
      for (const bool round : {false, true}) {
        shape.round_to_bf16 = round;
        std::vector<Sequence> sequences;
        for (const int64_t length : {150, 75, 130}) sequences.emplace_back(shape, length, random);
        const auto member = [&](const Sequence& sequence, Layout layout, int64_t base) {
          return Member{.sequence = &sequence,
                        .placement = Placement(layout, shape, sequence.length, kLargestStep, base, random),
                        .out = Tensor(sequence.length, shape.n_heads, shape.v_dim, shape.out_type)};
        };
        // Alone, token by token, flat, on one thread.
        ThreadPool one(1);
        std::vector<Member> alone;
        for (const Sequence& sequence : sequences) {
          std::vector<Member> single;
          single.push_back(member(sequence, Layout::kFlat, 0));
          Pool pool(shape, sequence.length);
          Drive(shape, pool, single, one, [](const Member&) { return int64_t{1}; });
          alone.push_back(std::move(single.front()));
        }
        for (int trial = 0; trial < 9; ++trial) {
          const Layout layout = kLayouts[trial % 3];
          const auto n_threads = 1 + static_cast<size_t>(trial) / 3;
          const int64_t longest = std::array<int64_t, 3>{3, 70, kLargestStep}[random() % 3];
          ThreadPool threads(n_threads);
          std::vector<Member> together;
          int64_t rows = 0;
          for (const Sequence& sequence : sequences) {
            together.push_back(member(sequence, layout, rows));
            rows += (sequence.length + 15) / 16 * 16 + shape.window + kLargestStep;
          }
          Pool pool(shape, rows);
          std::uniform_int_distribution<int64_t> chunk(0, longest);
          Drive(shape, pool, together, threads, [&](const Member&) { return chunk(random); });
          for (size_t i = 0; i < together.size(); ++i) {
            const auto bytes =
                static_cast<size_t>(sequences[i].length * shape.n_heads * shape.v_dim) * SizeOf(shape.out_type);
            ASSERT_EQ(std::memcmp(together[i].out.At(0), alone[i].out.At(0), bytes), 0)
                << target << ", sequence " << i << ", layout " << static_cast<int>(layout) << ", steps up to "
                << longest << ", " << n_threads << " threads";
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace offgraph::kernels::test
