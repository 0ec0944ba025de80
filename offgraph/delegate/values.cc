#include "offgraph/delegate/values.h"

#include <executorch/runtime/core/exec_aten/util/tensor_util.h>

#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "offgraph/cache/error.h"

namespace offgraph::delegate {
namespace {

using executorch::aten::SizesType;
using executorch::aten::Tensor;
using executorch::runtime::EValue;

Error Invalid(const std::string& what) { return {ErrorCode::kInvalidArgument, what}; }

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (const int64_t size : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

program::HostTensor FromTensor(const Tensor& tensor, const std::string& what) {
  if (!executorch::runtime::tensor_is_default_dim_order(tensor)) {
    throw Invalid(what + ": the tensor's dimensions are permuted in memory, expected a contiguous tensor");
  }
  const size_t size = tensor.nbytes();
  if (size > 0 && tensor.const_data_ptr() == nullptr) throw Invalid(what + ": the tensor has no data");
  program::HostTensor host;
  host.type = static_cast<program::ScalarType>(tensor.scalar_type());
  host.shape.assign(tensor.sizes().begin(), tensor.sizes().end());
  // A copy, since a program may keep its input (in a mutable buffer) longer than the caller keeps the tensor.
  const std::shared_ptr<std::byte[]> data(new std::byte[size]);
  if (size > 0) std::memcpy(data.get(), tensor.const_data_ptr(), size);
  host.data = std::shared_ptr<const void>(data, data.get());
  return host;
}

void ToTensor(const program::HostTensor& result, Tensor& tensor, const std::string& what) {
  const auto expected = static_cast<program::ScalarType>(tensor.scalar_type());
  if (result.type != expected) {
    throw Invalid(what + ": the program gives " + program::Name(result.type) + ", the method's output is " +
                  program::Name(expected));
  }
  std::vector<SizesType> sizes;
  size_t bytes = static_cast<size_t>(program::SizeOf(result.type));
  for (const int64_t size : result.shape) {
    if (size < 0 || size > std::numeric_limits<SizesType>::max()) {
      throw Invalid(what + ": the program gives a shape that ExecuTorch has no room for: " + ShapeText(result.shape));
    }
    sizes.push_back(static_cast<SizesType>(size));
    bytes *= static_cast<size_t>(size);
  }
  const std::vector<int64_t> declared(tensor.sizes().begin(), tensor.sizes().end());
  if (executorch::runtime::resize_tensor(tensor, {sizes.data(), sizes.size()}) != executorch::runtime::Error::Ok) {
    throw Error(ErrorCode::kOutOfRange, what + ": the program gives shape " + ShapeText(result.shape) +
                                            ", and the method's output, now " + ShapeText(declared) +
                                            ", cannot be resized to it");
  }
  if (bytes == 0) return;
  if (tensor.nbytes() != bytes || tensor.const_data_ptr() == nullptr) {
    throw Invalid(what + ": the program gives " + std::to_string(bytes) + " bytes, the method's output has room for " +
                  std::to_string(tensor.const_data_ptr() == nullptr ? 0 : tensor.nbytes()));
  }
  std::memcpy(tensor.mutable_data_ptr(), result.data.get(), bytes);
}

}  // namespace

program::Argument FromEValue(const EValue& value, const std::string& what) {
  if (value.isTensor()) return FromTensor(value.toTensor(), what);
  if (value.isInt()) return value.toInt();
  if (value.isDouble()) return value.toDouble();
  if (value.isBool()) return value.toBool();
  throw Invalid(what + ": expected a tensor, an integer, a double or a bool, got ExecuTorch's value kind " +
                std::to_string(static_cast<int>(value.tag)));
}

void ToEValue(const program::Argument& result, EValue& value, const std::string& what) {
  if (const auto* tensor = std::get_if<program::HostTensor>(&result)) {
    if (!value.isTensor()) throw Invalid(what + ": the program gives a tensor, the method's output is none");
    ToTensor(*tensor, value.toTensor(), what);
  } else if (const auto* integer = std::get_if<int64_t>(&result)) {
    value = EValue(*integer);
  } else if (const auto* real = std::get_if<double>(&result)) {
    value = EValue(*real);
  } else {
    value = EValue(std::get<bool>(result));
  }
}

}  // namespace offgraph::delegate
