// SPDX-License-Identifier: Apache-2.0
// What every codec of keys and values promises, on every instruction set that it has.
#include "kv/codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace vitrine::kv {
namespace {

using kernels::CpuKernels;
using kernels::KvKernels;
using kernels::KvView;

constexpr int32_t kHeadDim = 48, kHeads = 2, kBlocks = 3;

std::vector<float> row_of(int32_t position, int32_t seed) {
  std::vector<float> row(kHeadDim);
  for (int32_t d = 0; d < kHeadDim; ++d) {
    row[static_cast<size_t>(d)] =
        std::sin(static_cast<float>(position * 131 + d * 7 + seed * 1009)) * 3;
  }
  return row;
}

/// Blocks of a codec's own length, all of whose bytes are set to `fill`.
struct Store {
  Store(const CodecEntry& codec, uint8_t fill)
      : length(codec.block_length),
        key_block(static_cast<size_t>(kHeads * length * codec.key_bytes(kHeadDim))),
        value_block(static_cast<size_t>(kHeads * length * codec.value_bytes(kHeadDim))),
        keys(kBlocks * key_block, fill),
        values(kBlocks * value_block, fill),
        view{keys.data(), values.data(), kHeads, kHeadDim, length} {}

  void copy_block(int32_t from, int32_t to) {
    std::memcpy(&keys[static_cast<size_t>(to) * key_block],
                &keys[static_cast<size_t>(from) * key_block], key_block);
    std::memcpy(&values[static_cast<size_t>(to) * value_block],
                &values[static_cast<size_t>(from) * value_block], value_block);
  }

  int32_t length;
  size_t key_block, value_block;
  std::vector<uint8_t> keys, values;
  KvView view;
};

/// Writes positions [begin, end) of head 1 into the blocks of `table`.
void write(const KvKernels& kernels, Store& store, const int32_t* table, int32_t begin,
           int32_t end) {
  for (int32_t p = begin; p < end; ++p) {
    kernels.write(store.view, table[p / store.length], p % store.length, 1, row_of(p, 1).data(),
                  row_of(p, 2).data());
  }
}

std::vector<float> attend(const KvKernels& kernels, const Store& store, const int32_t* table,
                          int32_t position) {
  const std::vector<float> query = row_of(position, 3);
  std::vector<float> out(kHeadDim);
  kernels::AttentionSpan span;
  span.block_table = table;
  span.kv_head = 1;
  span.position = position;
  span.scale = 0.1f;
  span.query = query.data();
  span.out = out.data();
  kernels.attend(store.view, span);
  return out;
}

class Codecs : public ::testing::TestWithParam<std::string> {
 protected:
  template <typename Check>
  void on_each_table(Check check) {
    const CodecEntry& codec = find_codec(GetParam());
    int checked = 0;
    for (const CpuKernels* table : kernels::cpu_kernel_tables()) {
      SCOPED_TRACE(table->isa);
      const KvKernels* found = codec.cpu_kernels(*table);
      if (found == nullptr) continue;
      check(codec, *found);
      ++checked;
    }
    EXPECT_GT(checked, 0);
  }
};

// A single position gives its value; where nothing else is said, nearly.
TEST_P(Codecs, AreAsExactAsTheySay) {
  on_each_table([](const CodecEntry& codec, const KvKernels& kernels) {
    Store store(codec, 0xff);
    const int32_t table[] = {2};
    write(kernels, store, table, 0, 1);
    const std::vector<float> value = row_of(0, 2), out = attend(kernels, store, table, 0);
    EXPECT_EQ(out == value, codec.is_exact);
    for (size_t d = 0; d < value.size(); ++d) EXPECT_NEAR(out[d], value[d], 0.02) << d;
  });
}

// What a position's row is depends on the positions up to it alone: not on what the memory held,
// on which blocks they are in, on what was written behind it and again, or on a copy.
TEST_P(Codecs, GiveEachPositionItsOwnRow) {
  on_each_table([](const CodecEntry& codec, const KvKernels& kernels) {
    const int32_t n = codec.block_length;
    Store first(codec, 0), second(codec, 0xff);
    const int32_t straight[] = {0, 1}, crossed[] = {2, 0}, copied[] = {1, 0};
    write(kernels, first, straight, 0, n + 5);
    for (int32_t p = 0; p < n + 5; ++p) {
      write(kernels, second, crossed, p, p + 1);
      ASSERT_EQ(attend(kernels, first, straight, p), attend(kernels, second, crossed, p)) << p;
    }
    // A block was full and is opened again: a draft that was rejected.
    for (const int32_t kept : {n - 3, n - 1, n}) {
      for (int32_t p = kept; p < n + 5; ++p) {
        kernels.write(second.view, crossed[p / n], p % n, 1, row_of(p, 8).data(),
                      row_of(p, 9).data());
      }
      ASSERT_EQ(attend(kernels, first, straight, kept - 1),
                attend(kernels, second, crossed, kept - 1));
      write(kernels, second, crossed, kept, n + 5);
      ASSERT_EQ(attend(kernels, first, straight, n + 4), attend(kernels, second, crossed, n + 4));
    }
    second.copy_block(2, 1);
    ASSERT_EQ(attend(kernels, first, straight, n + 4), attend(kernels, second, copied, n + 4));
  });
}

INSTANTIATE_TEST_SUITE_P(All, Codecs, ::testing::ValuesIn(codec_names()),
                         [](const auto& info) { return info.param; });

TEST(CodecNames, AreThoseOfThisVersion) {
  EXPECT_EQ(codec_names(), (std::vector<std::string>{"bf16", "f16", "f32", "i16"}));
  EXPECT_THROW(find_codec("i8"), Error);
}

}  // namespace
}  // namespace vitrine::kv
