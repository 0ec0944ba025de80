// Look-ups of regions.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "offgraph/kernels/quantized.h"
#include "offgraph/program/region.h"

namespace offgraph::program {
namespace {

// Rows that are copied out of a table at once; they stay in the nearest cache.
constexpr int64_t kRowsAtOnce = 64;

// The same rows of up to three matrices: where they lie, or copied out of the file a few at a time.
template <size_t kParts>
class Table {
 public:
  explicit Table(std::array<TableMatrix, kParts> parts) : parts_(std::move(parts)) {
    for (const TableMatrix& part : parts_) in_place_ = in_place_ && !part.read;
  }

  // Calls embed(rows, index, views, out) for all rows, in order, in one piece or several.
  template <typename Embed>
  void LookUp(int64_t rows, const int64_t* index, const kernels::Block& out, kernels::ThreadPool& threads,
              const Embed& embed) const {
    if (in_place_) {
      std::array<const void*, kParts> data;
      for (size_t n = 0; n < kParts; ++n) data[n] = parts_[n].array.template data<void>();
      return embed(rows, index, ViewsOf(data), out);
    }
    std::array<int64_t, kRowsAtOnce> counting;
    std::iota(counting.begin(), counting.end(), 0);
    std::array<std::vector<std::byte>, kParts> copies;
    for (size_t n = 0; n < kParts; ++n) {
      copies[n].resize(RowBytes(n) * static_cast<size_t>(std::min(rows, kRowsAtOnce)));
    }
    for (int64_t row = 0; row < rows; row += kRowsAtOnce) {
      const int64_t count = std::min(kRowsAtOnce, rows - row);
      threads.ParallelFor(static_cast<size_t>(count), 16, [&](size_t begin, size_t end) {
        for (size_t i = begin; i < end; ++i)
          CopyRow(static_cast<size_t>(index[row + static_cast<int64_t>(i)]), i, copies);
      });
      std::array<const void*, kParts> data;
      for (size_t n = 0; n < kParts; ++n) data[n] = copies[n].data();
      kernels::Block part = out;
      part.data += row * out.row_stride;
      embed(count, counting.data(), ViewsOf(data), part);
    }
  }

 private:
  size_t RowBytes(size_t part) const {
    return parts_[part].array.nbytes() / static_cast<size_t>(parts_[part].array.shape(0));
  }

  void CopyRow(size_t from, size_t to, std::array<std::vector<std::byte>, kParts>& copies) const {
    for (size_t n = 0; n < kParts; ++n) {
      const size_t count = RowBytes(n);
      const std::byte* row = parts_[n].array.template data<std::byte>() + from * count;
      std::byte* copy = copies[n].data() + to * count;
      if (parts_[n].read) {
        parts_[n].read({row, count}, copy);
      } else {
        std::memcpy(copy, row, count);
      }
    }
  }

  std::array<kernels::MatrixView, kParts> ViewsOf(const std::array<const void*, kParts>& data) const {
    std::array<kernels::MatrixView, kParts> views;
    for (size_t n = 0; n < kParts; ++n) {
      const mlx::core::array& array = parts_[n].array;
      views[n] = {data[n], bytes::ToKernelType(array.dtype()), array.shape(1), 1};
    }
    return views;
  }

  std::array<TableMatrix, kParts> parts_;
  bool in_place_ = true;
};

}  // namespace

bytes::RegionLookup DenseLookup(TableMatrix table) {
  return [table = Table<1>({std::move(table)})](int64_t rows, const int64_t* index, const kernels::Block& out,
                                                kernels::ThreadPool& threads) {
    table.LookUp(rows, index, out, threads,
                 [&](int64_t count, const int64_t* of, const std::array<kernels::MatrixView, 1>& views,
                     const kernels::Block& to) { kernels::EmbedDense(count, of, views[0], to, threads); });
  };
}

bytes::RegionLookup QuantizedLookup(std::array<TableMatrix, 3> table, int bits, int group_size, kernels::DType round) {
  return [table = Table<3>(std::move(table)), bits, group_size, round](
             int64_t rows, const int64_t* index, const kernels::Block& out, kernels::ThreadPool& threads) {
    table.LookUp(
        rows, index, out, threads,
        [&](int64_t count, const int64_t* of, const std::array<kernels::MatrixView, 3>& views,
            const kernels::Block& to) {
          const kernels::QuantizedView view{
              static_cast<const uint32_t*>(views[0].data), views[0].row_stride, views[1], views[2], bits, group_size};
          kernels::EmbedQuantized(count, of, view, round, to, threads);
        });
  };
}

}  // namespace offgraph::program
