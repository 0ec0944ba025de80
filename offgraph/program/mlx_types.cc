#include "offgraph/program/mlx_types.h"

#include <mlx/allocator.h>
#include <mlx/device.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "offgraph/cache/error.h"

namespace offgraph::program {
namespace {

namespace mx = mlx::core;

const std::array<std::pair<ScalarType, mx::Dtype>, 13> kTypes = {{
    {ScalarType::kByte, mx::uint8},
    {ScalarType::kChar, mx::int8},
    {ScalarType::kShort, mx::int16},
    {ScalarType::kInt, mx::int32},
    {ScalarType::kLong, mx::int64},
    {ScalarType::kHalf, mx::float16},
    {ScalarType::kFloat, mx::float32},
    {ScalarType::kDouble, mx::float64},
    {ScalarType::kBool, mx::bool_},
    {ScalarType::kBFloat16, mx::bfloat16},
    {ScalarType::kUInt16, mx::uint16},
    {ScalarType::kUInt32, mx::uint32},
    {ScalarType::kUInt64, mx::uint64},
}};

template <typename Dims>
std::string Text(const Dims& dims) {
  std::string text = "[";
  bool first = true;
  for (int64_t dim : dims) {
    text += (first ? "" : ", ") + std::to_string(dim);
    first = false;
  }
  return text + "]";
}

}  // namespace

mx::Dtype ToMlx(ScalarType type) {
  for (const auto& [scalar, dtype] : kTypes) {
    if (scalar == type) return dtype;
  }
  throw Error(ErrorCode::kInternal, "element " + Name(type) + " was not checked");
}

ScalarType FromMlx(mx::Dtype type) {
  for (const auto& [scalar, dtype] : kTypes) {
    if (dtype == type) return scalar;
  }
  throw Error(ErrorCode::kUnsupported, "a result of complex numbers");
}

std::string ShapeText(const mx::Shape& shape) { return Text(shape); }
std::string ShapeText(std::span<const int64_t> shape) { return Text(shape); }

mx::Shape ToShape(std::span<const int64_t> shape, int64_t item_size, const std::string& what) {
  mx::Shape result;
  int64_t bytes = item_size;
  for (int64_t dim : shape) {
    const bool fits = dim >= 0 && dim <= std::numeric_limits<int32_t>::max();
    if (!fits || __builtin_mul_overflow(bytes, dim == 0 ? 1 : dim, &bytes)) {
      throw Error(ErrorCode::kInvalidArgument, what + ": shape " + Text(shape) + " is not possible");
    }
    result.push_back(static_cast<int32_t>(dim));
  }
  return result;
}

mx::array FromHost(const HostTensor& tensor) {
  const mx::Shape shape = ToShape(tensor.shape, SizeOf(tensor.type), "tensor");
  // MLX takes a pointer to mutable memory; it writes only into memory that it allocated itself.
  void* data = const_cast<void*>(tensor.data.get());
  return mx::array(data, shape, ToMlx(tensor.type), [owner = tensor.data](void*) {});
}

// MLX's way to take memory of others, the constructor above, copies it on CPU: a buffer of its allocator has its size
// in front. An array may lie at any distance from its buffer, though. So a buffer of one byte stands for the memory.
mx::array Borrow(const HostTensor& tensor) {
  if (mx::default_device() != mx::Device::cpu) return FromHost(tensor);
  const mx::Shape shape = ToShape(tensor.shape, SizeOf(tensor.type), "tensor");
  mx::array array(mx::allocator::malloc(1), shape, ToMlx(tensor.type));
  // Made before the buffer: it may be refused memory, and nobody would free the buffer then.
  mx::allocator::Deleter deleter = [owner = tensor.data](mx::allocator::Buffer buffer) {
    mx::allocator::allocator().free(buffer);
  };
  mx::allocator::Data anchor(mx::allocator::allocator().malloc(1), std::move(deleter));
  const auto distance =
      reinterpret_cast<intptr_t>(tensor.data.get()) - reinterpret_cast<intptr_t>(anchor.buffer().raw_ptr());
  array.set_data(std::move(anchor), array.data_size(), array.strides(), array.flags(), distance);
  return array;
}

HostTensor ToHost(const mx::array& array) {
  HostTensor tensor;
  tensor.type = FromMlx(array.dtype());
  tensor.shape.assign(array.shape().begin(), array.shape().end());
  auto owner = std::make_shared<const mx::array>(array);
  tensor.data = std::shared_ptr<const void>(owner, owner->data<std::byte>());
  return tensor;
}

void CheckFitsMachine(int64_t bytes, const std::string& what) {
  static const int64_t memory = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
  if (bytes <= memory) return;
  throw Error(ErrorCode::kOutOfMemory,
              what + " takes " + std::to_string(bytes) + " bytes, and this machine has " + std::to_string(memory));
}

mx::array Zeros(const mx::Shape& shape, mx::Dtype type) {
  size_t bytes = type.size();
  for (int32_t dim : shape) bytes *= static_cast<size_t>(dim);
  CheckFitsMachine(static_cast<int64_t>(bytes), "a tensor of shape " + ShapeText(shape));
  mx::allocator::Data data = mx::allocator::malloc(bytes);
  if (bytes > 0 && data.buffer().raw_ptr() == nullptr) {
    throw Error(ErrorCode::kOutOfMemory, "no memory for a tensor of shape " + ShapeText(shape));
  }
  if (bytes > 0) std::memset(data.buffer().raw_ptr(), 0, bytes);
  return mx::array(std::move(data), shape, type);
}

}  // namespace offgraph::program
