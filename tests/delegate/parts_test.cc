// A program with two methods, each of which ExecuTorch delegated in two parts, with a kernel of its own in between.
#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "et_model.h"
#include "offgraph/delegate/caches.h"

namespace offgraph::testing {
namespace {

using executorch::aten::ScalarType;
using executorch::aten::SizesType;
using executorch::extension::Module;
using executorch::runtime::EValue;

const std::string kParts = OFFGRAPH_TEST_DATA "/programs/parts";
constexpr int64_t kWidth = 16;
constexpr int64_t kTokens = 12;

// The inputs x, and the results of both methods, each [tokens, width].
std::vector<float> Reference(const std::string& name) {
  std::ifstream file(kParts + ".safetensors", std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof(header));
  const auto begin = nlohmann::json::parse(bytes.substr(8, header)).at(name).at("data_offsets").at(0).get<size_t>();
  std::vector<float> values(kTokens * kWidth);
  std::memcpy(values.data(), bytes.data() + 8 + header + begin, values.size() * sizeof(float));
  return values;
}

class Parts {
 public:
  Parts() : module_(kParts + ".pte", Module::LoadMode::Mmap) {}

  void Load(const std::string& method) {
    EXPECT_EQ(module_.load_method(method), executorch::runtime::Error::Ok) << offgraph_error();
  }

  // Runs a method on all of x in steps of `chunk` tokens.
  std::vector<float> Run(const std::string& method, int64_t chunk) {
    std::vector<float> x = Reference("x");
    std::vector<float> y;
    for (int64_t at = 0; at < kTokens; at += chunk) {
      const int64_t count = std::min(chunk, kTokens - at);
      std::vector<int64_t> positions(static_cast<size_t>(count));
      std::iota(positions.begin(), positions.end(), at);
      const auto n = static_cast<SizesType>(count);
      const auto rows = executorch::extension::from_blob(x.data() + at * kWidth, {1, n, kWidth}, ScalarType::Float);
      const auto position = executorch::extension::from_blob(positions.data(), {n}, ScalarType::Long);
      const auto result = module_.execute(method, {EValue(rows), EValue(position)});
      if (!result.ok()) {
        ADD_FAILURE() << method << " at " << at << ": " << offgraph_error();
        return {};
      }
      const float* data = result->at(0).toTensor().const_data_ptr<float>();
      y.insert(y.end(), data, data + count * kWidth);
    }
    return y;
  }

 private:
  Module module_;
};

class PluginParts : public ::testing::Test {
 protected:
  void SetUp() override {
    delegate::DefineCache("", {.capacity = 64, .kv_dtype = delegate::KvDtype::kSame, .windows = {0}});
  }
};

TEST_F(PluginParts, AgreeWithTheReferenceInChunksOfEverySize) {
  Parts parts;
  for (const char* method : {"forward", "second"}) {
    const std::vector<float> whole = parts.Run(method, kTokens);
    EXPECT_LT(LargestDifference(whole, Reference(method)), 1e-5F) << method;
    for (int64_t chunk = 1; chunk < kTokens; ++chunk) EXPECT_EQ(parts.Run(method, chunk), whole) << method << chunk;
  }
}

// The caches of a method's parts are one cache to whoever asks; another method's are not touched.
TEST_F(PluginParts, HaveOneCacheForEachMethod) {
  Parts parts;
  const std::vector<float> forward = parts.Run("forward", 4);
  ASSERT_EQ(offgraph_name_cache("forward's"), 0) << offgraph_error();
  parts.Run("second", 5);
  EXPECT_EQ(delegate::CacheLength("forward's"), kTokens);
  EXPECT_EQ(delegate::CacheLength(""), kTokens);
  delegate::ClearCache("");
  EXPECT_EQ(delegate::CacheLength("forward's"), kTokens);
  EXPECT_EQ(delegate::CacheLength(""), 0);
  EXPECT_EQ(parts.Run("forward", 3), forward);
}

TEST_F(PluginParts, LoadRunAndDestroyOnDifferentThreads) {
  const std::vector<float> forward = Parts().Run("forward", kTokens);
  const std::vector<float> second = Parts().Run("second", kTokens);
  const auto on_thread = [](const auto& work) { std::thread(work).join(); };
  std::unique_ptr<Parts> parts;
  on_thread([&] {
    parts = std::make_unique<Parts>();
    parts->Load("forward");
    parts->Load("second");
  });
  on_thread([&] { EXPECT_EQ(parts->Run("forward", 5), forward); });
  EXPECT_EQ(parts->Run("second", 5), second);
  on_thread([&] { EXPECT_EQ(parts->Run("forward", 4), forward); });
  on_thread([&] { parts.reset(); });
}

// Programs that are loaded, run and destroyed while others run.
TEST_F(PluginParts, RunBesideEachOther) {
  const std::vector<float> forward = Parts().Run("forward", kTokens);
  const std::vector<float> second = Parts().Run("second", kTokens);
  std::atomic<bool> done = false;
  std::thread others([&] {
    while (!done) EXPECT_EQ(Parts().Run("second", 6), second);
  });
  std::thread same([&] {
    Parts parts;
    for (int64_t chunk = 1; chunk < 6; ++chunk) EXPECT_EQ(parts.Run("second", chunk), second);
  });
  Parts parts;
  for (int64_t chunk = 1; chunk < 6; ++chunk) EXPECT_EQ(parts.Run("forward", chunk), forward);
  same.join();
  done = true;
  others.join();
}

}  // namespace
}  // namespace offgraph::testing
