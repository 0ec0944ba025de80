#include "offgraph/kernels/linear_test_util.h"

// The instruction sets are chosen before Highway is read.
// clang-format off
#include "offgraph/kernels/isa.h"
#include <hwy/highway.h>
// clang-format on

#include <algorithm>
#include <cmath>
#include <limits>

namespace offgraph::kernels::test {
namespace {

constexpr uint8_t kGuard = 0x7E;  // as fp32 and bf16 a huge number, as fp16 NaN: it shows in any result

struct Format {
  int mantissa_bits;
  int min_exponent;  // of the smallest normal number
  double max;
};
Format FormatOf(DType type) {
  switch (type) {
    case DType::kFloat16:
      return {10, -14, 65504.0};
    case DType::kBFloat16:
      return {7, -126, 0x1.FEp127};
    case DType::kFloat32:
      break;
  }
  return {23, -126, std::numeric_limits<float>::max()};
}

}  // namespace

double FromBits(DType type, const void* p) {
  if (type == DType::kFloat32) {
    float value;
    std::memcpy(&value, p, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  const Format format = FormatOf(type);
  const int exponent_bits = 15 - format.mantissa_bits;
  const int exponent = bits >> format.mantissa_bits & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << format.mantissa_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  }
  const int whole = exponent == 0 ? mantissa : mantissa + (1 << format.mantissa_bits);
  return sign * std::ldexp(whole, std::max(exponent, 1) - 1 + format.min_exponent - format.mantissa_bits);
}

void ToBits(DType type, double value, void* p) {
  if (type == DType::kFloat32) {
    const auto narrow = static_cast<float>(value);
    std::memcpy(p, &narrow, sizeof(narrow));
    return;
  }
  const Format format = FormatOf(type);
  const int exponent_bits = 15 - format.mantissa_bits;
  uint16_t bits = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  if (std::isnan(value)) {
    bits |= 0x7FFF;
  } else {
    const int exponent = std::max(magnitude > 0 ? std::ilogb(magnitude) : format.min_exponent, format.min_exponent);
    const double unit = std::ldexp(1.0, std::min(exponent, 1023 - 60) - format.mantissa_bits);
    const double rounded = std::isinf(magnitude) ? magnitude : std::nearbyint(magnitude / unit) * unit;
    if (rounded > format.max) {
      bits |= ((1 << exponent_bits) - 1) << format.mantissa_bits;
    } else {
      // A subnormal's steps, and those of the numbers above it, follow one another in the bits as well.
      const int e = std::max(rounded > 0 ? std::ilogb(rounded) : format.min_exponent, format.min_exponent);
      const auto steps = static_cast<int64_t>(std::ldexp(rounded, format.mantissa_bits - e));
      bits |= static_cast<uint16_t>(((e - format.min_exponent) << format.mantissa_bits) + steps);
    }
  }
  std::memcpy(p, &bits, sizeof(bits));
}

double HalfUlp(DType type, double value) {
  const Format format = FormatOf(type);
  const int exponent = std::max(value == 0 ? format.min_exponent : std::ilogb(value), format.min_exponent);
  return std::ldexp(0.5, exponent - format.mantissa_bits);
}

Matrix::Matrix(int64_t rows, int64_t cols, DType type, int64_t row_gap, int64_t col_stride)
    : rows_(rows),
      cols_(cols),
      type_(type),
      row_stride_(cols * col_stride + row_gap),
      col_stride_(col_stride),
      bytes_(static_cast<size_t>(rows * row_stride_ + 1) * SizeOf(type), kGuard) {}

void Matrix::Fill(std::mt19937& random, double scale) {
  std::normal_distribution<double> normal(0.0, scale);
  for (int64_t i = 0; i < rows_; ++i) {
    for (int64_t j = 0; j < cols_; ++j) Set(i, j, normal(random));
  }
}

uint32_t Matrix::Bits(int64_t row, int64_t col) const {
  uint32_t bits = 0;
  std::memcpy(&bits, At(row, col), SizeOf(type_));
  return bits;
}

MatrixView Matrix::View(int64_t first_row) const { return {At(first_row, 0), type_, row_stride_, col_stride_}; }

MutableMatrixView Matrix::MutableView(int64_t first_row) { return {At(first_row, 0), type_, row_stride_}; }

bool Matrix::GuardsIntact() const {
  Matrix blank = *this;
  for (int64_t i = 0; i < rows_; ++i) {
    for (int64_t j = 0; j < cols_; ++j) std::memset(blank.At(i, j), kGuard, SizeOf(type_));
  }
  return std::all_of(blank.bytes_.begin(), blank.bytes_.end(), [](uint8_t byte) { return byte == kGuard; });
}

QuantizedMatrix::QuantizedMatrix(int64_t rows, int64_t cols, int bits, int group_size, DType scale_type,
                                 DType bias_type, std::mt19937& random, bool symmetric)
    : cols_(cols),
      bits_(bits),
      group_size_(group_size),
      words_(static_cast<size_t>(rows * cols / 32 * bits)),
      codes_(static_cast<size_t>(rows * cols)),
      scales_(rows, cols / group_size, scale_type, 3),
      biases_(rows, cols / group_size, bias_type, 1) {
  scales_.Fill(random, 0.1);
  biases_.Fill(random, 0.3);
  for (int64_t i = 0; symmetric && i < rows; ++i) {
    for (int64_t j = 0; j < scales_.cols(); ++j) biases_.Set(i, j, -std::ldexp(scales_.Get(i, j), bits - 1));
  }
  for (int64_t i = 0; i < rows * cols; ++i) {
    codes_[i] = random() & ((1U << bits) - 1);
    for (int bit = 0; bit < bits; ++bit) {
      const int64_t place = i * bits + bit;
      words_[place / 32] |= (codes_[i] >> bit & 1U) << (place % 32);
    }
  }
}

QuantizedView QuantizedMatrix::View() const {
  return {words_.data(), cols_ / 32 * bits_, scales_.View(), biases_.View(), bits_, group_size_};
}

double QuantizedMatrix::Get(int64_t row, int64_t col) const {
  return scales_.Get(row, col / group_size_) * Code(row, col) + biases_.Get(row, col / group_size_);
}

void ForEachTarget(const std::function<void(const std::string&)>& body) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    body(hwy::TargetName(target));
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
}

}  // namespace offgraph::kernels::test
