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
  // And the next launch is a new one.
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

}  // namespace
}  // namespace vitrine::kernels::cuda::testing
