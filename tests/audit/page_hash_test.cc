// SPDX-License-Identifier: Apache-2.0
// Rows hash as messages alone do; 16-bit floats are the nearest.
#include "src/audit/page_hash.h"

#include <gtest/gtest.h>
#include <sodium.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "src/audit/merkle.h"
#include "src/core/half_float.h"

namespace vitrine::audit {
namespace {

constexpr Purpose kPurpose = purpose("test");

TEST(PageHash, RowsAreMessagesOfTheirOwn) {
  std::mt19937_64 random(1);
  for (const size_t row_bytes :
       {0u, 1u, 8u, 35u, 36u, 43u, 44u, 45u, 107u, 108u, 109u, 240u, 352u, 1000u}) {
    for (const size_t count : {1u, 7u, 8u, 9u, 21u}) {
      Bytes rows(row_bytes * count), salts(kSaltBytes * count), digests(kDigestBytes * count);
      for (uint8_t& byte : rows) byte = static_cast<uint8_t>(random());
      for (uint8_t& byte : salts) byte = static_cast<uint8_t>(random());
      for (const bool is_salted : {true, false}) {
        hash_rows(kPurpose, is_salted ? salts.data() : nullptr, rows.data(), row_bytes, count,
                  digests.data());
        for (size_t i = 0; i < count; ++i) {
          const ByteSpan salt =
              is_salted ? ByteSpan(salts).subspan(kSaltBytes * i, kSaltBytes) : ByteSpan();
          const Digest want =
              hash(kPurpose, salt, ByteSpan(rows).subspan(row_bytes * i, row_bytes));
          EXPECT_EQ(std::memcmp(digests.data() + kDigestBytes * i, want.data(), kDigestBytes), 0)
              << row_bytes << " bytes, row " << i << " of " << count;
        }
      }
    }
  }
}

TEST(PageHash, IsTheLibrarysOfTheTagAndTheMessage) {
  EXPECT_NE(hash(kLeafPurpose, {}), hash(kNodePurpose, {}));
  std::string message = "leaf" + std::string(200, 'x');
  const ByteSpan bytes = bytes_of(message);
  Digest want;
  for (size_t size = 4; size <= message.size(); ++size) {
    crypto_hash_sha256(want.data(), bytes.data(), size);
    const size_t middle = 4 + (size - 4) / 3;
    EXPECT_EQ(
        hash(kLeafPurpose, bytes.subspan(4, middle - 4), bytes.subspan(middle, size - middle)),
        want)
        << size;
  }
}

TEST(Merkle, RootIsOfEveryLeafInItsPlace) {
  std::mt19937_64 random(2);
  for (size_t count = 1; count <= 300; ++count) {
    Bytes leaves(count * kDigestBytes);
    for (uint8_t& byte : leaves) byte = static_cast<uint8_t>(random());
    Bytes work = leaves;
    const Digest root = merkle_root(work);
    // By recursion, one node at a time.
    std::vector<Digest> level(count);
    std::memcpy(level.data(), leaves.data(), leaves.size());
    while (level.size() > 1) {
      std::vector<Digest> above;
      for (size_t first = 0; first < level.size(); first += 16) {
        const size_t some = std::min<size_t>(16, level.size() - first);
        above.push_back(hash(kNodePurpose, {level[first].data(), some * kDigestBytes}));
      }
      level = above;
    }
    EXPECT_EQ(root, level[0]) << count;
    work = leaves;
    work[random() % work.size()] ^= 1;
    EXPECT_NE(merkle_root(work), root);
  }
}

TEST(HalfFloat, IsTheNearest) {
  // Every binary16 and bfloat16 comes back; so does the nearest of a float between two of them.
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = from_half(half), brain = from_bfloat16(half);
    if (!std::isnan(value)) {
      EXPECT_EQ(to_half(value), half);
    }
    if (!std::isnan(brain)) {
      EXPECT_EQ(to_bfloat16(brain), half);
    }
  }
  std::mt19937_64 random(3);
  for (int i = 0; i < 200000; ++i) {
    const float value =
        std::ldexp(static_cast<float>(random() >> 40), static_cast<int>(random() % 60) - 50);
    if (value >= 65504.0f) continue;
    const float rounded = from_half(to_half(value));
    const float above = from_half(static_cast<uint16_t>(to_half(value) + 1));
    const float below =
        to_half(value) == 0 ? 0 : from_half(static_cast<uint16_t>(to_half(value) - 1));
    EXPECT_LE(std::fabs(rounded - value), std::fabs(above - value));
    EXPECT_LE(std::fabs(rounded - value), std::fabs(below - value));
  }
  EXPECT_EQ(to_half(1e30f), 0x7C00);
  EXPECT_EQ(to_half(-1e30f), 0xFC00);
  EXPECT_EQ(to_half(65519.0f), 0x7BFF);
  EXPECT_EQ(to_half(65520.0f), 0x7C00);
  EXPECT_EQ(to_half(std::nanf("")), 0x7E00);
  EXPECT_EQ(to_half(-std::nanf("1")), 0x7E00);
  EXPECT_EQ(to_half(-0.0f), 0x8000);
}

}  // namespace
}  // namespace vitrine::audit
