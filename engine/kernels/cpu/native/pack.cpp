// Packs stored rows into panels: brings each row to the format and interleaves 32 of them.
#include "pack.h"

#include <new>
#include <vector>

#include "kernels.h"
#include "pack_rows.h"

namespace qd::pack {
namespace {

constexpr int kHalfPanel = kPanel / 2;

// Rows of one panel in the format, and room for the floats of one of them.
class Panel {
 public:
  // Throws std::bad_alloc.
  Panel(int32_t format, int columns, int width)
      : format_(format), columns_(columns), width_(width),
        groups_(static_cast<size_t>(width) / kBlock + 1),
        scales_(kPanel * groups_), minima_(kPanel * groups_),
        bytes_(kPanel * row_size()),
        values_(static_cast<size_t>(columns)), kept_(static_cast<size_t>(columns)) {}

  void set(int channel, const qd_stored_row& stored, qd_squares* squares) {
    clear(channel);
    if (stored.data == nullptr) return;
    const Row row = at(channel);
    const bool exact = is_exact(stored.kind, format_);
    if (!exact) dequantize(stored.kind, stored.data, columns_, values_.data());
    if (!transfer(stored.kind, stored.data, columns_, format_, row))
      quantize(values_.data(), columns_, format_, row);
    if (!exact) measure(row, squares);
  }

  void write(uint8_t* out) const {
    switch (format_) {
      case QD_BF16: return write_words(0, 2 * width_, out);
      case QD_W4_G32: return write_nibbles(out);
      case QD_I8_G32: return write_bytes(32, out);
      default: return write_bytes(64, out);
    }
  }

 private:
  Row at(int channel) {
    const size_t c = static_cast<size_t>(channel);
    return {scales_.data() + c * groups_, minima_.data() + c * groups_,
            bytes_.data() + c * row_size()};
  }

  size_t row_size() const { return 2 * static_cast<size_t>(width_); }

  const uint8_t* row_bytes(int channel) const {
    return bytes_.data() + static_cast<size_t>(channel) * row_size();
  }

  // Zeros: of int8 the byte 128, else all bits.
  void clear(int channel) {
    const Row row = at(channel);
    const bool is_int8 = format_ == QD_I8_G32 || format_ == QD_I8_G64;
    memset(row.scales, 0, kHalfBytes * groups_);
    memset(row.minima, 0, kHalfBytes * groups_);
    memset(row.bytes, is_int8 ? 128 : 0, row_size());
  }

  void measure(const Row& row, qd_squares* squares) {
    values_of(row, columns_, format_, kept_.data());
    double error = 0.0, total = 0.0;
    for (size_t i = 0; i < values_.size(); ++i) {
      const double difference = static_cast<double>(kept_[i]) - static_cast<double>(values_[i]);
      error += difference * difference;
      total += static_cast<double>(values_[i]) * static_cast<double>(values_[i]);
    }
    squares->error += error;
    squares->values += total;
  }

  // `count` bytes of each row, from `first` on, as [count/4][2 halves][16 channels][4].
  void write_words(int first, int count, uint8_t* out) const {
    for (int channel = 0; channel < kPanel; ++channel) {
      const uint8_t* from = row_bytes(channel) + first;
      for (int i = 0; i < count / 4; ++i)
        memcpy(out + (static_cast<ptrdiff_t>(i) * kPanel + channel) * 4, from + 4 * i, 4);
    }
  }

  uint8_t* write_column(const std::vector<uint16_t>& of, int group, uint8_t* out) const {
    for (int channel = 0; channel < kPanel; ++channel)
      memcpy(out + kHalfBytes * channel,
             of.data() + static_cast<size_t>(channel) * groups_ + static_cast<size_t>(group),
             kHalfBytes);
    return out + kHalfBytes * kPanel;
  }

  void write_bytes(int group_size, uint8_t* out) const {
    for (int group = 0; group < width_ / group_size; ++group) {
      out = write_column(scales_, group, out);
      write_words(group * group_size, group_size, out);
      out += kPanel * group_size;
    }
  }

  // A row has inputs 0-15 of a group in low nibbles and 16-31 in high ones; the panel wants the
  // inputs of channels 0-15 in low ones and those of channels 16-31 in high ones.
  void write_nibbles(uint8_t* out) const {
    for (int group = 0; group < width_ / kBlock; ++group) {
      out = write_column(scales_, group, out);
      out = write_column(minima_, group, out);
      for (int channel = 0; channel < kHalfPanel; ++channel) {
        const uint8_t* low = row_bytes(channel) + 16 * group;
        const uint8_t* high = row_bytes(channel + kHalfPanel) + 16 * group;
        for (int i = 0; i < 4; ++i) {
          const uint32_t a = load_u32(low + 4 * i), b = load_u32(high + 4 * i);
          const uint32_t first = (a & 0x0f0f0f0fu) | (b & 0x0f0f0f0fu) << 4;
          const uint32_t second = (a >> 4 & 0x0f0f0f0fu) | (b & 0xf0f0f0f0u);
          memcpy(out + 64 * i + 4 * channel, &first, 4);
          memcpy(out + 64 * (i + 4) + 4 * channel, &second, 4);
        }
      }
      out += 64 * 8;
    }
  }

  int32_t format_;
  int columns_, width_;
  size_t groups_;
  std::vector<uint16_t> scales_, minima_;
  std::vector<uint8_t> bytes_;
  std::vector<float> values_, kept_;
};

int64_t panel_bytes(int32_t format, int width) {
  const int64_t inputs = width;
  switch (format) {
    case QD_BF16: return inputs * kPanel * 2;
    case QD_W4_G32: return inputs / 32 * (4 * kPanel + 16 * kPanel);
    case QD_I8_G32: return inputs / 32 * (2 * kPanel + 32 * kPanel);
    default: return inputs / 64 * (2 * kPanel + 64 * kPanel);
  }
}

bool is_sound(int32_t columns, int32_t format, int32_t width) {
  static constexpr int kGroups[] = {2, 32, 32, 64};
  return format >= QD_BF16 && format <= QD_I8_G64 && columns > 0 && width >= columns &&
         width % kGroups[format] == 0;
}

bool is_sound(const qd_stored_row& row, int32_t columns) {
  if (row.data == nullptr) return true;
  const Kind* kind = kind_of(row.kind);
  return kind != nullptr && columns % kind->block_values == 0;
}

}  // namespace
}  // namespace qd::pack

int32_t qd_pack(const qd_stored_row* rows, int32_t num_panels, int32_t columns, int32_t format,
                int32_t width, uint8_t* panels, qd_squares* squares) {
  using namespace qd::pack;
  if (num_panels < 0 || !is_sound(columns, format, width)) return QD_BAD_VALUE;
  const int64_t num_rows = static_cast<int64_t>(num_panels) * qd::kPanel;
  for (int64_t row = 0; row < num_rows; ++row)
    if (!is_sound(rows[row], columns)) return QD_BAD_VALUE;
  try {
    Panel panel(format, columns, width);
    for (int32_t i = 0; i < num_panels; ++i) {
      for (int channel = 0; channel < qd::kPanel; ++channel)
        panel.set(channel, rows[static_cast<int64_t>(i) * qd::kPanel + channel], squares);
      panel.write(panels + i * panel_bytes(format, width));
    }
  } catch (const std::bad_alloc&) {
    return QD_NO_MEMORY;
  }
  return QD_OK;
}
