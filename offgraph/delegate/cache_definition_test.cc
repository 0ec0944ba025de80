#include "offgraph/delegate/cache_definition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "offgraph/cache/error.h"
#include "offgraph/cache/error_test_util.h"

namespace offgraph::delegate {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string Refusal(const std::string& json) {
  SCOPED_TRACE(json);
  return offgraph::Refusal(ErrorCode::kInvalidArgument, [&] { ParseCacheDefinition(json); });
}

// The required names, with `more` (a comma and what follows it).
std::string Json(const std::string& more) {
  return R"({"capacity": 64, "kv_dtype": "fp16", "windows": [8, 0])" + more + "}";
}

TEST(CacheDefinition, TakesTheRequiredNamesAndFillsInTheRest) {
  const CacheDefinition definition = ParseCacheDefinition(R"({"capacity": 64, "kv_dtype": "same", "windows": 0})");
  EXPECT_EQ(definition.capacity, 64);
  EXPECT_EQ(definition.kv_dtype, KvDtype::kSame);
  EXPECT_THAT(definition.windows, ElementsAre(0));
  EXPECT_EQ(definition.initial_capacity, 256);
  EXPECT_EQ(definition.sinks, 0);
  EXPECT_EQ(definition.max_step, 512);
  EXPECT_EQ(definition.rewind_reserve, 0);
}

TEST(CacheDefinition, TakesEveryName) {
  const CacheDefinition definition = ParseCacheDefinition(
      R"({"capacity": 4096, "initial_capacity": 16, "kv_dtype": "bf16", "windows": [0, 128, 0], "sinks": 4,
          "max_step": 32, "rewind_reserve": 7})");
  const CacheDefinition expected = {.capacity = 4096,
                                    .kv_dtype = KvDtype::kBFloat16,
                                    .windows = {0, 128, 0},
                                    .initial_capacity = 16,
                                    .sinks = 4,
                                    .max_step = 32,
                                    .rewind_reserve = 7};
  EXPECT_EQ(definition, expected);
}

TEST(CacheDefinition, TakesEveryType) {
  const auto dtype = [](const std::string& name) {
    return ParseCacheDefinition(R"({"capacity": 1, "windows": 0, "kv_dtype": ")" + name + "\"}").kv_dtype;
  };
  EXPECT_EQ(dtype("fp32"), KvDtype::kFloat32);
  EXPECT_EQ(dtype("fp16"), KvDtype::kFloat16);
  EXPECT_EQ(dtype("bf16"), KvDtype::kBFloat16);
  EXPECT_EQ(dtype("same"), KvDtype::kSame);
}

TEST(CacheDefinition, WhatIsNoObjectIsRefused) {
  for (const char* json : {"", "{", "nonsense", R"({"capacity": 64} tail)", "{\"capacity\": \xff}"}) {
    EXPECT_THAT(Refusal(json), HasSubstr("cache definition: no valid JSON: ")) << json;
  }
  for (const char* json : {"null", "64", "[]", "\"text\""}) EXPECT_THAT(Refusal(json), HasSubstr("a JSON object"));
  EXPECT_THAT(Refusal(std::string(100'000, '[')), HasSubstr("no valid JSON"));
}

TEST(CacheDefinition, UnknownAndRepeatedNamesAreRefusedByName) {
  EXPECT_THAT(Refusal(Json(R"(, "window": 4)")), HasSubstr(R"(unknown name "window")"));
  EXPECT_THAT(Refusal(Json(R"(, "Capacity": 4)")), HasSubstr(R"(unknown name "Capacity")"));
  EXPECT_THAT(Refusal(Json(R"(, "capacity": 65)")), HasSubstr(R"("capacity" is given twice)"));
}

TEST(CacheDefinition, MissingNamesAreRefusedByName) {
  EXPECT_THAT(Refusal(R"({"kv_dtype": "same", "windows": 0})"), HasSubstr("capacity is missing"));
  EXPECT_THAT(Refusal(R"({"capacity": 64, "windows": 0})"), HasSubstr("kv_dtype is missing"));
  EXPECT_THAT(Refusal(R"({"capacity": 64, "kv_dtype": "same"})"), HasSubstr("windows is missing"));
}

TEST(CacheDefinition, ValuesOutOfRangeAreRefusedWithTheirName) {
  EXPECT_THAT(Refusal(R"({"capacity": 0, "kv_dtype": "same", "windows": 0})"),
              HasSubstr("capacity is 0, expected at least 1"));
  EXPECT_THAT(Refusal(Json(R"(, "initial_capacity": 0)")), HasSubstr("initial_capacity is 0"));
  EXPECT_THAT(Refusal(Json(R"(, "sinks": -1)")), HasSubstr("sinks is -1, expected at least 0"));
  EXPECT_THAT(Refusal(Json(R"(, "max_step": 0)")), HasSubstr("max_step is 0"));
  EXPECT_THAT(Refusal(Json(R"(, "rewind_reserve": -5)")), HasSubstr("rewind_reserve is -5"));
  EXPECT_THAT(Refusal(Json(R"(, "sinks": 1.5)")), HasSubstr("sinks is 1.5, expected an integer"));
  EXPECT_THAT(Refusal(Json(R"(, "sinks": 4.0)")), HasSubstr("expected an integer"));
  EXPECT_THAT(Refusal(Json(R"(, "sinks": "4")")), HasSubstr("expected an integer"));
  EXPECT_THAT(Refusal(Json(R"(, "sinks": true)")), HasSubstr("expected an integer"));
  EXPECT_THAT(Refusal(Json(R"(, "sinks": null)")), HasSubstr("expected an integer"));
  EXPECT_THAT(Refusal(Json(R"(, "max_step": 9223372036854775808)")), HasSubstr("expected an integer"));
  EXPECT_THAT(Refusal(Json(R"(, "max_step": 99999999999999999999999)")), HasSubstr("expected an integer"));
}

TEST(CacheDefinition, WindowsAreZeroOrAList) {
  const auto windows = [](const std::string& value) {
    return R"({"capacity": 64, "kv_dtype": "same", "windows": )" + value + "}";
  };
  EXPECT_THAT(ParseCacheDefinition(windows("[0, 0, 0]")).windows, ElementsAre(0, 0, 0));
  EXPECT_THAT(Refusal(windows("8")), HasSubstr("windows is 8, expected 0 (full attention in all caches) or a list"));
  EXPECT_THAT(Refusal(windows("[]")), HasSubstr("expected 0 or a list"));
  EXPECT_THAT(Refusal(windows("null")), HasSubstr("expected 0 or a list"));
  EXPECT_THAT(Refusal(windows("\"full\"")), HasSubstr("expected 0 or a list"));
  EXPECT_THAT(Refusal(windows("{\"0\": 8}")), HasSubstr("expected 0 or a list"));
  EXPECT_THAT(Refusal(windows("[8, -1]")), HasSubstr("windows[1] is -1"));
  EXPECT_THAT(Refusal(windows("[8, [1]]")), HasSubstr("windows[1] is an array, expected an integer"));
  EXPECT_THAT(Refusal(windows("[8, 1.0]")), HasSubstr("windows[1] is 1.0, expected an integer"));
}

TEST(CacheDefinition, SinksNeedAWindow) {
  EXPECT_THAT(Refusal(R"({"capacity": 64, "kv_dtype": "same", "windows": [0, 0], "sinks": 4})"),
              HasSubstr("sinks is 4, expected 0: no cache has a window"));
  EXPECT_EQ(ParseCacheDefinition(Json(R"(, "sinks": 4)")).sinks, 4);
}

TEST(CacheDefinition, UnknownTypesAreRefused) {
  for (const char* value : {"\"float16\"", "\"FP16\"", "\"\"", "16", "null"}) {
    EXPECT_THAT(Refusal(std::string(R"({"capacity": 64, "windows": 0, "kv_dtype": )") + value + "}"),
                HasSubstr("kv_dtype is " + std::string(value) + ", expected \"fp32\""));
  }
}

}  // namespace
}  // namespace offgraph::delegate
