// Matrices for the tests of the linear kernels: values of any element type, strided, with a double-precision view.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "offgraph/kernels/linear.h"
#include "offgraph/kernels/quantized.h"

namespace offgraph::kernels::test {

// Conversions that share nothing with the kernels: by the definition of the formats, in double precision.
double FromBits(DType type, const void* p);
// Rounds to nearest even.
void ToBits(DType type, double value, void* p);
// Half the distance between neighbours of `type` at `value`: the largest error of one rounding.
double HalfUlp(DType type, double value);

// [rows, cols] with guard elements between rows and after the end, whose bytes tell a stray write.
class Matrix {
 public:
  Matrix(int64_t rows, int64_t cols, DType type, int64_t row_gap = 0, int64_t col_stride = 1);

  // Values of a normal distribution, rounded to the type.
  void Fill(std::mt19937& random, double scale = 1.0);
  void Set(int64_t row, int64_t col, double value) { ToBits(type_, value, At(row, col)); }
  double Get(int64_t row, int64_t col) const { return FromBits(type_, At(row, col)); }
  uint32_t Bits(int64_t row, int64_t col) const;

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  DType type() const { return type_; }
  MatrixView View(int64_t first_row = 0) const;
  MutableMatrixView MutableView(int64_t first_row = 0);
  // Whether everything beside the elements is as it was made.
  bool GuardsIntact() const;

 private:
  uint8_t* At(int64_t row, int64_t col) {
    return bytes_.data() + (row * row_stride_ + col * col_stride_) * static_cast<int64_t>(SizeOf(type_));
  }
  const uint8_t* At(int64_t row, int64_t col) const { return const_cast<Matrix*>(this)->At(row, col); }

  int64_t rows_;
  int64_t cols_;
  DType type_;
  int64_t row_stride_;
  int64_t col_stride_;
  std::vector<uint8_t> bytes_;
};

// A quantized matrix with random codes, packed bit by bit as quantized.h describes. Where it is symmetric, the biases
// are -2^(bits - 1) times the scales; else they are random.
class QuantizedMatrix {
 public:
  QuantizedMatrix(int64_t rows, int64_t cols, int bits, int group_size, DType scale_type, DType bias_type,
                  std::mt19937& random, bool symmetric = false);

  QuantizedView View() const;
  // The dequantized value before any rounding.
  double Get(int64_t row, int64_t col) const;
  uint32_t Code(int64_t row, int64_t col) const { return codes_[row * cols_ + col]; }
  const Matrix& scales() const { return scales_; }
  const Matrix& biases() const { return biases_; }

 private:
  int64_t cols_;
  int bits_;
  int group_size_;
  std::vector<uint32_t> words_;
  std::vector<uint32_t> codes_;
  Matrix scales_;
  Matrix biases_;
};

// Runs `body(name of the target)` once for every instruction set that was compiled and that this processor has.
void ForEachTarget(const std::function<void(const std::string&)>& body);

}  // namespace offgraph::kernels::test
