// SPDX-License-Identifier: Apache-2.0
#include "examples/cli/machine_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace cli {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

class MachineMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove_all(root_); }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::pair<uint64_t, uint64_t> find() const {
    const auto memory = machine_memory(root_.string());
    return memory ? std::pair(memory->total / kMiB, memory->free / kMiB) : std::pair(0UL, 0UL);
  }

  const std::filesystem::path root_ =
      std::filesystem::temp_directory_path() /
      ("machine_memory_" +
       std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
};

TEST_F(MachineMemoryTest, IsWhatTheSystemSays) {
  EXPECT_EQ(find(), std::pair(0UL, 0UL));
  write("proc/meminfo", "MemTotal:        8192 kB\nMemFree: 1 kB\nMemAvailable:    4096 kB\n");
  EXPECT_EQ(find(), std::pair(8UL, 4UL));
  const auto here = machine_memory();
  ASSERT_TRUE(here.has_value());
  EXPECT_GT(here->total, here->free);
  EXPECT_GT(here->free, 0U);
}

TEST_F(MachineMemoryTest, IsNoMoreThanAControlGroupGives) {
  write("proc/meminfo", "MemTotal: 8192 kB\nMemAvailable: 4096 kB\nHugePages_Total: 0\n");
  write("sys/fs/cgroup/memory.max", "max\n");
  EXPECT_EQ(find(), std::pair(8UL, 4UL));
  write("sys/fs/cgroup/memory.max", std::to_string(6 * kMiB) + "\n");
  write("sys/fs/cgroup/memory.current", std::to_string(3 * kMiB) + "\n");
  EXPECT_EQ(find(), std::pair(6UL, 3UL));
  write("sys/fs/cgroup/memory.current", std::to_string(7 * kMiB) + "\n");
  EXPECT_EQ(find(), std::pair(6UL, 0UL));
  std::filesystem::remove_all(root_ / "sys");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string(5 * kMiB) + "\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", std::to_string(4 * kMiB) + "\n");
  EXPECT_EQ(find(), std::pair(5UL, 1UL));
}

}  // namespace
}  // namespace cli
