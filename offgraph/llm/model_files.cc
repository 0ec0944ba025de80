#include "offgraph/llm/model_files.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "offgraph/cache/error.h"

namespace offgraph::llm {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// An empty object where the file is absent.
Json ReadJsonObject(const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return Json::object();
  Json value;
  try {
    value = Json::parse(ReadSmallFile(path.string()));
  } catch (const Json::parse_error& error) {
    throw Error(ErrorCode::kBadFile, path.string() + ": not JSON, at byte " + std::to_string(error.byte));
  } catch (const Json::out_of_range& error) {
    const std::string_view what = error.what();  // begins with a number of the library's own, in brackets
    throw Error(ErrorCode::kBadFile, path.string() + ": " + std::string(what.substr(what.find(' ') + 1)));
  }
  if (!value.is_object()) {
    throw Error(ErrorCode::kBadFile, path.string() + ": holds " + value.type_name() + ", expected an object");
  }
  return value;
}

[[noreturn]] void WrongType(const fs::path& path, const char* key, const char* expected, const Json& found) {
  throw Error(ErrorCode::kBadFile,
              path.string() + ": \"" + key + "\" is of type " + found.type_name() + ", expected " + expected);
}

// Absent and null are the same.
const Json* Find(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::vector<int64_t> Ids(const fs::path& path, const Json& object, const char* key) {
  const Json* value = Find(object, key);
  if (value == nullptr) return {};
  std::vector<int64_t> ids;
  for (const Json& id : value->is_array() ? *value : Json::array({*value})) {
    if (!id.is_number_integer()) WrongType(path, key, "a token id or a list of them", id);
    ids.push_back(id.get<int64_t>());
    if (ids.back() < 0 || ids.back() > std::numeric_limits<int32_t>::max()) {
      throw Error(ErrorCode::kBadFile, path.string() + ": \"" + key + "\" is " + id.dump() + ", which is no token id");
    }
  }
  return ids;
}

// A special token is written as its text, or as an object whose "content" is the text.
std::optional<std::string> TokenText(const fs::path& path, const Json& object, const char* key) {
  const Json* value = Find(object, key);
  if (value != nullptr && value->is_object()) value = Find(*value, "content");
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) WrongType(path, key, "a token's text", *value);
  return value->get<std::string>();
}

}  // namespace

SpecialTokens ReadSpecialTokens(const std::string& folder) {
  SpecialTokens result;
  for (const char* name : {"generation_config.json", "config.json"}) {
    const fs::path path = fs::path(folder) / name;
    const Json config = ReadJsonObject(path);
    if (result.end_ids.empty()) result.end_ids = Ids(path, config, "eos_token_id");
    const std::vector<int64_t> bos = Ids(path, config, "bos_token_id");
    if (!result.bos_id && !bos.empty()) result.bos_id = bos.front();
  }
  const fs::path path = fs::path(folder) / "tokenizer_config.json";
  const Json config = ReadJsonObject(path);
  result.end_text = TokenText(path, config, "eos_token");
  result.bos_text = TokenText(path, config, "bos_token");
  if (const Json* add_bos = Find(config, "add_bos_token")) {
    if (!add_bos->is_boolean()) WrongType(path, "add_bos_token", "true or false", *add_bos);
    result.add_bos = add_bos->get<bool>();
  }
  return result;
}

std::string FindProgramFile(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) throw Error(ErrorCode::kIo, path + ": no such file or folder");
  if (error) throw Error(ErrorCode::kIo, path + ": " + error.message());
  if (!fs::is_directory(status)) return path;
  if (fs::exists(fs::path(path) / "model.pte", error)) return (fs::path(path) / "model.pte").string();
  std::vector<std::string> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(path, error)) {
    if (entry.path().extension() == ".pte") found.push_back(entry.path().filename().string());
  }
  if (error) throw Error(ErrorCode::kIo, path + ": " + error.message());
  if (found.size() == 1) return (fs::path(path) / found.front()).string();
  if (found.empty()) throw Error(ErrorCode::kIo, path + ": the folder holds no .pte file");
  std::ranges::sort(found);
  std::string names;
  for (const std::string& name : found) names += (names.empty() ? "" : ", ") + name;
  throw Error(ErrorCode::kIo, path + ": the folder holds " + std::to_string(found.size()) + " .pte files (" + names +
                                  ") and none is called model.pte; name the one that is wanted");
}

std::string ReadSmallFile(const std::string& path, int64_t limit) {
  std::error_code error;
  if (fs::is_directory(path, error)) throw Error(ErrorCode::kIo, path + ": a folder, expected a file");
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(ErrorCode::kIo, path + ": " + std::strerror(errno));
  std::string text;
  std::string block(size_t{1} << 16, '\0');
  while (file.read(block.data(), static_cast<std::streamsize>(block.size())) || file.gcount() > 0) {
    text.append(block, 0, static_cast<size_t>(file.gcount()));
    if (static_cast<int64_t>(text.size()) > limit) {
      throw Error(ErrorCode::kIo, path + ": larger than the " + std::to_string(limit) + " bytes that it may have");
    }
  }
  if (file.bad()) throw Error(ErrorCode::kIo, path + ": cannot be read");
  return text;
}

}  // namespace offgraph::llm
