#include "offgraph/apps/table.h"

#include <algorithm>
#include <utility>

namespace offgraph::apps {
namespace {

// Code points of UTF-8: bytes that do not continue one.
size_t Width(const std::string& text) {
  return static_cast<size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

void Table::AddRow(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

std::string Table::Draw() const {
  std::vector<size_t> widths;
  for (size_t c = 0; c < columns_.size(); ++c) {
    size_t width = Width(columns_[c].title);
    for (const auto& row : rows_) width = std::max(width, Width(row[c]));
    widths.push_back(width);
  }
  const auto rule = [&](const char* left, const char* middle, const char* right) {
    std::string line = left;
    for (size_t c = 0; c < widths.size(); ++c) {
      if (c > 0) line += middle;
      for (size_t i = 0; i < widths[c] + 2; ++i) line += "─";
    }
    return line + right + "\n";
  };
  const auto line = [&](const auto& cell_of) {
    std::string text = "│";
    for (size_t c = 0; c < widths.size(); ++c) {
      const std::string& cell = cell_of(c);
      const size_t padding = widths[c] - Width(cell);
      const bool left = columns_[c].align == Align::kLeft;
      text.append(left ? 1 : padding + 1, ' ').append(cell).append(left ? padding : 0, ' ');
      text += " │";
    }
    return text + "\n";
  };
  std::string text = rule("┌", "┬", "┐") + line([&](size_t c) -> const std::string& { return columns_[c].title; }) +
                     rule("├", "┼", "┤");
  for (const auto& row : rows_) text += line([&](size_t c) -> const std::string& { return row[c]; });
  return text + rule("└", "┴", "┘");
}

}  // namespace offgraph::apps
