// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>

#include "record_builder.h"

namespace vitrine {
namespace {

using namespace audit_test;

/// Record `index`: its size and content follow from the index alone.
std::vector<std::byte> numbered_record(uint64_t index, size_t max_bytes) {
  Rng rng(index);
  std::vector<std::byte> bytes(
      8 + static_cast<size_t>(uniform(rng, 0, static_cast<int32_t>(max_bytes - 8))));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng());
  put(bytes, 0, index);
  return bytes;
}

uint64_t index_of(std::span<const std::byte> record) {
  uint64_t index;
  std::memcpy(&index, record.data(), 8);
  return index;
}

bool equal(std::span<const std::byte> got, const std::vector<std::byte>& want) {
  return got.size() == want.size() && std::memcmp(got.data(), want.data(), want.size()) == 0;
}

TEST(SlabRing, WaitsForAConcurrentReaderAndLosesNothing) {
  constexpr size_t kMaxBytes = 500;
  constexpr uint64_t kRecords = 30000;
  // From a ring that holds two largest records to one that holds many.
  for (const size_t capacity :
       {size_t{0}, size_t{1017}, size_t{1040}, size_t{5000}, size_t{1} << 16}) {
    SlabRing ring(capacity, SlabRing::WhenFull::kWait);
    ring.open(four_layers(), kMaxBytes);
    uint64_t next = 0;
    bool all_equal = true;
    bool all_aligned = true;
    std::thread reader([&] {
      while (next < kRecords) {
        const size_t count = ring.drain([&](std::span<const std::byte> record) {
          all_equal = all_equal && equal(record, numbered_record(next, kMaxBytes));
          all_aligned =
              all_aligned && reinterpret_cast<uintptr_t>(record.data()) % alignof(uint64_t) == 0;
          ++next;
        });
        if (count == 0) std::this_thread::yield();
      }
    });
    for (uint64_t i = 0; i < kRecords; ++i) send(ring, numbered_record(i, kMaxBytes));
    reader.join();
    EXPECT_TRUE(all_equal) << capacity;
    EXPECT_TRUE(all_aligned) << capacity;
    EXPECT_EQ(next, kRecords);
    EXPECT_EQ(ring.overwritten(), 0u);
    EXPECT_EQ(ring.drain([](std::span<const std::byte>) { FAIL(); }), 0u);
  }
}

TEST(SlabRing, FullRingWaitsUntilTheReaderReleases) {
  SlabRing ring(0, SlabRing::WhenFull::kWait);
  std::atomic<int> num_calls{0};
  ring.on_full([&] { ++num_calls; });
  ring.open(four_layers(), 64);
  const std::vector<std::byte> bytes(64, std::byte{1});
  send(ring, bytes);
  send(ring, bytes);
  EXPECT_EQ(num_calls, 0);
  std::atomic<bool> sent{false};
  std::thread writer([&] {
    send(ring, bytes);
    sent = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(sent);
  EXPECT_EQ(num_calls, 1);
  EXPECT_EQ(ring.drain([](std::span<const std::byte>) {}), 2u);
  writer.join();
  EXPECT_EQ(ring.drain([](std::span<const std::byte>) {}), 1u);
}

TEST(SlabRing, OverwriteKeepsTheNewestAndCountsTheRest) {
  constexpr size_t kMaxBytes = 300;
  for (const size_t capacity : {size_t{0}, size_t{999}, size_t{4096}}) {
    SlabRing ring(capacity, SlabRing::WhenFull::kOverwrite);
    ring.open(four_layers(), kMaxBytes);
    Rng rng(capacity);
    uint64_t written = 0;
    uint64_t read = 0;
    for (int round = 0; round < 300; ++round) {
      const uint64_t first_unread = written;
      for (int i = uniform(rng, 0, 60); i > 0; --i)
        send(ring, numbered_record(written++, kMaxBytes));
      uint64_t expected = 0;
      size_t bytes = 0;
      const size_t count = ring.drain([&](std::span<const std::byte> record) {
        if (bytes == 0) expected = index_of(record);
        EXPECT_GE(expected, first_unread);
        EXPECT_TRUE(equal(record, numbered_record(expected++, kMaxBytes)));
        bytes += record.size();
      });
      read += count;
      if (written > first_unread) {
        EXPECT_EQ(expected, written);  // the newest is always there
      }
      EXPECT_EQ(ring.overwritten() + read, written);
      // All but a record's room is in use where something was forgotten.
      if (count < written - first_unread) {
        EXPECT_GE(bytes + count * 16 + 2 * (kMaxBytes + 16), std::max(capacity, 2 * kMaxBytes));
      }
    }
    EXPECT_GT(ring.overwritten(), 0u);
  }
}

TEST(SlabRing, GrowsForTheLargestRecord) {
  SlabRing ring(64, SlabRing::WhenFull::kWait);
  ring.open(four_layers(), 100000);
  const std::vector<std::byte> bytes = numbered_record(3, 100000);
  for (int i = 0; i < 10; ++i) {
    send(ring, bytes);
    EXPECT_EQ(ring.drain([&](auto record) { EXPECT_TRUE(equal(record, bytes)); }), 1u);
  }
}

TEST(SlabRing, ReservedButNotCommittedIsNotSeen) {
  SlabRing ring(1000, SlabRing::WhenFull::kWait);
  ring.open(four_layers(), 100);
  for (uint64_t i = 0; i < 100; ++i) {
    std::memset(ring.reserve(100), 0xEE, 100);
    EXPECT_EQ(ring.drain([](std::span<const std::byte>) { FAIL(); }), 0u);
    send(ring, numbered_record(i, 100));
    EXPECT_EQ(ring.drain([&](auto record) { EXPECT_TRUE(equal(record, numbered_record(i, 100))); }),
              1u);
  }
}

TEST(SlabRing, WhatConsumeThrowsPassesAndReleasesThatRecord) {
  SlabRing ring(1000, SlabRing::WhenFull::kWait);
  ring.open(four_layers(), 100);
  for (uint64_t i = 0; i < 3; ++i) send(ring, numbered_record(i, 100));
  EXPECT_THROW(ring.drain([](std::span<const std::byte>) { throw std::runtime_error("no"); }),
               std::runtime_error);
  uint64_t next = 1;
  EXPECT_EQ(ring.drain([&](auto record) { EXPECT_EQ(index_of(record), next++); }), 2u);
}

TEST(SlabRing, OpensAgain) {
  SlabRing ring(1000, SlabRing::WhenFull::kOverwrite);
  ring.open(four_layers(), 100);
  send(ring, numbered_record(0, 100));
  ring.open(four_layers(), 90);  // the same layout: nothing is lost
  EXPECT_EQ(ring.drain([](std::span<const std::byte>) {}), 1u);
  send(ring, numbered_record(1, 100));
  ring.open(four_layers(AuditLevel::kFull), 5000);  // another: what is unread has the old one
  EXPECT_EQ(ring.overwritten(), 1u);
  EXPECT_EQ(ring.layout().level, AuditLevel::kFull);
  EXPECT_EQ(ring.drain([](std::span<const std::byte>) { FAIL(); }), 0u);
  send(ring, numbered_record(2, 5000));
  EXPECT_EQ(ring.drain([](std::span<const std::byte>) {}), 1u);
}

TEST(SlabRing, RefusesMisuse) {
  SlabRing ring(1000, SlabRing::WhenFull::kWait);
  EXPECT_THROW(ring.reserve(8), Error);
  EXPECT_THROW(ring.commit(), Error);
  EXPECT_EQ(ring.drain([](std::span<const std::byte>) { FAIL(); }), 0u);
  ring.open(four_layers(), 100);
  EXPECT_THROW(ring.drain({}), Error);
  EXPECT_THROW(ring.reserve(101), Error);
  EXPECT_THROW(ring.commit(), Error);
  AuditLayout bad = four_layers();
  bad.layers[0].top_k = 99;
  EXPECT_THROW(ring.open(bad, 100), Error);
  try {
    ring.open(four_layers(AuditLevel::kFull), size_t{1} << 60);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory);
  }
}

TEST(SlabRing, DrainsRecordsAsStructs) {
  Rng rng(3);
  const AuditLayout layout = four_layers(AuditLevel::kFull);
  SlabRing ring(1 << 16, SlabRing::WhenFull::kWait);
  ring.open(layout, audit_record_bytes(layout, 5, 5));
  std::vector<TokenRecord> expected;
  for (uint64_t pass = 0; pass < 20; ++pass) {
    const BuiltPass built = build_pass(layout, pass, uniform(rng, 1, 5), rng);
    send(ring, built.bytes);
    expected.insert(expected.end(), built.expected.begin(), built.expected.end());
  }
  const std::vector<TokenRecord> records = ring.drain_records();
  ASSERT_EQ(records.size(), expected.size());
  for (size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ(records[i].sequence, expected[i].sequence);
    EXPECT_EQ(records[i].layers[3].router_probs, expected[i].layers[3].router_probs);
  }
}

}  // namespace
}  // namespace vitrine
