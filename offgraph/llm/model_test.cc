#include "offgraph/llm/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "offgraph/cache/error_test_util.h"
#include "offgraph/llm/model_files.h"

namespace offgraph::llm {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string kModel = std::string(OFFGRAPH_MODELS) + "/stories260K";

class ModelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) /
              ("offgraph_model_" + std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  void Write(const std::string& name, const std::string& text) const { std::ofstream(folder_ / name) << text; }
  void CopyModel(const std::string& as) const { fs::copy_file(kModel + "/stories260K.pte", folder_ / as); }
  std::string Folder() const { return folder_.string(); }

  fs::path folder_;
};

TEST_F(ModelTest, ReadsWhatTheProgramSaysAboutItself) {
  const auto model = Model::Open(kModel);
  const ModelInfo& info = model->info();
  EXPECT_TRUE(info.off_graph);
  EXPECT_EQ(info.n_caches, 5);
  EXPECT_THAT(info.windows, ElementsAre(0, 0, 0, 0, 0));
  EXPECT_THAT(info.kv_heads, ElementsAre(4, 4, 4, 4, 4));
  EXPECT_THAT(info.head_dims, ElementsAre(8, 8, 8, 8, 8));
  EXPECT_EQ(info.max_context, 512);
  EXPECT_EQ(info.vocab, 512);
  EXPECT_EQ(info.logits_type, "fp32");
  EXPECT_GT(info.prefill_chunk, 0);
  EXPECT_THAT(model->end_tokens(), ElementsAre(2));
  EXPECT_EQ(model->bos_token(), 1);
  EXPECT_THAT(model->EncodePrompt(""), ElementsAre(1));
}

TEST_F(ModelTest, FindsTheProgramInAFolder) {
  EXPECT_THAT(Refusal(ErrorCode::kIo, [&] { FindProgramFile(Folder()); }), HasSubstr("no .pte file"));
  CopyModel("b.pte");
  EXPECT_EQ(FindProgramFile(Folder()), (folder_ / "b.pte").string());
  CopyModel("a.pte");
  EXPECT_THAT(Refusal(ErrorCode::kIo, [&] { FindProgramFile(Folder()); }), HasSubstr("a.pte, b.pte"));
  CopyModel("model.pte");
  EXPECT_EQ(FindProgramFile(Folder()), (folder_ / "model.pte").string());
  EXPECT_EQ(FindProgramFile((folder_ / "a.pte").string()), (folder_ / "a.pte").string());
  EXPECT_THAT(Refusal(ErrorCode::kIo, [&] { FindProgramFile(Folder() + "/c.pte"); }), HasSubstr("no such file"));
}

TEST_F(ModelTest, TextIsMissedOnlyWhenItIsAskedFor) {
  CopyModel("model.pte");
  const auto model = Model::Open(Folder());
  EXPECT_THAT(model->end_tokens(), IsEmpty());
  EXPECT_THAT(Refusal(ErrorCode::kIo, [&] { model->tokenizer(); }), HasSubstr("tokenizer.json"));
  EXPECT_THAT(Refusal(ErrorCode::kIo, [&] { model->chat_template(); }), HasSubstr("chat_template.jinja"));
  const auto elsewhere = [&] { Model::Open(Folder(), {.tokenizer = "/no-such-folder/x.json"}); };
  EXPECT_THAT(Refusal(ErrorCode::kIo, elsewhere), HasSubstr("no-such-folder"));
  for (const std::string& tokenizer : {kModel, kModel + "/tokenizer.json"}) {
    EXPECT_THAT(Model::Open(Folder(), {.tokenizer = tokenizer})->EncodePrompt(""), ElementsAre(1));
  }
}

TEST_F(ModelTest, NamesWhatAnotherProgramIs) {
  Write("text.pte", "this is no program");
  EXPECT_THAT(Refusal(ErrorCode::kBadFile, [&] { Model::Open(Folder() + "/text.pte"); }), HasSubstr("text.pte"));
  Write("empty.pte", "");
  EXPECT_THAT(Refusal(ErrorCode::kBadFile, [&] { Model::Open(Folder() + "/empty.pte"); }), HasSubstr("empty.pte"));
  const std::string opcase = std::string(OFFGRAPH_SHARED) + "/opcases/abs_16_float32/model.pte";
  if (!fs::exists(opcase)) GTEST_SKIP() << "without " << opcase << " one case is not tested";
  EXPECT_THAT(Refusal(ErrorCode::kUnsupported, [&] { Model::Open(opcase); }), HasSubstr("input_ids"));
}

TEST_F(ModelTest, EndTokensComeFromAllFilesThatNameThem) {
  const auto special = [&] { return ReadSpecialTokens(Folder()); };
  EXPECT_THAT(special().end_ids, IsEmpty());
  Write("config.json", R"({"eos_token_id": [7, 8], "bos_token_id": 3})");
  EXPECT_THAT(special().end_ids, ElementsAre(7, 8));
  EXPECT_EQ(special().bos_id, 3);
  Write("generation_config.json", R"({"eos_token_id": 9, "bos_token_id": null})");
  EXPECT_THAT(special().end_ids, ElementsAre(9));
  EXPECT_EQ(special().bos_id, 3);
  Write("tokenizer_config.json", R"({"eos_token": {"content": "<end>"}, "bos_token": "<s>", "add_bos_token": true})");
  EXPECT_EQ(special().end_text, "<end>");
  EXPECT_EQ(special().bos_text, "<s>");
  EXPECT_TRUE(special().add_bos);
}

TEST_F(ModelTest, BrokenFilesAreNamed) {
  for (const auto& [name, text] :
       std::vector<std::pair<std::string, std::string>>{{"config.json", "{"},
                                                        {"config.json", "[]"},
                                                        {"config.json", R"({"eos_token_id": "two"})"},
                                                        {"config.json", R"({"eos_token_id": [1, null]})"},
                                                        {"config.json", R"({"eos_token_id": -1})"},
                                                        {"config.json", R"({"eos_token_id": 4294967296})"},
                                                        {"generation_config.json", R"({"bos_token_id": 1.5})"},
                                                        {"tokenizer_config.json", R"({"eos_token": 7})"},
                                                        {"tokenizer_config.json", R"({"add_bos_token": "yes"})"}}) {
    Write(name, text);
    EXPECT_THAT(Refusal(ErrorCode::kBadFile, [&] { ReadSpecialTokens(Folder()); }), HasSubstr(name));
    fs::remove(folder_ / name);
  }
}

TEST_F(ModelTest, OneBeginningOfSequenceTokenOrNone) {
  for (const char* name : {"stories260K.pte", "tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
    fs::copy_file(kModel + "/" + name, folder_ / name);
  }
  EXPECT_NE(Model::Open(Folder())->EncodePrompt("Once").front(), 1);  // this tokenizer adds none
  Write("tokenizer_config.json", R"({"add_bos_token": true})");
  const std::vector<TokenId> with = Model::Open(Folder())->EncodePrompt("Once");
  EXPECT_EQ(with.front(), 1);
  EXPECT_NE(with[1], 1);
  EXPECT_EQ(Model::Open(Folder())->EncodePrompt("<s>Once"), with);  // the text has it already
  Write("generation_config.json", "{}");
  Write("tokenizer_config.json", "{}");
  EXPECT_THAT(Refusal(ErrorCode::kInvalidArgument, [&] { Model::Open(Folder())->EncodePrompt(""); }),
              HasSubstr("bos_token"));
}

TEST(ReadSmallFileTest, ReadsAllOrRefuses) {
  EXPECT_EQ(ReadSmallFile(kModel + "/story.txt").substr(0, 9), "Once upon");
  EXPECT_THAT(Refusal(ErrorCode::kIo, [] { ReadSmallFile(kModel + "/story.txt", 10); }), HasSubstr("larger"));
  EXPECT_THAT(Refusal(ErrorCode::kIo, [] { ReadSmallFile(kModel); }), HasSubstr("folder"));
  EXPECT_THAT(Refusal(ErrorCode::kIo, [] { ReadSmallFile(kModel + "/missing.txt"); }), HasSubstr("missing.txt"));
}

}  // namespace
}  // namespace offgraph::llm
