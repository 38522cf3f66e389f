// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/emulator/emulated_runtime.h"

#include <cstdlib>
#include <cstring>
#include <utility>

namespace vitrine::kernels::cuda::emulator {

namespace {

constexpr int kOutOfMemory = 2;  // cudaErrorMemoryAllocation

class RecordedGraph final : public backend_cuda::StepGraph {
 public:
  explicit RecordedGraph(std::unique_ptr<Graph> graph) : graph_(std::move(graph)) {}
  int64_t num_kernels() const override { return graph_->num_kernels(); }
  Status replay() const { return graph_->replay(); }

 private:
  std::unique_ptr<Graph> graph_;
};

}  // namespace

TestRuntime::~TestRuntime() {
  for (const auto& [memory, bytes] : held_) std::free(memory);
}

Status TestRuntime::allocate(size_t bytes, void** memory) {
  if (traffic_.allocated + bytes > capacity_ || posix_memalign(memory, 256, bytes) != 0) {
    *memory = nullptr;
    return {kOutOfMemory, "out of memory"};
  }
  std::memset(*memory, 0xff, bytes);
  held_[*memory] = bytes;
  traffic_.allocated += bytes;
  return {};
}

void TestRuntime::release(void* memory) {
  static_cast<void>(catch_up());  // as cudaFree does
  const auto found = held_.find(memory);
  traffic_.allocated -= found->second;
  held_.erase(found);
  std::free(memory);
}

Status TestRuntime::allocate_host(size_t bytes, void** memory) {
  if (posix_memalign(memory, 256, bytes) != 0) return {kOutOfMemory, "out of memory"};
  host_held_[*memory] = bytes;
  return {};
}

void TestRuntime::release_host(void* memory) {
  host_held_.erase(memory);
  std::free(memory);
}

Status TestRuntime::catch_up() {
  Status first;
  for (const std::function<Status()>& start : std::exchange(started_, {})) {
    const Status status = start();
    if (first.ok()) first = status;
  }
  return first;
}

Status TestRuntime::memory_info(size_t* free, size_t* total) {
  *free = capacity_ - traffic_.allocated;
  *total = capacity_;
  return {};
}

Status TestRuntime::copy_to_device(void* to, const void* from, size_t bytes) {
  ++traffic_.to_device;
  const auto copy = [=] {
    std::memcpy(to, from, bytes);
    return Status{};
  };
  if (host_held_.contains(from)) {
    started_.emplace_back(copy);
    return {};
  }
  const Status status = catch_up();
  copy();
  return status;
}

Status TestRuntime::start_read_back(int lane, void* to, const void* from, size_t bytes) {
  ++traffic_.to_host;
  traffic_.bytes_to_host += bytes;
  lanes_[lane] = {to, from, bytes};
  return {};
}

Status TestRuntime::finish_read_back(int lane) {
  const Status status = catch_up();
  const ReadBack copy = std::exchange(lanes_[lane], {});
  if (copy.bytes > 0) std::memcpy(copy.to, copy.from, copy.bytes);
  return status;
}

Status TestRuntime::copy_on_device(void* to, const void* from, size_t bytes, size_t stride,
                                   size_t count) {
  started_.emplace_back([=] {
    for (size_t i = 0; i < count; ++i) {
      std::memcpy(static_cast<std::byte*>(to) + i * stride,
                  static_cast<const std::byte*>(from) + i * stride, bytes);
    }
    return Status{};
  });
  return {};
}

Status TestRuntime::clear(void* memory, size_t bytes) {
  started_.emplace_back([=] {
    std::memset(memory, 0, bytes);
    return Status{};
  });
  return {};
}

Status TestRuntime::begin_capture() {
  ++traffic_.captures;
  capture_ = std::make_unique<Graph>();
  capture_->begin_capture(stream());
  return {};
}

Status TestRuntime::end_capture(std::unique_ptr<backend_cuda::StepGraph>* graph) {
  capture_->end_capture();
  *graph = std::make_unique<RecordedGraph>(std::move(capture_));
  return {};
}

Status TestRuntime::launch(backend_cuda::StepGraph& graph) {
  ++traffic_.graph_launches;
  started_.emplace_back(
      [recorded = &static_cast<RecordedGraph&>(graph)] { return recorded->replay(); });
  return {};
}

}  // namespace vitrine::kernels::cuda::emulator
