// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/emulator/emulator.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <numeric>
#include <string>

#include "tests/cuda/emulator/fiber.h"

namespace vitrine::kernels::cuda {
namespace {

using host::Exchange;
using host::Launch;
using host::Site;

enum class State : uint8_t { kReady, kAtWarp, kAtBlock, kReturned };

struct Copy {
  void* to;
  const void* from;
  bool valid;
  int group;
};

struct Thread {
  emulator::Fiber fiber;
  host::Place place;
  State state = State::kReady;
  const char* what = "";  // the function at which it waits
  Site site = {"", 0};
  std::vector<Copy> copies;
  int copy_group = 0;  // closed so far
};

/// Two buffers: a lane may give to its next meeting while others still read the last one.
struct Warp {
  Exchange buffers[2];
  int generation = 0;
  int waiting = 0;
};

struct FreeMemory {
  void operator()(void* memory) const { std::free(memory); }
};

class Machine {
 public:
  Status run(const Launch& launch, const std::function<void()>& thread);
  void wait(State state, const char* what, Site site);
  void set_failure(const std::string& message) { failure_ = message; }
  [[noreturn]] void stop();
  void run_fiber();

  Thread& current() { return *current_; }
  Warp& warp() { return warps_[static_cast<size_t>(current_->place.thread) / kWarp]; }
  const Launch& launch() const { return launch_; }
  void* shared() { return shared_.get(); }

  uint64_t random_state = 1;
  int64_t launches = 0;
  std::map<Stream, emulator::Graph*> captures;

 private:
  bool run_block(Dim3 block);
  bool run_turn(std::vector<int>& warps);
  bool run_warp(int warp);
  void note_wait(Thread& thread);
  void release_warp(int warp);
  void release_block();
  std::string describe_waiting() const;
  uint32_t random(uint32_t below);
  template <typename Order>
  void shuffle_order(Order& order);

  Launch launch_;
  const std::function<void()>* body_ = nullptr;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<Warp> warps_;
  std::unique_ptr<void, FreeMemory> shared_;
  Thread* current_ = nullptr;
  int at_block_ = 0;
  int returned_ = 0;
  std::string failure_;
};

Machine& machine() {
  static Machine machine;
  return machine;
}

// splitmix64 (Steele et al., 2014).
uint32_t Machine::random(uint32_t below) {
  uint64_t z = random_state += 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return static_cast<uint32_t>((z ^ (z >> 31)) >> 32) % below;
}

template <typename Order>
void Machine::shuffle_order(Order& order) {
  for (size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[random(static_cast<uint32_t>(i))]);
  }
}

std::string at(Site site) { return std::string(site.file) + ":" + std::to_string(site.line); }

Status Machine::run(const Launch& launch, const std::function<void()>& thread) {
  constexpr size_t kMaxShared = 227 * 1024;
  if (launch.threads <= 0 || launch.threads > 1024 || launch.threads % kWarp != 0) {
    return refuse("a block's threads: expected a multiple of 32, at most 1024");
  }
  if (launch.grid.x == 0 || launch.grid.y == 0 || launch.grid.z == 0 ||
      launch.grid.x > 0x7fffffff || launch.grid.y > 65535 || launch.grid.z > 65535) {
    return refuse("the grid: expected 1 to 2^31 - 1, 65535 and 65535 blocks");
  }
  if (launch.shared_bytes > kMaxShared) return refuse("shared memory: expected at most 227 KiB");
  ++launches;
  failure_.clear();
  launch_ = launch;
  body_ = &thread;
  while (threads_.size() < static_cast<size_t>(launch.threads)) {
    threads_.push_back(std::make_unique<Thread>());
  }
  warps_.resize(static_cast<size_t>(launch.threads) / kWarp);
  std::vector<Dim3> blocks;
  for (uint32_t z = 0; z < launch.grid.z; ++z) {
    for (uint32_t y = 0; y < launch.grid.y; ++y) {
      for (uint32_t x = 0; x < launch.grid.x; ++x) blocks.push_back({x, y, z});
    }
  }
  shuffle_order(blocks);
  for (const Dim3 block : blocks) {
    if (!run_block(block)) return {emulator::kFault, failure_.c_str()};
  }
  return {};
}

bool Machine::run_block(Dim3 block) {
  void* memory = nullptr;
  if (posix_memalign(&memory, 128, std::max<size_t>(launch_.shared_bytes, 1)) != 0) {
    throw std::bad_alloc();
  }
  std::memset(memory, 0xff, launch_.shared_bytes);
  shared_.reset(memory);
  for (Warp& warp : warps_) warp = Warp();
  at_block_ = returned_ = 0;
  std::vector<int> warps(warps_.size());
  std::iota(warps.begin(), warps.end(), 0);
  for (int t = 0; t < launch_.threads; ++t) {
    Thread& thread = *threads_[static_cast<size_t>(t)];
    thread.place = {t, launch_.threads, block, launch_.grid};
    thread.state = State::kReady;
    thread.copies.clear();
    thread.copy_group = 0;
    thread.fiber.prepare([] { machine().run_fiber(); });
  }
  while (returned_ < launch_.threads) {
    if (!run_turn(warps)) return false;
  }
  return true;
}

// Some warps, drawn anew, run ahead of the others: each as far as it gets without them, or by
// chance less far. False: the block failed.
bool Machine::run_turn(std::vector<int>& warps) {
  const auto can_run = [](const auto& thread) { return thread->state == State::kReady; };
  if (std::none_of(threads_.begin(), threads_.begin() + launch_.threads, can_run)) {
    failure_ = describe_waiting();
    return false;
  }
  shuffle_order(warps);
  constexpr std::array<int, 6> kPasses = {0, 0, 1, 2, 8, 64};
  for (const int warp : warps) {
    const int passes = kPasses[random(kPasses.size())];
    for (int pass = 0; pass < passes; ++pass) {
      const bool moved = run_warp(warp);
      if (!failure_.empty()) return false;
      if (!moved) break;
    }
  }
  return true;
}

// Each lane that can run does so once, in any order. False: none could, or the block failed.
bool Machine::run_warp(int warp) {
  std::array<int, kWarp> lanes{};
  std::iota(lanes.begin(), lanes.end(), warp * kWarp);
  shuffle_order(lanes);
  bool moved = false;
  for (const int t : lanes) {
    Thread& thread = *threads_[static_cast<size_t>(t)];
    if (thread.state != State::kReady) continue;
    moved = true;
    current_ = &thread;
    thread.fiber.resume();
    current_ = nullptr;
    if (failure_.empty()) note_wait(thread);
    if (!failure_.empty()) return false;
  }
  return moved;
}

void Machine::run_fiber() {
  current_->fiber.begin();
  (*body_)();
  if (!current_->copies.empty()) {
    set_failure("thread " + std::to_string(current_->place.thread) +
                " returned with asynchronous copies under way");
    stop();
  }
  current_->state = State::kReturned;
  ++returned_;
  current_->fiber.suspend();
}

void Machine::wait(State state, const char* what, Site site) {
  current_->state = state;
  current_->what = what;
  current_->site = site;
  current_->fiber.suspend();
}

// The running thread's, for good. Its stack is forgotten: nothing on it may own memory by now.
void Machine::stop() {
  for (;;) current_->fiber.suspend();
}

void Machine::note_wait(Thread& thread) {
  if (thread.state == State::kAtWarp) {
    const int warp = thread.place.thread / kWarp;
    if (++warps_[static_cast<size_t>(warp)].waiting == kWarp) release_warp(warp);
  } else if (thread.state == State::kAtBlock && ++at_block_ == launch_.threads) {
    release_block();
  }
}

bool same_place(const Thread& a, const Thread& b) {
  return a.what == b.what && a.site.line == b.site.line &&
         std::strcmp(a.site.file, b.site.file) == 0;
}

void Machine::release_warp(int warp) {
  const size_t first = static_cast<size_t>(warp) * kWarp;
  for (size_t t = first; t < first + kWarp; ++t) {
    if (same_place(*threads_[t], *threads_[first])) continue;
    failure_ = "lanes of warp " + std::to_string(warp) +
               " meet at different places: " + describe_waiting();
    return;
  }
  for (size_t t = first; t < first + kWarp; ++t) threads_[t]->state = State::kReady;
  warps_[static_cast<size_t>(warp)].waiting = 0;
  ++warps_[static_cast<size_t>(warp)].generation;
}

void Machine::release_block() {
  for (int t = 0; t < launch_.threads; ++t) {
    if (same_place(*threads_[static_cast<size_t>(t)], *threads_[0])) continue;
    failure_ = "threads of a block meet at different barriers: " + describe_waiting();
    return;
  }
  for (int t = 0; t < launch_.threads; ++t) threads_[static_cast<size_t>(t)]->state = State::kReady;
  at_block_ = 0;
}

std::string Machine::describe_waiting() const {
  std::map<std::string, std::pair<int, int>> groups;  // how many, the first of them
  for (int t = 0; t < launch_.threads; ++t) {
    const Thread& thread = *threads_[static_cast<size_t>(t)];
    const std::string where =
        thread.state == State::kReturned ? "returned"
        : thread.state == State::kReady
            ? "still run"
            : "wait in " + std::string(thread.what) + " at " + at(thread.site);
    ++groups.try_emplace(where, 0, t).first->second.first;
  }
  std::string text;
  for (const auto& [where, group] : groups) {
    text += (text.empty() ? "" : "; ") + std::to_string(group.first) + " threads (" +
            std::to_string(group.second) + " first) " + where;
  }
  return text;
}

}  // namespace

namespace host {

const Place& place() { return machine().current().place; }

void* shared_memory(size_t bytes) {
  if (bytes > machine().launch().shared_bytes) {
    machine().set_failure("the kernel uses " + std::to_string(bytes) + " bytes of shared memory, " +
                          std::to_string(machine().launch().shared_bytes) + " were launched");
    machine().stop();
  }
  return machine().shared();
}

void meet_block(Site site) { machine().wait(State::kAtBlock, "sync_block", site); }

const Exchange& meet_warp(const char* what, const uint32_t* words, int count, Site site) {
  Warp& warp = machine().warp();
  Exchange& buffer = warp.buffers[warp.generation % 2];
  if (count > 0) {
    std::memcpy(buffer[machine().current().place.thread % kWarp], words,
                static_cast<size_t>(count) * sizeof(uint32_t));
  }
  machine().wait(State::kAtWarp, what, site);
  return buffer;
}

void copy_async(void* to, const void* from, bool valid) {
  std::memset(to, 0xff, 16);
  Thread& thread = machine().current();
  thread.copies.push_back({to, from, valid, thread.copy_group});
}

void copy_async_commit() { ++machine().current().copy_group; }

void copy_async_wait(int pending) {
  Thread& thread = machine().current();
  const auto is_awaited = [&](const Copy& copy) {
    return copy.group < thread.copy_group - pending;
  };
  for (const Copy& copy : thread.copies) {
    if (!is_awaited(copy)) continue;
    if (copy.valid) {
      std::memcpy(copy.to, copy.from, 16);
    } else {
      std::memset(copy.to, 0, 16);
    }
  }
  std::erase_if(thread.copies, is_awaited);
}

void fail(const char* what, Site site) {
  machine().set_failure(std::string(what) + " in thread " +
                        std::to_string(machine().current().place.thread) + " at " + at(site));
  machine().stop();
}

Status run(const Launch& launch, std::function<void()> thread) {
  const auto capture = machine().captures.find(launch.stream);
  if (capture == machine().captures.end()) return machine().run(launch, thread);
  capture->second->nodes_.push_back({launch, std::move(thread)});
  return {};
}

}  // namespace host

namespace emulator {

void set_seed(uint64_t seed) { machine().random_state = seed; }
int64_t launch_count() { return machine().launches; }

void Graph::begin_capture(Stream stream) {
  nodes_.clear();
  machine().captures[stream] = this;
}

void Graph::end_capture() {
  std::erase_if(machine().captures, [this](const auto& entry) { return entry.second == this; });
}

Status Graph::replay() const {
  for (const Node& node : nodes_) {
    const Status status = machine().run(node.launch, node.thread);
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace emulator
}  // namespace vitrine::kernels::cuda
