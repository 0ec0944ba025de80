#include "offgraph/pte/container.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "offgraph/cache/error.h"
#include "offgraph/pte/schema/program_generated.h"

namespace offgraph::pte {
namespace {

namespace fb = executorch_flatbuffer;
using testing::ElementsAre;
using testing::HasSubstr;
using Integers = std::vector<int64_t>;
using Reals = std::vector<double>;

const std::string kStories = OFFGRAPH_MODELS "/stories260K/stories260K.pte";

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::span<const std::byte> Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

std::shared_ptr<const Container> Parse(const std::string& file) { return Container::Parse(Bytes(file), "some.pte"); }

// The message of the error that `call` throws.
std::string Refusal(ErrorCode code, const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "was accepted";
  return {};
}

std::string Refusal(const std::string& file) {
  return Refusal(ErrorCode::kBadFile, [&] { Parse(file); });
}

// Reads every byte that the container hands out, so that a sanitizer sees a span that leaves the file.
uint64_t Touch(const Container& container) {
  uint64_t sum = 0;
  const auto add = [&](std::span<const std::byte> bytes) {
    for (const std::byte byte : bytes) sum += static_cast<uint64_t>(byte);
  };
  for (const MethodInfo& method : container.methods()) {
    for (const DelegateInfo& delegate : method.delegates) add(delegate.processed);
  }
  for (const std::string& key : container.DataKeys()) add(container.FindData(key).value());
  return sum;
}

// Whatever is done to a file, it is read, or refused with Error(kBadFile) and a message.
void ReadOrRefuse(const std::string& file) {
  try {
    Touch(*Parse(file));
  } catch (const Error& error) {
    ASSERT_EQ(error.code(), ErrorCode::kBadFile);
    ASSERT_THAT(error.what(), HasSubstr("some.pte: "));
  }
}

ConstantValue Constant(const Container& container, const std::string& method) {
  const MethodInfo* info = container.FindMethod(method);
  if (info == nullptr || !info->constants || info->constants->size() != 1) {
    ADD_FAILURE() << method << " is no method with one constant";
    return {};
  }
  return info->constants->front();
}

TEST(Container, ReadsTheDemoModel) {
  const auto container = Container::Open(kStories);
  EXPECT_EQ(container->name(), kStories);
  EXPECT_EQ(container->size(), std::filesystem::file_size(kStories));
  ASSERT_EQ(container->methods().size(), 7);

  const MethodInfo* forward = container->FindMethod("forward");
  ASSERT_NE(forward, nullptr);
  EXPECT_EQ(forward->n_inputs, 2);
  EXPECT_EQ(forward->n_outputs, 1);
  EXPECT_EQ(forward->delegate_calls, 1);
  EXPECT_EQ(forward->kernel_calls, 0);
  EXPECT_EQ(forward->whole_delegate, 0);
  EXPECT_FALSE(forward->constants.has_value());
  ASSERT_EQ(forward->delegates.size(), 1);
  EXPECT_EQ(forward->delegates[0].id, "MLXBackend");
  // The figures below are what ExecuTorch's own reader of the format, exir/_serialize/_program.py, finds in the file.
  ASSERT_EQ(forward->delegates[0].processed.size(), 18016);
  EXPECT_EQ(std::memcmp(forward->delegates[0].processed.data() + 4, "MLX0", 4), 0);

  EXPECT_EQ(Constant(*container, "get_n_caches"), ConstantValue(int64_t{5}));
  EXPECT_EQ(Constant(*container, "get_max_ctx_len"), ConstantValue(int64_t{512}));
  EXPECT_EQ(Constant(*container, "get_kv_heads"), ConstantValue(Integers(5, 4)));
  EXPECT_EQ(Constant(*container, "get_head_dims"), ConstantValue(Integers(5, 8)));
  EXPECT_EQ(Constant(*container, "get_windows"), ConstantValue(Integers(5, 0)));

  EXPECT_EQ(container->DataKeys().size(), 50);
  ASSERT_TRUE(container->FindData("c355/model.model.embed_tokens.weight").has_value());
  EXPECT_EQ(container->FindData("c355/model.model.embed_tokens.weight")->size(), 131072);
  EXPECT_FALSE(container->FindData("c355/model.model.embed_tokens.weigh").has_value());
  EXPECT_EQ(container->FindMethod("backward"), nullptr);
}

TEST(Container, WeightsAreNotCopied) {
  const std::string file = ReadAll(kStories);
  const auto container = Parse(file);
  for (const std::string& key : container->DataKeys()) {
    const auto bytes = container->FindData(key).value();
    EXPECT_GE(bytes.data(), Bytes(file).data());
    EXPECT_LE(bytes.data() + bytes.size(), Bytes(file).data() + file.size());
  }
}

// Page faults of this thread that needed no disk.
int64_t Faults() {
  rusage usage = {};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_minflt;
}

TEST(Container, EvictedDataAreMappedAgainOrRead) {
  const auto container = Container::Open(kStories);
  const auto data = container->FindData("c355/model.model.embed_tokens.weight").value();
  std::vector<std::byte> before(data.begin(), data.end());
  std::vector<std::byte> after(data.size());
  container->Evict(data);
  const int64_t faults = Faults();
  std::memcpy(after.data(), data.data(), data.size());
  EXPECT_GT(Faults(), faults) << "the pages were there all the time";
  EXPECT_EQ(before, after);
  container->Evict(data.first(0));
  container->Evict(data.last(1));
  container->Read(data.subspan(3), after.data());
  EXPECT_TRUE(std::equal(before.begin() + 3, before.end(), after.begin()));
  container->Read(data.first(0), after.data());
  const std::string file = ReadAll(kStories);
  const auto parsed = Parse(file);
  parsed->Read(parsed->FindData("c355/model.model.embed_tokens.weight").value(), after.data());
  EXPECT_EQ(before, after);
  parsed->Evict(parsed->FindData("c355/model.model.embed_tokens.weight").value());  // not its memory: nothing happens
}

TEST(Container, ReadsEveryFixture) {
  if (!std::filesystem::exists(OFFGRAPH_SHARED "/fixtures")) GTEST_SKIP() << OFFGRAPH_SHARED "/fixtures is not here";
  int64_t seen = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(OFFGRAPH_SHARED)) {
    if (entry.path().extension() != ".pte") continue;
    SCOPED_TRACE(entry.path());
    const auto container = Container::Open(entry.path());
    Touch(*container);
    const MethodInfo* forward = container->FindMethod("forward");
    ASSERT_NE(forward, nullptr);
    EXPECT_FALSE(forward->constants.has_value());
    EXPECT_GT(forward->delegate_calls, 0);
    ++seen;
  }
  EXPECT_GT(seen, 20);
  const auto gemma = Container::Open(OFFGRAPH_SHARED "/fixtures/gemma3_text_bf16_4w.pte");
  EXPECT_EQ(Constant(*gemma, "get_windows"), ConstantValue(Integers{8, 8, 8, 0}));
  EXPECT_EQ(Constant(*gemma, "get_head_dims"), ConstantValue(Integers(4, 16)));
  EXPECT_EQ(Constant(*gemma, "get_prefill_chunk_size"), ConstantValue(int64_t{8}));
  EXPECT_EQ(gemma->DataKeys().size(), 149);
}

TEST(Container, WhatIsNoFileIsAnIoError) {
  const auto open = [](const std::string& path) { return Refusal(ErrorCode::kIo, [&] { Container::Open(path); }); };
  EXPECT_THAT(open("/nowhere/model.pte"), HasSubstr("/nowhere/model.pte: cannot be opened: No such file"));
  EXPECT_THAT(open("/"), HasSubstr("is a folder"));
  EXPECT_THAT(open("/dev/null"), HasSubstr("is a device"));
  const std::string pipe = testing::TempDir() + "/container_test_pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(open(pipe), HasSubstr("pipe"));
  std::filesystem::remove(pipe);
}

TEST(Container, AnEmptyFileIsRefused) {
  const std::string path = testing::TempDir() + "/container_test_empty.pte";
  std::ofstream(path).close();
  EXPECT_THAT(Refusal(ErrorCode::kBadFile, [&] { Container::Open(path); }), HasSubstr("the file is empty"));
  std::filesystem::remove(path);
}

TEST(ContainerHostile, CutFilesAreRefused) {
  const std::string file = ReadAll(kStories);
  for (size_t part = 0; part < 64; ++part) Refusal(file.substr(0, file.size() * part / 64));
  for (size_t size = 0; size < 4096; ++size) Refusal(file.substr(0, size));
  for (size_t missing = 1; missing < 64; ++missing) Refusal(file.substr(0, file.size() - missing));
}

TEST(ContainerHostile, EachFlippedBitOfTheHeadIsReadOrRefused) {
  std::string file = ReadAll(kStories);
  for (size_t i = 0; i < 256; ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      file[i] = static_cast<char>(file[i] ^ (1 << bit));
      ReadOrRefuse(file);
      file[i] = static_cast<char>(file[i] ^ (1 << bit));
    }
  }
}

TEST(ContainerHostile, RandomDamageIsReadOrRefused) {
  // Only the FlatBuffer and a little of the segments: the rest is weights, in which nothing can be wrong.
  const std::string whole = ReadAll(kStories);
  uint64_t program_size;
  std::memcpy(&program_size, whole.data() + 16, sizeof(program_size));
  std::mt19937_64 random(20240501);
  std::string file = whole;
  for (int round = 0; round < 10'000; ++round) {
    std::vector<size_t> places;
    const size_t count = 1 + random() % 8;
    for (size_t i = 0; i < count; ++i) {
      const size_t place = random() % program_size;
      places.push_back(place);
      constexpr std::array<unsigned char, 6> kEdges = {0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF};
      file[place] = static_cast<char>(random() % 2 == 0 ? kEdges[random() % kEdges.size()] : random() % 256);
    }
    ReadOrRefuse(file);
    for (const size_t place : places) file[place] = whole[place];
  }
}

// Programs of our own making, for what the exporter does not write.
class Builder {
 public:
  template <typename Table>
  using Offset = flatbuffers::Offset<Table>;

  flatbuffers::FlatBufferBuilder fbb;
  std::vector<Offset<fb::EValue>> values;
  std::vector<Offset<fb::Instruction>> instructions;
  std::vector<Offset<fb::BackendDelegate>> delegates;
  std::vector<Offset<fb::Operator>> operators;
  std::vector<Offset<fb::ExecutionPlan>> plans;
  std::vector<Offset<fb::Buffer>> constants;
  std::vector<Offset<fb::BackendDelegateInlineData>> inline_data;
  std::vector<Offset<fb::NamedData>> named_data;
  std::vector<Offset<fb::DataSegment>> segments;

  template <typename Table>
  int32_t Value(fb::KernelTypes type, Offset<Table> value) {
    values.push_back(fb::CreateEValue(fbb, type, value.Union()));
    return static_cast<int32_t>(values.size()) - 1;
  }
  int32_t Int(int64_t value) { return Value(fb::KernelTypes_Int, fb::CreateInt(fbb, value)); }

  template <typename Number>
  int32_t Tensor(fb::ScalarType type, const std::vector<Number>& numbers, std::vector<int32_t> sizes) {
    if (constants.empty()) constants.push_back(fb::CreateBuffer(fbb));
    const auto* data = reinterpret_cast<const uint8_t*>(numbers.data());
    constants.push_back(fb::CreateBuffer(fbb, fbb.CreateVector(data, numbers.size() * sizeof(Number))));
    return Tensor(type, static_cast<uint32_t>(constants.size() - 1), std::move(sizes));
  }
  int32_t Tensor(fb::ScalarType type, uint32_t buffer, std::vector<int32_t> sizes) {
    return Value(fb::KernelTypes_Tensor, fb::CreateTensorDirect(fbb, type, 0, &sizes, nullptr, false, buffer));
  }

  void Delegate(const char* id, fb::DataLocation location, uint32_t index) {
    delegates.push_back(fb::CreateBackendDelegateDirect(
        fbb, id, fb::CreateBackendDelegateDataReference(fbb, location, index), nullptr));
  }
  void InlineData(const std::string& text) {
    const std::vector<uint8_t> data(text.begin(), text.end());
    inline_data.push_back(fb::CreateBackendDelegateInlineDataDirect(fbb, &data));
  }
  template <typename Call>
  void Instruct(fb::InstructionArguments kind, Offset<Call> call) {
    instructions.push_back(fb::CreateInstruction(fbb, kind, call.Union()));
  }
  void CallDelegate(int32_t delegate, std::vector<int32_t> args) {
    Instruct(fb::InstructionArguments_DelegateCall, fb::CreateDelegateCallDirect(fbb, delegate, &args));
  }
  void CallKernel(int32_t op, std::vector<int32_t> args) {
    Instruct(fb::InstructionArguments_KernelCall, fb::CreateKernelCallDirect(fbb, op, &args));
  }

  // Ends a method that has the values, delegates and instructions so far.
  void Method(const char* name, std::vector<int32_t> inputs, std::vector<int32_t> outputs) {
    std::vector<Offset<fb::Chain>> chains = {fb::CreateChainDirect(fbb, &inputs, &outputs, &instructions)};
    plans.push_back(
        fb::CreateExecutionPlanDirect(fbb, name, 0, &values, &inputs, &outputs, &chains, &operators, &delegates));
    values.clear();
    instructions.clear();
    delegates.clear();
  }

  // The file, with no extended header.
  std::string Finish() {
    const auto program = fb::CreateProgramDirect(fbb, 0, &plans, &constants, &inline_data, &segments, 0, nullptr,
                                                 named_data.empty() ? nullptr : &named_data);
    fb::FinishProgramBuffer(fbb, program);
    return {reinterpret_cast<const char*>(fbb.GetBufferPointer()), fbb.GetSize()};
  }
};

TEST(ContainerBuilt, ReadsConstantsOfEveryKind) {
  Builder b;
  b.Method("int", {}, {b.Int(-7)});
  b.Method("double", {}, {b.Value(fb::KernelTypes_Double, fb::CreateDouble(b.fbb, 1.5))});
  b.Method("bool", {}, {b.Value(fb::KernelTypes_Bool, fb::CreateBool(b.fbb, true))});
  b.Method("string", {}, {b.Value(fb::KernelTypes_String, fb::CreateStringDirect(b.fbb, "<s>"))});
  std::vector<int64_t> items = {b.Int(30), b.Int(20)};
  b.Method("ints", {}, {b.Value(fb::KernelTypes_IntList, fb::CreateIntListDirect(b.fbb, &items))});
  std::vector<double> reals = {0.5, -2};
  b.Method("doubles", {}, {b.Value(fb::KernelTypes_DoubleList, fb::CreateDoubleListDirect(b.fbb, &reals))});
  std::vector<uint8_t> truths = {1, 0, 1};
  b.Method("bools", {}, {b.Value(fb::KernelTypes_BoolList, fb::CreateBoolListDirect(b.fbb, &truths))});
  b.Method("two", {}, {b.Int(1), b.Int(2)});
  const auto container = Parse(b.Finish());
  EXPECT_EQ(Constant(*container, "int"), ConstantValue(int64_t{-7}));
  EXPECT_EQ(Constant(*container, "double"), ConstantValue(1.5));
  EXPECT_EQ(Constant(*container, "bool"), ConstantValue(true));
  EXPECT_EQ(Constant(*container, "string"), ConstantValue(std::string("<s>")));
  EXPECT_EQ(Constant(*container, "ints"), ConstantValue(Integers{30, 20}));
  EXPECT_EQ(Constant(*container, "doubles"), ConstantValue(Reals{0.5, -2}));
  EXPECT_EQ(Constant(*container, "bools"), ConstantValue(Integers{1, 0, 1}));
  EXPECT_THAT(container->FindMethod("two")->constants.value(),
              ElementsAre(ConstantValue(int64_t{1}), ConstantValue(int64_t{2})));
}

// An empty list of inputs and an absent list of arguments are the same number of them.
TEST(ContainerBuilt, ADelegateWithoutArguments) {
  Builder b;
  b.InlineData("payload");
  b.Delegate("MLXBackend", fb::DataLocation_INLINE, 0);
  b.Instruct(fb::InstructionArguments_DelegateCall, fb::CreateDelegateCall(b.fbb, 0));
  b.Method("forward", {}, {});
  EXPECT_EQ(Parse(b.Finish())->FindMethod("forward")->whole_delegate, 0);
}

TEST(ContainerBuilt, ReadsTensorsOfEveryType) {
  Builder b;
  b.Method("u8", {}, {b.Tensor<uint8_t>(fb::ScalarType_BYTE, {0, 255}, {2})});
  b.Method("i8", {}, {b.Tensor<int8_t>(fb::ScalarType_CHAR, {-128, 127}, {2})});
  b.Method("i16", {}, {b.Tensor<int16_t>(fb::ScalarType_SHORT, {-32768, 1}, {2})});
  b.Method("u16", {}, {b.Tensor<uint16_t>(fb::ScalarType_UINT16, {65535}, {1})});
  b.Method("i32", {}, {b.Tensor<int32_t>(fb::ScalarType_INT, {1, 2, 3, 4, 5, -6}, {2, 3})});
  b.Method("u32", {}, {b.Tensor<uint32_t>(fb::ScalarType_UINT32, {4294967295U}, {1})});
  b.Method("i64", {}, {b.Tensor<int64_t>(fb::ScalarType_LONG, {int64_t{1} << 62}, {1})});
  b.Method("bool", {}, {b.Tensor<uint8_t>(fb::ScalarType_BOOL, {1, 0}, {2})});
  b.Method("f32", {}, {b.Tensor<float>(fb::ScalarType_FLOAT, {0.25F, -1e30F}, {2})});
  b.Method("f64", {}, {b.Tensor<double>(fb::ScalarType_DOUBLE, {1e300}, {1})});
  // 1, -2, the smallest subnormal, the largest finite number, minus zero, infinity.
  b.Method("f16", {}, {b.Tensor<uint16_t>(fb::ScalarType_HALF, {0x3C00, 0xC000, 0x0001, 0x7BFF, 0x8000, 0x7C00}, {6})});
  b.Method("bf16", {}, {b.Tensor<uint16_t>(fb::ScalarType_BFLOAT16, {0x3F80, 0xC040}, {2})});
  b.Method("scalar", {}, {b.Tensor<int32_t>(fb::ScalarType_INT, {42}, {})});
  b.Method("empty", {}, {b.Tensor<int32_t>(fb::ScalarType_INT, {}, {0})});
  b.Method("u64", {}, {b.Tensor<uint64_t>(fb::ScalarType_UINT64, {1}, {1})});
  const auto container = Parse(b.Finish());
  EXPECT_EQ(Constant(*container, "u8"), ConstantValue(Integers{0, 255}));
  EXPECT_EQ(Constant(*container, "i8"), ConstantValue(Integers{-128, 127}));
  EXPECT_EQ(Constant(*container, "i16"), ConstantValue(Integers{-32768, 1}));
  EXPECT_EQ(Constant(*container, "u16"), ConstantValue(Integers{65535}));
  EXPECT_EQ(Constant(*container, "i32"), ConstantValue(Integers{1, 2, 3, 4, 5, -6}));
  EXPECT_EQ(Constant(*container, "u32"), ConstantValue(Integers{4294967295}));
  EXPECT_EQ(Constant(*container, "i64"), ConstantValue(Integers{int64_t{1} << 62}));
  EXPECT_EQ(Constant(*container, "bool"), ConstantValue(Integers{1, 0}));
  EXPECT_EQ(Constant(*container, "f32"), ConstantValue(Reals{0.25, -1e30F}));
  EXPECT_EQ(Constant(*container, "f64"), ConstantValue(Reals{1e300}));
  EXPECT_EQ(Constant(*container, "f16"),
            ConstantValue(Reals{1, -2, 0x1p-24, 65504, -0.0, std::numeric_limits<double>::infinity()}));
  EXPECT_EQ(Constant(*container, "bf16"), ConstantValue(Reals{1, -3}));
  EXPECT_EQ(Constant(*container, "scalar"), ConstantValue(Integers{42}));
  EXPECT_EQ(Constant(*container, "empty"), ConstantValue(Integers{}));
  EXPECT_FALSE(container->FindMethod("u64")->constants.has_value());
}

TEST(ContainerBuilt, WhatIsNoConstantIsLeftOut) {
  Builder b;
  b.Method("nothing", {}, {b.Value(fb::KernelTypes_Null, fb::CreateNull(b.fbb))});
  b.Method("memory", {}, {b.Tensor(fb::ScalarType_INT, 0, {1})});
  b.Method("identity", {0}, {b.Int(1)});
  b.CallKernel(0, {0});
  b.operators.push_back(fb::CreateOperatorDirect(b.fbb, "aten::add", "out"));
  b.Method("computed", {}, {b.Int(1)});
  const auto container = Parse(b.Finish());
  for (const char* name : {"nothing", "memory", "identity", "computed"}) {
    EXPECT_FALSE(container->FindMethod(name)->constants.has_value()) << name;
  }
}

TEST(ContainerBuilt, TellsAWholeDelegateFromAPartialOne) {
  Builder b;
  b.InlineData("payload one");
  b.InlineData("payload two");
  const auto three_values = [&] {
    for (int i = 0; i < 3; ++i) b.Int(i);
  };
  three_values();
  b.Delegate("A", fb::DataLocation_INLINE, 0);
  b.Delegate("B", fb::DataLocation_INLINE, 1);
  b.CallDelegate(1, {0, 1, 2});
  b.Method("whole", {0, 1}, {2});
  three_values();
  b.Delegate("A", fb::DataLocation_INLINE, 0);
  b.CallDelegate(0, {1, 0, 2});
  b.Method("swapped", {0, 1}, {2});
  three_values();
  b.Delegate("A", fb::DataLocation_INLINE, 0);
  b.CallDelegate(0, {0, 1, 2});
  b.CallDelegate(0, {0, 1, 2});
  b.Method("twice", {0, 1}, {2});
  three_values();
  b.operators.push_back(fb::CreateOperatorDirect(b.fbb, "aten::add", "out"));
  b.Delegate("A", fb::DataLocation_INLINE, 0);
  b.CallDelegate(0, {0, 1, 2});
  b.CallKernel(0, {0, 2});
  b.Method("partial", {0, 1}, {2});

  const std::string file = b.Finish();
  const auto container = Parse(file);
  const MethodInfo& whole = *container->FindMethod("whole");
  EXPECT_EQ(whole.whole_delegate, 1);
  const auto payload = whole.delegates[1].processed;
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(payload.data()), payload.size()), "payload two");
  for (const char* name : {"swapped", "twice", "partial"}) {
    EXPECT_FALSE(container->FindMethod(name)->whole_delegate.has_value()) << name;
  }
  EXPECT_EQ(container->FindMethod("twice")->delegate_calls, 2);
  EXPECT_EQ(container->FindMethod("partial")->kernel_calls, 1);
}

// Each damage alone makes a file that is refused, and the message names the part.
TEST(ContainerBuilt, EveryIndexIsChecked) {
  struct Case {
    const char* message;
    std::function<void(Builder&)> damage;
  };
  const auto method = [](Builder& b) { b.Method("m", {}, {b.Int(1)}); };
  const std::vector<Case> cases = {
      {"the program has no method", [](Builder&) {}},
      {"method 0 has no name", [](Builder& b) { b.Method("", {}, {}); }},
      {"two methods are named 'm'", [&](Builder& b) { method(b), method(b); }},
      {"method 'm', inputs: value 1, but there are 1", [](Builder& b) { b.Method("m", {1}, {b.Int(1)}); }},
      {"method 'm', outputs: value -1", [](Builder& b) { b.Method("m", {}, {-1}); }},
      {"chain 0, instruction 0: operator 0, but there are 0", [&](Builder& b) { b.CallKernel(0, {}), method(b); }},
      {"chain 0, instruction 0: delegate -1", [&](Builder& b) { b.CallDelegate(-1, {}), method(b); }},
      {"chain 0, instruction 0: moved value 2147483647",
       [&](Builder& b) {
         b.Instruct(fb::InstructionArguments_MoveCall, fb::CreateMoveCall(b.fbb, 0, 2147483647)), method(b);
       }},
      {"chain 0, instruction 0: freed value 5",
       [&](Builder& b) { b.Instruct(fb::InstructionArguments_FreeCall, fb::CreateFreeCall(b.fbb, 5)), method(b); }},
      {"jump to instruction 2, but there are 2",
       [&](Builder& b) {
         b.Instruct(fb::InstructionArguments_JumpFalseCall, fb::CreateJumpFalseCall(b.fbb, 0, 2)), method(b);
       }},
      {"chain 0, instruction 0: kind 99",
       [&](Builder& b) {
         b.Instruct(static_cast<fb::InstructionArguments>(99), fb::CreateFreeCall(b.fbb, 0)), method(b);
       }},
      {"method 'm', delegate 0: segment 3, but the file has 0",
       [&](Builder& b) { b.Delegate("A", fb::DataLocation_SEGMENT, 3), method(b); }},
      {"delegate 0: inline data 0, but there are 0",
       [&](Builder& b) { b.Delegate("A", fb::DataLocation_INLINE, 0), method(b); }},
      {"delegate 0: location 7", [&](Builder& b) { b.Delegate("A", static_cast<fb::DataLocation>(7), 0), method(b); }},
      {"delegate 0 has no id",
       [&](Builder& b) { b.InlineData("x"), b.Delegate("", fb::DataLocation_INLINE, 0), method(b); }},
      {"named data 'w': segment 0, but the file has 0",
       [&](Builder& b) { method(b), b.named_data.push_back(fb::CreateNamedDataDirect(b.fbb, "w", 0)); }},
      {"segment 0: 1 bytes at offset 0, but all segments together have 0",
       [&](Builder& b) { method(b), b.segments.push_back(fb::CreateDataSegment(b.fbb, 0, 1)); }},
      {"segment 0: 2 bytes at offset 18446744073709551615",
       [&](Builder& b) { method(b), b.segments.push_back(fb::CreateDataSegment(b.fbb, ~uint64_t{0}, 2)); }},
      {"constant tensor 9, but the file has 0",
       [](Builder& b) { b.Method("m", {}, {b.Tensor(fb::ScalarType_INT, 9, {1})}); }},
      {"tensor of 3 elements of 4 bytes, but 8 bytes are there",
       [](Builder& b) {
         b.Method("m", {}, {b.Tensor<int32_t>(fb::ScalarType_INT, {1, 2}, {3})});
       }},
      {"tensor with a size of -1",
       [](Builder& b) { b.Method("m", {}, {b.Tensor<int32_t>(fb::ScalarType_INT, {1}, {-1})}); }},
      {"number of elements overflows",
       [](Builder& b) {
         b.Method("m", {}, {b.Tensor<int32_t>(fb::ScalarType_INT, {1}, {1 << 30, 1 << 30, 1 << 30})});
       }},
      {"list element at value 4, but the method has 1 values",
       [](Builder& b) {
         std::vector<int64_t> items = {4};
         b.Method("m", {}, {b.Value(fb::KernelTypes_IntList, fb::CreateIntListDirect(b.fbb, &items))});
       }},
  };
  for (const Case& c : cases) {
    Builder b;
    c.damage(b);
    EXPECT_THAT(Refusal(b.Finish()), HasSubstr(c.message));
  }
}

TEST(ContainerBuilt, DuplicateKeysAreRefused) {
  std::string file = ReadAll(kStories);
  const std::string second = "c355/model.model.layers.0.self_attn.q_proj.weight";
  const std::string first = "c355/model.model.layers.1.self_attn.q_proj.weight";
  const size_t place = file.find(first);
  ASSERT_NE(place, std::string::npos);
  file.replace(place, first.size(), second);
  EXPECT_THAT(Refusal(file), HasSubstr("two named data have the key '" + second + "'"));
}

// A small file whose methods all point to one long list: checking it method by method would take 10^10 steps.
TEST(ContainerBuilt, SharedListsDoNotMultiplyTheWork) {
  Builder b;
  const std::vector<int32_t> inputs(100'000, 0);
  const auto shared_inputs = b.fbb.CreateVector(inputs);
  std::vector<flatbuffers::Offset<fb::EValue>> values = {
      fb::CreateEValue(b.fbb, fb::KernelTypes_Int, fb::CreateInt(b.fbb, 1).Union())};
  const auto shared_values = b.fbb.CreateVector(values);
  for (int i = 0; i < 100'000; ++i) {
    b.plans.push_back(fb::CreateExecutionPlan(b.fbb, b.fbb.CreateString(std::to_string(i)), 0, shared_values,
                                              shared_inputs, shared_inputs));
  }
  EXPECT_THAT(Refusal(b.Finish()), HasSubstr("point to the same data again and again"));
}

}  // namespace
}  // namespace offgraph::pte
