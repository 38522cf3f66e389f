// SPDX-License-Identifier: Apache-2.0
// The emulator finds what it is there to find, and its warps compute what the PTX manual says.
#include <string>

#include "tests/cuda/cuda_test_util.h"

namespace vitrine::kernels::cuda::testing {
namespace {

bool says(const Status& status, const std::string& part) {
  return status.code == emulator::kFault &&
         std::string(status.what).find(part) != std::string::npos;
}

// Each thread leaves its index for its neighbour.
VITRINE_KERNEL(1024) void rotate_kernel(bool with_barrier, int32_t* out) {
  auto* words = &dynamic_shared<int32_t[1024]>()[0][0];
  const int t = thread_index(), n = block_threads();
  words[t] = t;
  if (with_barrier) sync_block();
  out[block_x() * n + t] = words[(t + 1) % n];
}

TEST(CudaEmulator, AMissingBarrierShowsUnderSomeOrder) {
  for (const bool with_barrier : {true, false}) {
    int wrong = 0;
    for (uint64_t seed = 0; seed < 4; ++seed) {
      emulator::set_seed(seed);
      DeviceArray<int32_t> out(3 * 96);
      ASSERT_TRUE(ok(launch(rotate_kernel, {3}, 96, 4096, nullptr, with_barrier, out.data())));
      for (int i = 0; i < 3 * 96; ++i) wrong += out[static_cast<size_t>(i)] != (i % 96 + 1) % 96;
    }
    EXPECT_EQ(wrong == 0, with_barrier);
  }
}

VITRINE_KERNEL(64) void early_return_kernel() {
  if (thread_index() == 40) return;
  sync_block();
}
VITRINE_KERNEL(64) void lone_barrier_kernel() {
  if (thread_index() < 32) {
    sync_block();
  } else {
    sync_block();
  }
}
VITRINE_KERNEL(64) void half_warp_kernel(int32_t* out) {
  if (lane_index() < 16) out[thread_index()] = shuffle_xor(thread_index(), 1);
}
VITRINE_KERNEL(64) void two_shuffles_kernel(int32_t* out) {
  if (lane_index() < 16) {
    out[thread_index()] = shuffle_xor(thread_index(), 1);
  } else {
    out[thread_index()] = shuffle(thread_index(), 1);
  }
}

TEST(CudaEmulator, ThreadsThatWaitForOthersInVainAreReported) {
  DeviceArray<int32_t> out(64);
  EXPECT_TRUE(
      says(launch(early_return_kernel, {2}, 64, 0, nullptr), "1 threads (40 first) returned"));
  EXPECT_TRUE(says(launch(lone_barrier_kernel, {1}, 64, 0, nullptr), "different barriers"));
  EXPECT_TRUE(says(launch(half_warp_kernel, {1}, 64, 0, nullptr, out.data()), "returned"));
  EXPECT_TRUE(
      says(launch(two_shuffles_kernel, {1}, 64, 0, nullptr, out.data()), "different places"));
  // The next launch is a new one.
  EXPECT_TRUE(ok(launch(rotate_kernel, {1}, 64, 4096, nullptr, true, out.data())));
}

TEST(CudaEmulator, RefusesLaunchesThatAGpuWould) {
  DeviceArray<int32_t> out(64);
  EXPECT_FALSE(launch(rotate_kernel, {0}, 64, 4096, nullptr, true, out.data()).ok());
  EXPECT_FALSE(launch(rotate_kernel, {1}, 48, 4096, nullptr, true, out.data()).ok());
  EXPECT_FALSE(launch(rotate_kernel, {1}, 2048, 4096, nullptr, true, out.data()).ok());
  EXPECT_FALSE(launch(rotate_kernel, {1}, 64, 256 * 1024, nullptr, true, out.data()).ok());
  EXPECT_TRUE(
      says(launch(rotate_kernel, {1}, 64, 4092, nullptr, true, out.data()), "4092 were launched"));
}

VITRINE_KERNEL(32) void copy_kernel(const float* from, bool with_wait, bool at_end, float* out) {
  auto* words = &dynamic_shared<float[128]>()[0][0];
  copy_async16(words + 4 * thread_index(), from + 4 * thread_index(), thread_index() != 5);
  copy_async_commit();
  if (with_wait) copy_async_wait<0>();
  sync_block();
  const int other = (thread_index() + 1) % 32;
  for (int i = 0; i < 4; ++i) out[4 * other + i] = words[4 * other + i];
  if (at_end) {
    sync_block();  // else a wait here would bring what others are still to read
    copy_async_wait<0>();
  }
}

TEST(CudaEmulator, AnAsynchronousCopyArrivesWithItsWait) {
  Random random(3);
  const DeviceArray<float> from(random.normals(128));
  DeviceArray<float> out(128);
  ASSERT_TRUE(ok(launch(copy_kernel, {1}, 32, 512, nullptr, from.data(), true, false, out.data())));
  for (size_t i = 0; i < 128; ++i) EXPECT_EQ(out[i], i / 4 == 5 ? 0.0f : from[i]);
  ASSERT_TRUE(ok(launch(copy_kernel, {1}, 32, 512, nullptr, from.data(), false, true, out.data())));
  for (size_t i = 0; i < 128; ++i) EXPECT_TRUE(std::isnan(out[i]));
  EXPECT_TRUE(
      says(launch(copy_kernel, {1}, 32, 512, nullptr, from.data(), false, false, out.data()),
           "under way"));
  EXPECT_TRUE(
      says(launch(copy_kernel, {1}, 32, 512, nullptr, from.data() + 1, true, false, out.data()),
           "misaligned"));
}

// Fragments element by element, as the PTX ISA's "Matrix Fragments" sections list them.
struct Element {
  int row, col;
};
Element element_a16(int lane, int i) {
  const bool is_upper = i < 2 || (i >= 4 && i < 6);
  return {lane / 4 + (is_upper ? 0 : 8), lane % 4 * 2 + (i & 1) + (i < 4 ? 0 : 8)};
}
Element element_b16(int lane, int i) {
  return {lane % 4 * 2 + (i & 1) + (i < 2 ? 0 : 8), lane / 4};
}
Element element_a8(int lane, int i) {
  const bool is_upper = i < 4 || (i >= 8 && i < 12);
  return {lane / 4 + (is_upper ? 0 : 8), lane % 4 * 4 + (i & 3) + (i < 8 ? 0 : 16)};
}
Element element_b8(int lane, int i) {
  return {lane % 4 * 4 + (i & 3) + (i < 4 ? 0 : 16), lane / 4};
}
Element element_c(int lane, int i) { return {lane / 4 + (i < 2 ? 0 : 8), lane % 4 * 2 + (i & 1)}; }

VITRINE_KERNEL(32) void mma_kernel(const uint32_t* a, const uint32_t* b, int kind, float* out) {
  uint32_t own_a[4], own_b[2];
  for (int r = 0; r < 4; ++r) own_a[r] = a[4 * lane_index() + r];
  for (int r = 0; r < 2; ++r) own_b[r] = b[2 * lane_index() + r];
  if (kind == 2) {
    const int32_t c[4] = {0, 1, 2, 3};
    int32_t d[4];
    mma_s8_m16n8k32(d, own_a, own_b, c);
    for (int i = 0; i < 4; ++i) out[4 * lane_index() + i] = static_cast<float>(d[i]);
    return;
  }
  const float c[4] = {0, 1, 2, 3};
  float d[4];
  if (kind == 0) mma_bf16_m16n8k16(d, own_a, own_b, c);
  if (kind == 1) mma_f16_m16n8k16(d, own_a, own_b, c);
  if (kind == 3) mma_e4m3_m16n8k32(d, own_a, own_b, c);
  for (int i = 0; i < 4; ++i) out[4 * lane_index() + i] = d[i];
}

TEST(CudaEmulator, TensorCoresMultiplyTheFragmentsOfThePtxManual) {
  for (const int kind : {0, 1, 2, 3}) {
    const bool is_bytes = kind >= 2;
    const int depth = is_bytes ? 32 : 16, bits = is_bytes ? 8 : 16, per_word = 32 / bits;
    Random random(21);
    std::vector<int> a(static_cast<size_t>(16 * depth)), b(static_cast<size_t>(depth * 8));
    for (int& value : a) value = random.integer(-9, 9);
    for (int& value : b) value = random.integer(-9, 9);
    const auto encode = [&](int value) -> uint32_t {
      const auto number = static_cast<float>(value);
      return kind == 0   ? narrow_bf16(number)
             : kind == 1 ? narrow_f16(number)
             : kind == 3 ? narrow_e4m3(number)
                         : static_cast<uint8_t>(static_cast<int8_t>(value));
    };
    DeviceArray<uint32_t> words_a(128), words_b(64);
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4 * per_word; ++i) {
        const Element at = is_bytes ? element_a8(lane, i) : element_a16(lane, i);
        uint32_t& word = words_a[static_cast<size_t>(4 * lane + i / per_word)];
        if (i % per_word == 0) word = 0;
        word |= encode(a[static_cast<size_t>(at.row * depth + at.col)]) << (bits * (i % per_word));
      }
      for (int i = 0; i < 2 * per_word; ++i) {
        const Element at = is_bytes ? element_b8(lane, i) : element_b16(lane, i);
        uint32_t& word = words_b[static_cast<size_t>(2 * lane + i / per_word)];
        if (i % per_word == 0) word = 0;
        word |= encode(b[static_cast<size_t>(at.row * 8 + at.col)]) << (bits * (i % per_word));
      }
    }
    DeviceArray<float> out(128);
    ASSERT_TRUE(ok(
        launch(mma_kernel, {1}, 32, 0, nullptr, words_a.data(), words_b.data(), kind, out.data())));
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4; ++i) {
        const Element at = element_c(lane, i);
        int sum = i;
        for (int k = 0; k < depth; ++k) {
          sum +=
              a[static_cast<size_t>(at.row * depth + k)] * b[static_cast<size_t>(k * 8 + at.col)];
        }
        EXPECT_EQ(out[static_cast<size_t>(4 * lane + i)], static_cast<float>(sum))
            << "kind " << kind;
      }
    }
  }
}

// Four matrices of 8 x 8, row r of matrix m at (8 * m + r) * 8 halves; element = its index there.
template <int kCount, bool kTranspose>
VITRINE_KERNEL(32)
void load_matrix_kernel(uint32_t* out) {
  auto* halves = &dynamic_shared<uint16_t[256]>()[0][0];
  for (int i = lane_index(); i < 256; i += 32) halves[i] = static_cast<uint16_t>(i);
  sync_warp();
  uint32_t r[kCount];
  load_matrix<kCount, kTranspose>(r, halves + 8 * lane_index());
  for (int m = 0; m < kCount; ++m) out[4 * lane_index() + m] = r[m];
}

template <int kCount, bool kTranspose>
void expect_matrices() {
  DeviceArray<uint32_t> out(128);
  ASSERT_TRUE(
      ok(launch(load_matrix_kernel<kCount, kTranspose>, {1}, 32, 512, nullptr, out.data())));
  for (uint32_t lane = 0; lane < 32; ++lane) {
    for (uint32_t m = 0; m < kCount; ++m) {
      const auto element = [&](uint32_t i) {
        const uint32_t row = lane / 4, col = lane % 4 * 2 + i;
        return 64 * m + (kTranspose ? 8 * col + row : 8 * row + col);
      };
      EXPECT_EQ(out[4 * lane + m], element(0) | element(1) << 16) << "lane " << lane;
    }
  }
}

TEST(CudaEmulator, LoadsMatricesAsThePtxManualSays) {
  expect_matrices<1, false>();
  expect_matrices<2, false>();
  expect_matrices<4, false>();
  expect_matrices<1, true>();
  expect_matrices<2, true>();
  expect_matrices<4, true>();
}

VITRINE_KERNEL(64) void warp_functions_kernel(uint32_t* out) {
  const int lane = lane_index();
  const auto value = static_cast<uint32_t>(10 * thread_index());
  uint32_t* own = out + 10 * thread_index();
  own[0] = shuffle_xor(value, 5);
  own[1] = shuffle(value, 7);
  own[2] = shuffle_down(value, 3);
  own[3] = shuffle_up(value, 3);
  own[4] = ballot(lane % 3 == 0);
  own[5] = match(lane / 10);
  own[6] = reduce_max(value);
  own[7] = reduce_min(value);
  own[8] = reduce_add(value);
  own[9] = static_cast<uint32_t>(shuffle_xor(static_cast<uint64_t>(value) << 32, 1) >> 32);
}

TEST(CudaEmulator, WarpFunctions) {
  DeviceArray<uint32_t> out(640);
  ASSERT_TRUE(ok(launch(warp_functions_kernel, {1}, 64, 0, nullptr, out.data())));
  for (uint32_t t = 0; t < 64; ++t) {
    const uint32_t lane = t % 32, first = t - lane;
    uint32_t thirds = 0, tens = 0;
    for (uint32_t other = 0; other < 32; ++other) {
      thirds |= (other % 3 == 0 ? 1u : 0u) << other;
      tens |= (other / 10 == lane / 10 ? 1u : 0u) << other;
    }
    const std::vector<uint32_t> expected = {10 * (first + (lane ^ 5)),
                                            10 * (first + 7),
                                            10 * (lane + 3 < 32 ? t + 3 : t),
                                            10 * (lane >= 3 ? t - 3 : t),
                                            thirds,
                                            tens,
                                            10 * (first + 31),
                                            10 * first,
                                            10 * (32 * first + 31 * 16),
                                            10 * (t ^ 1)};
    for (uint32_t i = 0; i < 10; ++i) EXPECT_EQ(out[10 * t + i], expected[i]) << "function " << i;
  }
}

VITRINE_KERNEL(32) void increment_kernel(int32_t by, int32_t* at) {
  if (thread_index() == 0) atomic_add(at, by);
}

TEST(CudaEmulator, AGraphRecordsItsLaunchesAndReplaysThem) {
  DeviceArray<int32_t> sum(std::vector<int32_t>{0});
  const auto stream = reinterpret_cast<Stream>(&sum);
  emulator::Graph graph;
  graph.begin_capture(stream);
  ASSERT_TRUE(ok(launch(increment_kernel, {2}, 32, 0, stream, 3, sum.data())));
  ASSERT_TRUE(ok(launch(increment_kernel, {1}, 32, 0, stream, 10, sum.data())));
  ASSERT_TRUE(
      ok(launch(increment_kernel, {1}, 32, 0, nullptr, 100, sum.data())));  // another stream
  graph.end_capture();
  EXPECT_EQ(sum[0], 100);
  EXPECT_EQ(graph.num_kernels(), 2);
  const int64_t before = emulator::launch_count();
  ASSERT_TRUE(ok(graph.replay()));
  ASSERT_TRUE(ok(graph.replay()));
  EXPECT_EQ(sum[0], 132);
  EXPECT_EQ(emulator::launch_count() - before, 4);
  ASSERT_TRUE(ok(launch(increment_kernel, {1}, 32, 0, stream, 1, sum.data())));
  EXPECT_EQ(sum[0], 133);
}

TEST(CudaEmulator, MemoryBeginsAsNaN) {
  DeviceArray<float> out(128);
  for (size_t i = 0; i < 128; ++i) EXPECT_TRUE(std::isnan(out[i]));
  const DeviceArray<float> from(std::vector<float>(128, 1.0f));
  // Nothing is written where lane 5 copies zeros, and shared memory of the launch before is gone.
  ASSERT_TRUE(ok(launch(copy_kernel, {1}, 32, 512, nullptr, from.data(), true, false, out.data())));
  ASSERT_TRUE(ok(launch(copy_kernel, {1}, 32, 512, nullptr, from.data(), false, true, out.data())));
  for (size_t i = 0; i < 128; ++i) EXPECT_TRUE(std::isnan(out[i]));
}

TEST(Float8, NearestWithTiesToEvenAndSaturation) {
  for (int code = 0; code < 256; ++code) {
    const float value = widen_e4m3(static_cast<uint8_t>(code));
    if (std::isnan(value)) {
      EXPECT_EQ(code & 0x7f, 0x7f);
      continue;
    }
    EXPECT_EQ(narrow_e4m3(value), code);
    if ((code & 0x7f) >= 0x7e) continue;
    const float next = widen_e4m3(static_cast<uint8_t>(code + 1));
    const float middle = (value + next) / 2;
    EXPECT_EQ(narrow_e4m3(middle), code % 2 == 0 ? code : code + 1) << value;
    EXPECT_EQ(narrow_e4m3(std::nextafter(middle, value)), code);
    EXPECT_EQ(narrow_e4m3(std::nextafter(middle, next)), code + 1);
  }
  EXPECT_EQ(widen_e4m3(0x7e), 448.0f);
  EXPECT_EQ(widen_e4m3(0x01), 0x1p-9f);
  EXPECT_EQ(narrow_e4m3(1e30f), 0x7e);
  EXPECT_EQ(narrow_e4m3(-INFINITY), 0xfe);
  EXPECT_TRUE(std::isnan(widen_e4m3(narrow_e4m3(NAN))));
}

}  // namespace
}  // namespace vitrine::kernels::cuda::testing
