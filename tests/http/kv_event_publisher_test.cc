// SPDX-License-Identifier: Apache-2.0
// A publisher of events about blocks whose queue is too short, and who asks for what was missed.
#include <gtest/gtest.h>
#include <zmq.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "vitrine/http.h"

namespace vitrine::testing {
namespace {

using Handle = std::unique_ptr<void, int (*)(void*)>;
using nlohmann::json;

/// Events of one batch, by its number.
struct Heard {
  uint64_t number = 0;
  json events;
};

/// Asks a publisher for all that it still has.
class Asker {
 public:
  explicit Asker(const std::string& endpoint) {
    const int wait = 10000, linger = 0;
    zmq_setsockopt(socket_.get(), ZMQ_RCVTIMEO, &wait, sizeof wait);
    zmq_setsockopt(socket_.get(), ZMQ_LINGER, &linger, sizeof linger);
    EXPECT_EQ(zmq_connect(socket_.get(), endpoint.c_str()), 0);
  }
  std::vector<Heard> ask() {
    zmq_send(socket_.get(), "", 0, ZMQ_SNDMORE);
    zmq_send(socket_.get(), "\0\0\0\0\0\0\0\0", 8, 0);
    std::vector<Heard> all;
    for (;;) {
      const std::vector<std::string> frames = receive();
      if (frames.size() != 4) {
        ADD_FAILURE() << frames.size() << " frames";
        return all;
      }
      if (frames[3].empty()) return all;
      uint64_t number = 0;
      for (const char c : frames[2]) number = number << 8 | static_cast<unsigned char>(c);
      all.push_back({number, json::from_msgpack(frames[3]).at(1)});
    }
  }

 private:
  std::vector<std::string> receive() {
    std::vector<std::string> frames;
    for (int more = 1; more != 0;) {
      zmq_msg_t frame;
      zmq_msg_init(&frame);
      if (zmq_msg_recv(&frame, socket_.get(), 0) < 0) return {};
      frames.emplace_back(static_cast<const char*>(zmq_msg_data(&frame)), zmq_msg_size(&frame));
      more = zmq_msg_more(&frame);
      zmq_msg_close(&frame);
    }
    return frames;
  }

  Handle context_{zmq_ctx_new(), zmq_ctx_term};
  Handle socket_{zmq_socket(context_.get(), ZMQ_DEALER), zmq_close};
};

std::vector<KvBlockEvent> stored(size_t ids, uint64_t name = 7) {
  KvBlockEvent event;
  event.blocks = {name};
  event.tokens.assign(ids, 5);
  event.block_size = static_cast<int64_t>(ids);
  return {event};
}

KvEventOptions free_ports() {
  KvEventOptions options;
  options.endpoint = options.replay_endpoint = "tcp://127.0.0.1:*";
  return options;
}

template <typename Condition>
bool becomes_true(Condition condition) {
  for (int i = 0; i < 1000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

TEST(KvEventPublisher, WhatIsLostLeavesAGapAndClears) {
  KvEventOptions options = free_ports();
  options.max_queue_size = 1;
  KvEventPublisher publisher(options, {"tiny"});
  uint64_t told = 0;
  bool is_taken = true;
  // Long events keep the thread busy.
  for (; is_taken && told < 10000; ++told) is_taken = publisher.on_blocks("tiny", stored(200000));
  ASSERT_FALSE(is_taken);
  Asker asker(publisher.replay_endpoints().front());
  std::vector<Heard> heard;
  ASSERT_TRUE(becomes_true([&] {
    heard = asker.ask();
    return !heard.empty() && heard.back().number == told;
  }));
  // The last one's number is nobody's.
  ASSERT_EQ(heard.size(), told);
  EXPECT_EQ(heard[told - 2].number, told - 2);
  EXPECT_EQ(heard.back().events, json::parse(R"([{"type": "AllBlocksCleared"}])"));
  EXPECT_TRUE(publisher.on_blocks("tiny", stored(64)));
  ASSERT_TRUE(becomes_true([&] { return asker.ask().back().number == told + 1; }));
}

TEST(KvEventPublisher, OldMessagesGiveWay) {
  KvEventOptions options = free_ports();
  options.buffer_steps = 3;
  KvEventPublisher publisher(options, {"tiny"});
  for (uint64_t i = 0; i < 5; ++i) EXPECT_TRUE(publisher.on_blocks("", stored(16, i + 1)));
  Asker asker(publisher.replay_endpoints().front());
  std::vector<Heard> heard;
  ASSERT_TRUE(becomes_true([&] {
    heard = asker.ask();
    return !heard.empty() && heard.back().number == 4;
  }));
  ASSERT_EQ(heard.size(), 3u);
  for (uint64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(heard[i].number, i + 2);
    EXPECT_EQ(heard[i].events.at(0).at("block_hashes"), json::array({i + 3}));
  }
}

TEST(KvEventPublisher, ManyMessagesComeThroughANarrowSocket) {
  KvEventPublisher publisher(free_ports(), {"tiny"});
  constexpr uint64_t kMany = 5000;  // more than wait for one client at once
  for (uint64_t i = 0; i < kMany; ++i) {
    ASSERT_TRUE(becomes_true([&] { return publisher.on_blocks("tiny", stored(64, i + 1)); }));
  }
  Asker asker(publisher.replay_endpoints().front());
  std::vector<Heard> heard;
  ASSERT_TRUE(becomes_true([&] {
    heard = asker.ask();
    return heard.size() == kMany;
  }));
  for (uint64_t i = 0; i < kMany; ++i) ASSERT_EQ(heard[i].number, i);
}

TEST(KvEventPublisher, OptionsOutOfRangeAreRefused) {
  const auto refused = [](void (*change)(KvEventOptions&)) {
    KvEventOptions options = free_ports();
    change(options);
    EXPECT_THROW(KvEventPublisher(options, {"tiny"}), Error);
  };
  refused([](KvEventOptions& options) { options.hwm = 0; });
  refused([](KvEventOptions& options) { options.buffer_steps = -1; });
  refused([](KvEventOptions& options) { options.max_queue_size = 0; });
  refused([](KvEventOptions& options) { options.endpoint = "tcp://0.0.0.0:*"; });
  refused([](KvEventOptions& options) { options.replay_endpoint = "nowhere"; });
  EXPECT_THROW(KvEventPublisher(free_ports(), {}), Error);
  KvEventOptions options = free_ports();
  options.endpoint = "tcp://127.0.0.1:65535";
  options.replay_endpoint.clear();
  EXPECT_THROW(KvEventPublisher(options, {"one", "two"}), Error);  // whose port would be 65536
}

}  // namespace
}  // namespace vitrine::testing
