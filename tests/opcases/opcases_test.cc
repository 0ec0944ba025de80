// Runs ExecuTorch's own op tests: programs of one op or a small pattern that its exporter exported, with inputs,
// expected outputs and tolerances. A few lie in tests/data; all of them run where the shared folder has them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <ostream>
#include <random>
#include <sstream>

#include "offgraph/bytes/kv_store.h"
#include "offgraph/cache/error.h"
#include "offgraph/program/executor.h"
#include "tests/fixtures/load_program.h"
#include "tests/opcases/tensor_file.h"

namespace offgraph::testing {
namespace {

namespace fs = std::filesystem;
using program::Argument;
using program::HostTensor;

struct OpCase {
  fs::path folder;
  std::string name() const { return folder.filename().string(); }
};

void PrintTo(const OpCase& op_case, std::ostream* stream) { *stream << op_case.folder.string(); }

std::vector<OpCase> FindCases() {
  std::vector<OpCase> cases;
  for (const char* root : {OFFGRAPH_TEST_DATA "/opcases", OFFGRAPH_SHARED "/opcases"}) {
    if (!fs::is_directory(root)) continue;
    for (const auto& entry : fs::directory_iterator(root)) {
      const auto same = [&](const OpCase& other) { return other.name() == entry.path().filename(); };
      if (entry.is_directory() && std::none_of(cases.begin(), cases.end(), same)) cases.push_back({entry.path()});
    }
  }
  std::sort(cases.begin(), cases.end(), [](const OpCase& a, const OpCase& b) { return a.name() < b.name(); });
  return cases;
}

// "capacity,layers,heads,head size[,type]"
std::shared_ptr<bytes::KvStore> MakeStore(const nlohmann::json& setting) {
  if (!setting.is_string()) return nullptr;
  std::vector<int64_t> numbers;
  std::istringstream text(setting.get<std::string>());
  for (std::string part; std::getline(text, part, ',');) numbers.push_back(std::stoll(part));
  bytes::KvStoreConfig config;
  config.cache.capacity = numbers.at(0);
  config.cache.n_layers = numbers.at(1);
  config.cache.layers = {cache::LayerConfig{}};
  const int64_t type = numbers.size() > 4 ? numbers[4] : -1;
  config.k_type = config.v_type = type == static_cast<int64_t>(program::ScalarType::kFloat)  ? bytes::KvType::kFloat32
                                  : type == static_cast<int64_t>(program::ScalarType::kHalf) ? bytes::KvType::kFloat16
                                                                                             : bytes::KvType::kSame;
  return std::make_shared<bytes::KvStore>(config);
}

// |actual - expected| <= atol + rtol |expected|, as torch.allclose; NaN where NaN is expected.
void ExpectClose(const HostTensor& expected, const Argument& result, double rtol, double atol) {
  const auto* actual = std::get_if<HostTensor>(&result);
  ASSERT_NE(actual, nullptr) << "a scalar where a tensor is expected";
  ASSERT_EQ(actual->type, expected.type);
  ASSERT_EQ(actual->shape, expected.shape);
  const std::vector<double> want = ToDoubles(expected);
  const std::vector<double> got = ToDoubles(*actual);
  size_t wrong = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const bool same = want[i] == got[i] || (std::isnan(want[i]) && std::isnan(got[i])) ||
                      std::abs(want[i] - got[i]) <= atol + rtol * std::abs(want[i]);
    if (!same && ++wrong <= 5) ADD_FAILURE() << "element " << i << ": expected " << want[i] << ", got " << got[i];
  }
  EXPECT_EQ(wrong, 0U) << "of " << want.size();
}

// The method's payload, and the arguments for it.
struct Loaded {
  std::shared_ptr<const pte::Container> container;
  nlohmann::json setting;
  std::vector<Argument> arguments;
};

Loaded ReadCase(const fs::path& folder) {
  Loaded loaded;
  loaded.setting = nlohmann::json::parse(std::ifstream(folder / "case.json"));
  loaded.container = pte::Container::Open(folder / "model.pte");
  for (HostTensor& tensor : ReadTensorFile(folder / "input.bin")) loaded.arguments.emplace_back(std::move(tensor));
  return loaded;
}

constexpr int kDamagedRounds = 20;

class OpCaseTest : public ::testing::TestWithParam<OpCase> {};

TEST_P(OpCaseTest, MatchesItsReference) {
  auto [container, setting, arguments] = ReadCase(GetParam().folder);
  const std::vector<HostTensor> expected = ReadTensorFile(GetParam().folder / "expected_output.bin");

  if (GetParam().name().starts_with("metal_kernel")) {
    // Source code for Apple GPUs: refused when it is loaded, by name.
    try {
      LoadProgram(container);
      FAIL() << "a Metal kernel was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_NE(std::string(error.what()).find("MetalKernelNode"), std::string::npos) << error.what();
    }
    return;
  }
  program::Executor executor(LoadProgram(container), MakeStore(setting["kv_cache"]));
  // A method may have inputs that its delegate does not use.
  if (executor.program().inputs().empty()) arguments.clear();
  const std::vector<Argument> results = executor.Run(arguments);
  ASSERT_EQ(results.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    if (setting["skip_comparison"].get<bool>()) {
      // Random by design: only the form of the result is fixed.
      EXPECT_EQ(std::get<HostTensor>(results[i]).shape, expected[i].shape);
      continue;
    }
    ExpectClose(expected[i], results[i], setting["rtol"], setting["atol"]);
  }
}

// Numbers of the payload changed at random, as a damaged or malicious file has them: an Error or a result, soon.
TEST_P(OpCaseTest, SurvivesDamage) {
  const auto [container, setting, arguments] = ReadCase(GetParam().folder);
  const auto payload = container->FindMethod("forward")->delegates.at(0).processed;
  std::mt19937 random(static_cast<uint32_t>(std::hash<std::string>()(GetParam().name())));
  constexpr uint32_t kWords[] = {0, 1, 2, 3, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFFE, 0x10000};
  for (int round = 0; round < kDamagedRounds; ++round) {
    std::vector<std::byte> bytes(payload.begin(), payload.end());
    const uint32_t word = kWords[random() % std::size(kWords)];
    std::memcpy(bytes.data() + 4 * (random() % (bytes.size() / 4)), &word, sizeof(word));
    try {
      const auto program = program::Program::Load(bytes, WeightsOf(container), "damaged");
      program::Executor executor(program, MakeStore(setting["kv_cache"]));
      executor.Run(std::span(arguments).first(std::min(arguments.size(), program->inputs().size())),
                   {.memory_limit = 64 << 20});
    } catch (const Error&) {
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, OpCaseTest, ::testing::ValuesIn(FindCases()),
                         [](const ::testing::TestParamInfo<OpCase>& one) {
                           std::string name = one.param.name();
                           for (char& c : name) {
                             if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
                           }
                           return name + "_" + std::to_string(one.index);
                         });

TEST(OpCaseFolderTest, HasAllOfExecuTorchsCases) {
  if (!fs::is_directory(OFFGRAPH_SHARED "/opcases")) {
    GTEST_SKIP() << "the full set is not at " OFFGRAPH_SHARED "/opcases; only the cases of tests/data ran";
  }
  EXPECT_GE(FindCases().size(), 606U);
}

}  // namespace
}  // namespace offgraph::testing
