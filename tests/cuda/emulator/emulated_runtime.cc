#include "tests/cuda/emulator/emulated_runtime.h"

#include <cstdlib>
#include <cstring>

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
  const auto found = held_.find(memory);
  traffic_.allocated -= found->second;
  held_.erase(found);
  std::free(memory);
}

Status TestRuntime::allocate_host(size_t bytes, void** memory) {
  return posix_memalign(memory, 256, bytes) == 0 ? Status{} : Status{kOutOfMemory, "out of memory"};
}

void TestRuntime::release_host(void* memory) { std::free(memory); }

Status TestRuntime::memory_info(size_t* free, size_t* total) {
  *free = capacity_ - traffic_.allocated;
  *total = capacity_;
  return {};
}

Status TestRuntime::copy_to_device(void* to, const void* from, size_t bytes) {
  ++traffic_.to_device;
  std::memcpy(to, from, bytes);
  return {};
}

Status TestRuntime::read_back(void* to, const void* from, size_t bytes) {
  ++traffic_.to_host;
  traffic_.bytes_to_host += bytes;
  std::memcpy(to, from, bytes);
  return {};
}

Status TestRuntime::copy_on_device(void* to, const void* from, size_t bytes) {
  std::memcpy(to, from, bytes);
  return {};
}

Status TestRuntime::clear(void* memory, size_t bytes) {
  std::memset(memory, 0, bytes);
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
  return static_cast<RecordedGraph&>(graph).replay();
}

}  // namespace vitrine::kernels::cuda::emulator
