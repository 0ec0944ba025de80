#include "et_model.h"

#include <executorch/extension/tensor/tensor.h>
#include <executorch/runtime/backend/backend_options_map.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>

namespace offgraph::testing {
namespace {

using executorch::aten::ScalarType;
using executorch::aten::SizesType;
using executorch::aten::Tensor;
using executorch::extension::Module;
namespace et = executorch::runtime;

template <typename Element, typename Number>
std::vector<Number> Convert(const Tensor& tensor) {
  const auto* data = tensor.const_data_ptr<Element>();
  std::vector<Number> numbers;
  for (ssize_t i = 0; i < tensor.numel(); ++i) numbers.push_back(static_cast<Number>(data[i]));
  return numbers;
}

std::vector<float> Floats(const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case ScalarType::Float:
      return Convert<float, float>(tensor);
    case ScalarType::Half:
      return Convert<executorch::aten::Half, float>(tensor);
    case ScalarType::BFloat16:
      return Convert<executorch::aten::BFloat16, float>(tensor);
    default:
      throw std::runtime_error("logits of another type");
  }
}

}  // namespace

int64_t Logits::Best(int64_t token) const {
  const auto logits = row(token);
  return std::max_element(logits.begin(), logits.end()) - logits.begin();
}

EtModel::EtModel(const std::string& path, const std::string& cache_key) : module_(path, Module::LoadMode::Mmap) {
  et::BackendOptions<1> options;
  et::LoadBackendOptionsMap map;
  if (!cache_key.empty()) {
    EXPECT_EQ(options.set_option("cache_key", cache_key.c_str()), et::Error::Ok);
    EXPECT_EQ(map.set_options("MLXBackend", options.view()), et::Error::Ok);
    EXPECT_EQ(module_.load(map), et::Error::Ok);
  } else {
    EXPECT_EQ(module_.load(), et::Error::Ok);
  }
}

Logits EtModel::Step(std::span<const int64_t> tokens, int64_t position, et::Error* error) {
  std::vector<int64_t> ids(tokens.begin(), tokens.end());
  std::vector<int64_t> positions(ids.size());
  std::iota(positions.begin(), positions.end(), position);
  const auto n = static_cast<SizesType>(ids.size());
  const auto ids_tensor = executorch::extension::from_blob(ids.data(), {1, n}, ScalarType::Long);
  const auto positions_tensor = executorch::extension::from_blob(positions.data(), {n}, ScalarType::Long);
  const auto result = module_.execute("forward", {et::EValue(ids_tensor), et::EValue(positions_tensor)});
  if (error != nullptr) *error = result.error();
  if (!result.ok()) {
    EXPECT_NE(error, nullptr) << "at position " << position << ": " << offgraph_error();
    return {};
  }
  const Tensor& tensor = result->at(0).toTensor();
  EXPECT_EQ(tensor.dim(), 3);
  EXPECT_EQ(tensor.size(1), n);
  return {.tokens = n, .vocab = tensor.size(2), .values = Floats(tensor)};
}

Logits EtModel::Steps(std::span<const int64_t> tokens, int64_t position, int64_t chunk) {
  Logits all;
  for (size_t done = 0; done < tokens.size();) {
    const size_t count = std::min(tokens.size() - done, static_cast<size_t>(chunk));
    const Logits step = Step(tokens.subspan(done, count), position + static_cast<int64_t>(done));
    all.vocab = step.vocab;
    all.tokens += step.tokens;
    all.values.insert(all.values.end(), step.values.begin(), step.values.end());
    done += count;
  }
  return all;
}

std::vector<int64_t> EtModel::Constant(const std::string& method) {
  const auto result = module_.execute(method);
  if (!result.ok()) throw std::runtime_error("constant method " + method);
  const et::EValue& value = result->at(0);
  if (value.isInt()) return {value.toInt()};
  return Convert<int32_t, int64_t>(value.toTensor());
}

delegate::CacheDefinition EtModel::Definition(delegate::KvDtype kv_dtype) {
  return {.capacity = Constant("get_max_ctx_len").at(0),
          .kv_dtype = kv_dtype,
          .windows = Constant("get_windows"),
          .max_step = Constant("get_prefill_chunk_size").at(0)};
}

Reference ReadReference(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  uint64_t header_size = 0;
  if (bytes.size() < sizeof(header_size)) throw std::runtime_error(path + " is no safetensors file");
  std::memcpy(&header_size, bytes.data(), sizeof(header_size));
  const auto header = nlohmann::json::parse(bytes.substr(8, header_size));
  const auto read = [&]<typename Element>(const char* name, const char* dtype, std::vector<Element>& out) {
    const auto& entry = header.at(name);
    if (entry.at("dtype") != dtype) throw std::runtime_error(path + ": another type of " + name);
    const auto begin = entry.at("data_offsets").at(0).get<size_t>();
    const auto end = entry.at("data_offsets").at(1).get<size_t>();
    out.resize((end - begin) / sizeof(Element));
    std::memcpy(out.data(), bytes.data() + 8 + header_size + begin, end - begin);
  };
  std::vector<int32_t> ids;
  Reference reference;
  read("ids", "I32", ids);
  read("logits", "F32", reference.logits.values);
  reference.ids.assign(ids.begin(), ids.end());
  reference.logits.tokens = static_cast<int64_t>(ids.size());
  reference.logits.vocab = header.at("logits").at("shape").at(1);
  return reference;
}

float LargestDifference(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return std::numeric_limits<float>::infinity();
  float largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const float difference = std::abs(a[i] - b[i]);
    if (!(difference <= largest)) largest = difference;  // NaN too
  }
  return largest;
}

}  // namespace offgraph::testing
