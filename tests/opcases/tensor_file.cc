#include "tests/opcases/tensor_file.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace offgraph::testing {
namespace {

using program::HostTensor;
using program::ScalarType;

constexpr std::array<ScalarType, 6> kTypes = {ScalarType::kFloat, ScalarType::kHalf,     ScalarType::kInt,
                                              ScalarType::kLong,  ScalarType::kBFloat16, ScalarType::kBool};

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error("cannot read " + path);
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
  }
  template <typename T>
  T Read() {
    T value;
    std::memcpy(&value, Take(sizeof(T)), sizeof(T));
    return value;
  }
  const char* Take(size_t count) {
    if (count > bytes_.size() - at_) throw std::runtime_error(path_ + " is cut");
    at_ += count;
    return bytes_.data() + at_ - count;
  }
  bool done() const { return at_ == bytes_.size(); }

 private:
  std::string path_;
  std::vector<char> bytes_;
  size_t at_ = 0;
};

double FromHalf(uint16_t bits) {
  const double sign = (bits & 0x8000U) != 0 ? -1 : 1;
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  if (exponent == 31) return fraction != 0 ? NAN : sign * INFINITY;
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
}

template <typename T, typename Convert>
std::vector<double> Convert1(const HostTensor& tensor, size_t count, Convert convert) {
  std::vector<double> values(count);
  for (size_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, static_cast<const char*>(tensor.data.get()) + i * sizeof(T), sizeof(T));
    values[i] = convert(value);
  }
  return values;
}

}  // namespace

std::vector<HostTensor> ReadTensorFile(const std::string& path) {
  Reader reader(path);
  std::vector<HostTensor> tensors(reader.Read<uint32_t>());
  for (HostTensor& tensor : tensors) {
    tensor.type = kTypes.at(reader.Read<uint32_t>());
    tensor.shape.resize(reader.Read<uint32_t>());
    auto bytes = static_cast<size_t>(SizeOf(tensor.type));
    for (int64_t& dim : tensor.shape) {
      dim = reader.Read<int32_t>();
      bytes *= static_cast<size_t>(dim);
    }
    const char* data = reader.Take(bytes);
    auto owner = std::make_shared<std::vector<char>>(data, data + bytes);
    tensor.data = std::shared_ptr<const void>(owner, owner->data());
  }
  if (!reader.done()) throw std::runtime_error(path + " is longer than its tensors");
  return tensors;
}

std::vector<double> ToDoubles(const HostTensor& tensor) {
  size_t count = 1;
  for (int64_t dim : tensor.shape) count *= static_cast<size_t>(dim);
  const auto same = [](auto value) { return static_cast<double>(value); };
  switch (tensor.type) {
    case ScalarType::kFloat:
      return Convert1<float>(tensor, count, same);
    case ScalarType::kHalf:
      return Convert1<uint16_t>(tensor, count, FromHalf);
    case ScalarType::kInt:
      return Convert1<int32_t>(tensor, count, same);
    case ScalarType::kLong:
      return Convert1<int64_t>(tensor, count, same);
    case ScalarType::kBFloat16:
      return Convert1<uint16_t>(tensor, count,
                                [](uint16_t bits) { return double{std::bit_cast<float>(uint32_t{bits} << 16)}; });
    case ScalarType::kBool:
      return Convert1<uint8_t>(tensor, count, same);
    default:
      throw std::runtime_error("a tensor of " + Name(tensor.type));
  }
}

}  // namespace offgraph::testing
