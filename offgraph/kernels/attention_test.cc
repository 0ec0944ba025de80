#include "offgraph/kernels/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "offgraph/kernels/attention_test_util.h"

namespace offgraph::kernels::test {
namespace {

std::vector<int64_t> FlatRows(int64_t count) {
  std::vector<int64_t> rows(static_cast<size_t>(count));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

// Stores all tokens, then attends with those from `first` on in one step.
void RunStep(const Shape& shape, const Sequence& sequence, Pool& pool, int64_t first, const MaskView& mask, Tensor& out,
             ThreadPool& threads) {
  const std::vector<int64_t> rows = FlatRows(sequence.length);
  const std::vector<RowRun> all = RunsOf(rows, 0, sequence.length);
  const AttentionSegment prefix{.token_offset = 0, .tokens = sequence.length, .position = 0, .writes = all};
  ASSERT_FALSE(StoreRows(pool.View(), prefix, ViewFrom(sequence.k, 0), ViewFrom(sequence.v, 0), threads).found);
  const AttentionSegment segment{
      .token_offset = 0, .tokens = sequence.length - first, .position = first, .writes = {}, .reads = all};
  AttentionOptions options = OptionsOf(shape);
  options.mask = mask;
  Attend(pool.View(), {&segment, 1}, ViewFrom(sequence.q, first), MutableViewFrom(out, first), options, threads);
}

void CheckOne(const Shape& shape, int64_t length, int64_t first, const std::string& name) {
  ThreadPool threads(2);
  std::mt19937 random(static_cast<uint32_t>(length * 131 + first));
  const Sequence sequence(shape, length, random);
  std::vector<Expected> expected;  // [length - first, n_heads]
  ForEachTarget([&](const std::string& target) {
    Pool pool(shape, length);
    Tensor out(length, shape.n_heads, shape.v_dim, shape.out_type);
    RunStep(shape, sequence, pool, first, {}, out, threads);
    for (int64_t t = first; expected.size() < static_cast<size_t>((length - first) * shape.n_heads); ++t) {
      for (int64_t h = 0; h < shape.n_heads; ++h) {
        expected.push_back(Reference(shape, sequence, pool, FlatRows(length), t, h, length));
      }
    }
    for (int64_t t = first; t < length; ++t) {
      for (int64_t h = 0; h < shape.n_heads; ++h) {
        const Expected& row = expected[static_cast<size_t>((t - first) * shape.n_heads + h)];
        for (int64_t d = 0; d < shape.v_dim; ++d) {
          ASSERT_NEAR(out.Get(t, h, d), row.out[static_cast<size_t>(d)], row.tolerance)
              << name << " on " << target << " token " << t << " head " << h << " element " << d;
        }
      }
    }
  });
}

// With factors as they are, and with factors that may be rounded to bf16.
class AttentionTest : public ::testing::TestWithParam<bool> {
 protected:
  static Shape AsParam(Shape shape) {
    shape.round_to_bf16 = GetParam();
    return shape;
  }
  static void CheckShape(const Shape& shape, int64_t length, int64_t first, const std::string& name) {
    CheckOne(AsParam(shape), length, first, name);
  }
};
INSTANTIATE_TEST_SUITE_P(Factors, AttentionTest, ::testing::Bool(),
                         [](const auto& rounded) { return std::string(rounded.param ? "Rounded" : "AsTheyAre"); });

TEST_P(AttentionTest, EveryHeadSizeAgreesWithTheDefinition) {
  for (const int64_t dim : {1, 3, 12, 16, 20, 48, 64, 80, 96, 100, 128, 256}) {
    const Shape shape = AsParam({.n_heads = 3, .n_kv_heads = 1, .k_dim = dim, .v_dim = dim});
    CheckShape(shape, 70, 69, "decode, head size " + std::to_string(dim));
    CheckShape(shape, 70, 50, "prefill, head size " + std::to_string(dim));
  }
}

TEST_P(AttentionTest, EveryMixOfTypesAgreesWithTheDefinition) {
  constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
  for (const DType in : kTypes) {
    for (const DType k : kTypes) {
      for (const DType v : kTypes) {
        for (const DType out : kTypes) {
          const Shape shape = AsParam({.n_heads = 2,
                                       .n_kv_heads = 1,
                                       .k_dim = 20,
                                       .v_dim = 36,
                                       .in_type = in,
                                       .k_type = k,
                                       .v_type = v,
                                       .out_type = out});
          CheckShape(shape, 67, 66, "decode");
          CheckShape(shape, 67, 60, "prefill");
        }
      }
    }
  }
}

TEST_P(AttentionTest, EveryVisibilityAgreesWithTheDefinition) {
  for (const bool causal : {true, false}) {
    for (const int64_t window : {0, 1, 4, 64, 65, 100}) {
      for (const int64_t sinks : {0, 1, 5, 70}) {
        if (window == 0 && sinks > 0) continue;
        for (const float soft_cap : {0.0F, 2.5F}) {
          const Shape shape = AsParam({.n_heads = 4,
                                       .n_kv_heads = 2,
                                       .causal = causal,
                                       .window = window,
                                       .sinks = sinks,
                                       .soft_cap = soft_cap});
          const std::string name = "window " + std::to_string(window) + " sinks " + std::to_string(sinks);
          CheckShape(shape, 200, 198, name);
          CheckShape(shape, 150, 70, name);
        }
      }
    }
  }
}

TEST_P(AttentionTest, EveryLengthAgreesWithTheDefinition) {
  const Shape shape = AsParam({.n_heads = 2, .n_kv_heads = 2, .k_dim = 8, .v_dim = 4});
  for (int64_t length = 1; length <= 140; ++length) {
    CheckShape(shape, length, length - 1, "one token of " + std::to_string(length));
    CheckShape(shape, length, length / 2, "half of " + std::to_string(length));
  }
}

TEST_P(AttentionTest, ManyHeadsOverOneKvHead) {
  CheckShape({.n_heads = 71, .n_kv_heads = 1}, 130, 129, "decode");
  CheckShape({.n_heads = 71, .n_kv_heads = 1}, 130, 120, "prefill");
  CheckShape({.n_heads = 7, .n_kv_heads = 7}, 130, 100, "one head each");
}

// The last query sees the last key: with values that are their position, a uniform attention gives the mean.
TEST_P(AttentionTest, CausalMaskIsLowerRight) {
  ThreadPool threads(1);
  const Shape shape = AsParam({.n_heads = 1, .n_kv_heads = 1, .k_dim = 4, .v_dim = 1});
  std::mt19937 random(1);
  Sequence sequence(shape, 9, random);
  for (int64_t t = 0; t < 9; ++t) {
    for (int64_t d = 0; d < 4; ++d) sequence.k.Set(t, 0, d, 0);
    sequence.v.Set(t, 0, 0, static_cast<double>(t));
  }
  ForEachTarget([&](const std::string& target) {
    Pool pool(shape, 9);
    Tensor out(9, 1, 1, DType::kFloat32);
    RunStep(shape, sequence, pool, 6, {}, out, threads);
    for (int64_t t = 6; t < 9; ++t) EXPECT_FLOAT_EQ(out.Get(t, 0, 0), static_cast<double>(t) / 2) << target;
  });
}

// An explicit mask [heads or 1, tokens, keys] of `type` from a table of what is added; -infinity hides.
struct Mask {
  std::vector<double> bias;
  std::vector<uint8_t> bytes;
  MaskView view;

  Mask(MaskType type, int64_t heads, int64_t tokens, int64_t keys, std::mt19937& random) {
    std::uniform_int_distribution<int> dice(0, 3);
    const size_t count = static_cast<size_t>(heads * tokens * keys);
    const DType dtype = type == MaskType::kFloat16    ? DType::kFloat16
                        : type == MaskType::kBFloat16 ? DType::kBFloat16
                                                      : DType::kFloat32;
    const size_t size = type == MaskType::kBool ? 1 : SizeOf(dtype);
    bias.resize(count);
    bytes.resize(count * size);
    for (size_t i = 0; i < count; ++i) {
      const int side = dice(random);
      bias[i] = side == 0 ? -std::numeric_limits<double>::infinity() : type == MaskType::kBool ? 0.0 : 0.5 * side;
      if (type == MaskType::kBool) {
        bytes[i] = side != 0 ? 1 : 0;
      } else {
        ToBits(dtype, bias[i], bytes.data() + i * size);
      }
    }
    view = {.data = bytes.data(),
            .type = type,
            .head_stride = heads == 1 ? 0 : tokens * keys,
            .token_stride = tokens == 1 ? 0 : keys,
            .key_stride = 1};
  }
  std::vector<double> Row(int64_t head, int64_t token, int64_t keys) const {
    const auto start = bias.begin() + head * view.head_stride + token * view.token_stride;
    return {start, start + keys};
  }
};

TEST_P(AttentionTest, ExplicitMasksAgreeWithTheDefinition) {
  ThreadPool threads(2);
  std::mt19937 random(7);
  for (const MaskType type : {MaskType::kBool, MaskType::kFloat32, MaskType::kFloat16, MaskType::kBFloat16}) {
    for (const bool causal : {true, false}) {
      for (const int64_t mask_heads : {1, 4}) {
        for (const int64_t tokens : {1, 40}) {
          const Shape shape = AsParam({.n_heads = 4, .n_kv_heads = 2, .causal = causal});
          const int64_t length = 133;
          const Sequence sequence(shape, length, random);
          const Mask mask(type, mask_heads, tokens, length, random);
          ForEachTarget([&](const std::string& target) {
            Pool pool(shape, length);
            Tensor out(length, shape.n_heads, shape.v_dim, shape.out_type);
            const int64_t first = length - tokens;
            RunStep(shape, sequence, pool, first, mask.view, out, threads);
            for (int64_t t = 0; t < tokens; ++t) {
              for (int64_t h = 0; h < shape.n_heads; ++h) {
                const Expected expected =
                    Reference(shape, sequence, pool, FlatRows(length), first + t, h, length, mask.Row(h, t, length));
                for (int64_t d = 0; d < shape.v_dim; ++d) {
                  ASSERT_NEAR(out.Get(first + t, h, d), expected.out[static_cast<size_t>(d)], expected.tolerance)
                      << target;
                }
              }
            }
          });
        }
      }
    }
  }
}

TEST_P(AttentionTest, QueryThatSeesNothingGivesZerosAndHarmsNoOther) {
  ThreadPool threads(2);
  std::mt19937 random(3);
  for (const MaskType type : {MaskType::kBool, MaskType::kFloat32}) {
    for (const int64_t tokens : {2, 20}) {
      const Shape shape = AsParam({.n_heads = 2, .n_kv_heads = 1});
      const int64_t length = 80;
      const Sequence sequence(shape, length, random);
      Mask mask(type, 1, tokens, length, random);
      for (int64_t j = 0; j < length; ++j) {
        mask.bias[static_cast<size_t>(j)] = -std::numeric_limits<double>::infinity();
        if (type == MaskType::kBool) {
          mask.bytes[static_cast<size_t>(j)] = 0;
        } else {
          ToBits(DType::kFloat32, mask.bias[static_cast<size_t>(j)], mask.bytes.data() + j * 4);
        }
      }
      ForEachTarget([&](const std::string& target) {
        Pool pool(shape, length);
        Tensor out(length, shape.n_heads, shape.v_dim, shape.out_type);
        const int64_t first = length - tokens;
        RunStep(shape, sequence, pool, first, mask.view, out, threads);
        for (int64_t h = 0; h < 2; ++h) {
          for (int64_t d = 0; d < shape.v_dim; ++d) EXPECT_EQ(out.Get(first, h, d), 0) << target;
          const Expected expected =
              Reference(shape, sequence, pool, FlatRows(length), first + 1, h, length, mask.Row(0, 1, length));
          for (int64_t d = 0; d < shape.v_dim; ++d) {
            EXPECT_NEAR(out.Get(first + 1, h, d), expected.out[static_cast<size_t>(d)], expected.tolerance) << target;
          }
        }
      });
    }
  }
}

// What a hidden row holds plays no part, NaN and infinity included, in K and in V.
TEST_P(AttentionTest, HiddenRowsMayHoldAnything) {
  ThreadPool threads(2);
  std::mt19937 random(11);
  const Shape shape = AsParam({.n_heads = 2, .n_kv_heads = 1, .window = 8});
  const int64_t length = 100;
  const Sequence clean(shape, length, random);
  for (const double poison : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    Sequence dirty = clean;
    for (const int64_t hidden : {3, 64, 80, 99}) {
      for (int64_t d = 0; d < 16; ++d) {
        dirty.k.Set(hidden, 0, d, poison);
        dirty.v.Set(hidden, 0, d, poison);
      }
    }
    ForEachTarget([&](const std::string& target) {
      for (const int64_t first : {90, 97}) {  // a prefill and a decode; tokens 89 to 98 do not see the hidden rows
        Pool clean_pool(shape, length);
        Pool dirty_pool(shape, length);
        Tensor expected(length, 2, 16, DType::kFloat32);
        Tensor out(length, 2, 16, DType::kFloat32);
        RunStep(shape, clean, clean_pool, first, {}, expected, threads);
        RunStep(shape, dirty, dirty_pool, first, {}, out, threads);
        const auto bytes = static_cast<size_t>((99 - first) * 2 * 16 * 4);
        EXPECT_EQ(std::memcmp(out.At(out.Index(first, 0, 0)), expected.At(out.Index(first, 0, 0)), bytes), 0) << target;
        EXPECT_TRUE(std::isnan(out.Get(99, 0, 0))) << target << ": a NaN that is seen must show";
      }
    });
  }
}

// Scores are fp32: sums beyond the range of fp16 are fine with fp16 inputs.
TEST_P(AttentionTest, ScoresMayExceedTheRangeOfFp16) {
  ThreadPool threads(1);
  const Shape shape = AsParam({.n_heads = 1,
                               .n_kv_heads = 1,
                               .k_dim = 64,
                               .v_dim = 16,
                               .in_type = DType::kFloat16,
                               .k_type = DType::kFloat16,
                               .v_type = DType::kFloat16,
                               .out_type = DType::kFloat16});
  std::mt19937 random(5);
  Sequence sequence(shape, 70, random);
  for (int64_t t = 0; t < 70; ++t) {
    for (int64_t d = 0; d < 64; ++d) {
      sequence.q.Set(t, 0, d, 250);
      sequence.k.Set(t, 0, d, t == 5 ? 251 : 250);
    }
  }
  ForEachTarget([&](const std::string& target) {
    for (const int64_t first : {69, 40}) {
      Pool pool(shape, 70);
      Tensor out(70, 1, 16, DType::kFloat16);
      RunStep(shape, sequence, pool, first, {}, out, threads);
      for (int64_t d = 0; d < 16; ++d) {
        const double value = sequence.v.Get(5, 0, d);
        EXPECT_NEAR(out.Get(69, 0, d), value, shape.round_to_bf16 ? std::abs(value) * 0x1p-8 : 0) << target;
      }
    }
  });
}

TEST_P(AttentionTest, HeadMajorViewsGiveTheSame) {
  ThreadPool threads(2);
  std::mt19937 random(17);
  const Shape shape = AsParam({.n_heads = 6, .n_kv_heads = 2, .k_dim = 20, .v_dim = 12});
  const int64_t length = 90;
  const Sequence sequence(shape, length, random);
  Tensor q(shape.n_heads, length, shape.k_dim, DType::kFloat32);
  for (int64_t h = 0; h < shape.n_heads; ++h) {
    for (int64_t t = 0; t < length; ++t) {
      for (int64_t d = 0; d < shape.k_dim; ++d) q.Set(h, t, d, sequence.q.Get(t, h, d));
    }
  }
  ForEachTarget([&](const std::string& target) {
    Pool pool(shape, length);
    Tensor expected(length, shape.n_heads, shape.v_dim, DType::kFloat32);
    RunStep(shape, sequence, pool, 0, {}, expected, threads);
    Tensor out(shape.n_heads, length, shape.v_dim, DType::kFloat32);
    const std::vector<RowRun> all = RunsOf(FlatRows(length), 0, length);
    const AttentionSegment segment{.token_offset = 0, .tokens = length, .position = 0, .writes = {}, .reads = all};
    Attend(pool.View(), {&segment, 1},
           {.data = q.At(0), .head_stride = length * shape.k_dim, .token_stride = shape.k_dim},
           {.data = out.At(0), .head_stride = length * shape.v_dim, .token_stride = shape.v_dim}, OptionsOf(shape),
           threads);
    for (int64_t h = 0; h < shape.n_heads; ++h) {
      for (int64_t t = 0; t < length; ++t) {
        for (int64_t d = 0; d < shape.v_dim; ++d) ASSERT_EQ(out.Get(h, t, d), expected.Get(t, h, d)) << target;
      }
    }
  });
}

TEST_P(AttentionTest, RoundedResultsAreThoseOfTheNarrowType) {
  ThreadPool threads(2);
  std::mt19937 random(5);
  constexpr int64_t kLength = 90;
  for (const DType type : {DType::kFloat16, DType::kBFloat16}) {
    const Shape shape = AsParam({.n_heads = 3, .n_kv_heads = 1, .k_dim = 20, .v_dim = 20});
    const Sequence sequence(shape, kLength, random);
    ForEachTarget([&](const std::string& target) {
      Pool pool(shape, kLength);
      Tensor wide(kLength, shape.n_heads, shape.v_dim, DType::kFloat32);
      RunStep(shape, sequence, pool, 0, {}, wide, threads);
      const std::vector<RowRun> all = RunsOf(FlatRows(kLength), 0, kLength);
      for (const int64_t first : {int64_t{0}, kLength - 1}) {
        Tensor rounded(kLength, shape.n_heads, shape.v_dim, DType::kFloat32);
        const AttentionSegment segment{.tokens = kLength - first, .position = first, .reads = all};
        MutableHeadsView view = MutableViewFrom(rounded, first);
        view.round = type;
        Attend(pool.View(), {&segment, 1}, ViewFrom(sequence.q, first), view, OptionsOf(shape), threads);
        Tensor narrow(1, 1, 1, type);
        for (int64_t i = wide.Index(first, 0, 0); i < wide.Index(kLength, 0, 0); ++i) {
          narrow.Set(0, 0, 0, FromBits(DType::kFloat32, wide.At(i)));
          ASSERT_EQ(FromBits(DType::kFloat32, rounded.At(i)), narrow.Get(0, 0, 0)) << target << " element " << i;
        }
      }
    });
  }
}

}  // namespace
}  // namespace offgraph::kernels::test
