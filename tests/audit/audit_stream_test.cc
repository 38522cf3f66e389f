// SPDX-License-Identifier: Apache-2.0
// The stream of a run: framing, policies, and bytes a token. What the messages say is checked by an
// oracle (tests/cli/stream_cases.py); here a reader of Protocol Buffers' wire format is enough.
#include "vitrine/audit_stream.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <map>
#include <thread>

#include "src/audit/bytes.h"
#include "vtr_fixture.h"

namespace vitrine {
namespace {

using namespace audit_test;
using audit::ByteReader;
using audit::Bytes;
using audit::ByteSpan;

/// Field number → values, for a message of varints and bytes alone.
struct Message {
  std::map<uint64_t, std::vector<uint64_t>> integers;
  std::map<uint64_t, std::vector<Bytes>> bytes;
};

Message parse(ByteSpan text) {
  ByteReader in(text);
  Message message;
  while (in.left() > 0) {
    const uint64_t tag = in.varint();
    if ((tag & 7) == 0) {
      message.integers[tag >> 3].push_back(in.varint());
    } else {
      EXPECT_EQ(tag & 7, 2u);
      const ByteSpan content = in.raw(in.varint());
      message.bytes[tag >> 3].emplace_back(content.begin(), content.end());
    }
  }
  return message;
}

enum Content : uint64_t { kHead = 1, kStep, kEvent, kLost, kEnd, kFailure, kDrafts };

/// A receiver that keeps what it gets.
struct Receiver {
  std::vector<Bytes> messages;
  AuditStream::Send send() {
    return [this](std::span<const std::byte> message) {
      const auto* bytes = reinterpret_cast<const uint8_t*>(message.data());
      messages.emplace_back(bytes, bytes + message.size());
    };
  }
  /// Which content each has, with its fields; checks that each stands alone behind its length.
  std::vector<std::pair<uint64_t, Message>> read() const {
    std::vector<std::pair<uint64_t, Message>> all;
    for (const Bytes& message : messages) {
      ByteReader in(message);
      const uint64_t size = in.varint();
      EXPECT_EQ(size, in.left());
      const Message outer = parse(in.raw(in.left()));
      EXPECT_EQ(outer.bytes.size(), 1u);
      EXPECT_TRUE(outer.integers.empty());
      all.emplace_back(outer.bytes.begin()->first, parse(outer.bytes.begin()->second.at(0)));
    }
    return all;
  }
};

uint64_t count_of(const Message& message, uint64_t field) {
  const auto found = message.integers.find(field);
  return found == message.integers.end() ? 0 : found->second.at(0);
}

std::vector<uint64_t> varints(const Message& message, uint64_t field) {
  std::vector<uint64_t> values;
  if (!message.bytes.contains(field)) return values;
  for (ByteReader in(message.bytes.at(field).at(0)); in.left() > 0;) values.push_back(in.varint());
  return values;
}

TEST(AuditStreamTest, FailuresOfAConstraintAreMessages) {
  Rng rng(3);
  const AuditLayout layout = make_layout({{2, 8}}, AuditLevel::kStandard, rng);
  Receiver receiver;
  AuditStream stream(some_header(), receiver.send(), {});
  stream.sink().open(layout, audit_record_bytes(layout, 7, 7));
  send(stream.sink(), build_step(layout, 0, 1, 0, 3, rng).bytes);
  ConstraintFailure failure;
  failure.kind = ConstraintFailure::Kind::kRefused;
  failure.attempt = 2;
  failure.sequence = 7;
  failure.position = 9;
  failure.token = 0;
  failure.state.num_bytes = 5;
  failure.state.num_readings = 12;
  failure.state.readings = {"at '/a'", "not UTF-8: \xFF"};
  failure.state.next_bytes = "'a'";
  stream.sink().on_failure(failure);
  stream.finish("deadlock");
  const auto messages = receiver.read();
  ASSERT_EQ(messages.size(), 4u);
  ASSERT_EQ(messages[2].first, kFailure);
  const Message& found = messages[2].second;
  EXPECT_EQ(count_of(found, 1), 1u);
  EXPECT_EQ(count_of(found, 2), 2u);
  EXPECT_EQ(count_of(found, 3), 7u);
  EXPECT_EQ(count_of(found, 4), 9u);
  EXPECT_EQ(count_of(found, 9), 5u);
  EXPECT_EQ(count_of(found, 11), 12u);
  EXPECT_EQ(found.bytes.at(10).size(), 2u);
  EXPECT_EQ(found.bytes.at(10)[1].size(), std::string("not UTF-8: \uFFFD").size());
}

TEST(AuditStreamTest, GuessesAreMessages) {
  Rng rng(3);
  const AuditLayout layout = make_layout({{2, 8}}, AuditLevel::kStandard, rng);
  Receiver receiver;
  AuditStream stream(some_header(), receiver.send(), {});
  stream.sink().open(layout, audit_record_bytes(layout, 7, 7));
  send(stream.sink(), build_step(layout, 0, 1, 0, 3, rng).bytes);
  stream.sink().on_drafts({.sequence = 7,
                           .position = 9,
                           .drafter = "suffix",
                           .tokens = {0, 300, 5},
                           .parents = {-1, -1, 1},
                           .accepted = {1, 2},
                           .discarded = 1});
  stream.finish("length");
  const auto messages = receiver.read();
  ASSERT_EQ(messages.size(), 4u);
  ASSERT_EQ(messages[2].first, kDrafts);
  const Message& found = messages[2].second;
  EXPECT_EQ(count_of(found, 1), 7u);
  EXPECT_EQ(count_of(found, 2), 9u);
  const Bytes& name = found.bytes.at(3)[0];
  EXPECT_EQ(std::string(name.begin(), name.end()), "suffix");
  EXPECT_EQ(varints(found, 4), (std::vector<uint64_t>{0, 300, 5}));
  EXPECT_EQ(varints(found, 5), (std::vector<uint64_t>{0, 0, 2}));
  EXPECT_EQ(varints(found, 6), (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(count_of(found, 7), 1u);
}

TEST(AuditStreamTest, OneMessageAStep) {
  for (const LogDetail detail : {LogDetail::kStandard, LogDetail::kFull}) {
    Rng rng(3);
    const AuditLayout layout = with_terms(
        make_layout({{2, 8}, {0, 0}, {4, 60}, {1, 1}, {8, 300, RouterKind::kSigmoidScores}},
                    detail == LogDetail::kFull ? AuditLevel::kFull : AuditLevel::kStandard, rng));
    Receiver receiver;
    AuditStream stream(some_header(), receiver.send(), {.detail = detail});
    stream.sink().open(layout, audit_record_bytes(layout, 7, 7));
    stream.sink().on_event({AuditEvent::Kind::kCreated, 1, 0, 0, 0});
    std::vector<BuiltPass> passes;
    for (int32_t pass = 0; pass < 50; ++pass) {
      passes.push_back(build_step(layout, 0, 1, 7 * pass, 1 + pass % 7, rng));
      send(stream.sink(), passes.back().bytes);
    }
    stream.sink().on_event({AuditEvent::Kind::kReleased, 1, 0, 350, 0});
    stream.finish("length");

    const auto messages = receiver.read();
    ASSERT_EQ(messages.size(), 1 + 1 + 50 + 1 + 1u);
    EXPECT_EQ(messages.front().first, kHead);
    EXPECT_EQ(messages[1].first, kEvent);
    EXPECT_EQ(messages.back().first, kEnd);
    EXPECT_EQ(messages[52].first, kEvent);
    EXPECT_EQ(count_of(messages[52].second, 4), 350u);
    size_t tokens = 0, bytes = 0;
    for (size_t pass = 0; pass < 50; ++pass) {
      const Message& step = messages[2 + pass].second;
      ASSERT_EQ(messages[2 + pass].first, kStep);
      const std::vector<TokenRecord>& expected = passes[pass].expected;
      tokens += expected.size();
      std::vector<uint64_t> ids, experts, at, predicted;
      for (size_t i = 0; i < expected.size(); ++i) {
        ids.push_back(static_cast<uint64_t>(expected[i].token));
        for (const LayerRecord& layer : expected[i].layers) {
          for (const RouteRecord& route : layer.routes) {
            experts.push_back(static_cast<uint64_t>(route.expert));
          }
        }
        if (!expected[i].has_prediction) continue;
        at.push_back(i);
        predicted.push_back(static_cast<uint64_t>(expected[i].prediction.token));
      }
      if (at.size() == expected.size()) at.clear();
      EXPECT_EQ(varints(step, 3), ids);
      EXPECT_EQ(varints(step, 4), experts);
      EXPECT_EQ(varints(step, 10), at);
      EXPECT_EQ(varints(step, 11), predicted);
      const bool is_full = detail == LogDetail::kFull;
      EXPECT_EQ(step.bytes.contains(is_full ? 6 : 5), true);
      EXPECT_EQ(step.bytes.contains(is_full ? 5 : 6), false);
      EXPECT_EQ(step.bytes.contains(9), is_full);
      for (const int field : {32, 34}) {  // scores and keys, of the last layer alone
        EXPECT_EQ(step.bytes.at(is_full ? field + 1 : field).at(0).size(),
                  expected.size() * 8 * (is_full ? 4 : 2));
        EXPECT_EQ(step.bytes.contains(is_full ? field : field + 1), false);
      }
      EXPECT_EQ(step.bytes.contains(23) || step.bytes.contains(24), !predicted.empty());
    }
    for (const Bytes& message : receiver.messages) bytes += message.size();
    const StreamCounts& counts = stream.counts();
    EXPECT_EQ(counts.messages, messages.size());
    EXPECT_EQ(counts.bytes, bytes);
    EXPECT_EQ(counts.passes, 50u);
    EXPECT_EQ(counts.tokens, tokens);
    EXPECT_EQ(counts.events, 2u);
    EXPECT_EQ(count_of(messages.back().second, 4), tokens);
    EXPECT_EQ(count_of(messages.back().second, 5), counts.generated);
  }
}

/// At most 3 bytes a layer and expert slot, 2 bytes a layer and 104 bytes a token with one token a
/// step, lengths included: with random values.
TEST(AuditStreamTest, BytesPerTokenAreBounded) {
  struct Shape {
    const char* name;
    int32_t layers, experts, top_k, vocabulary;
  };
  for (const Shape& shape :
       {Shape{"fractalmoe", 4, 8, 2, 8192}, Shape{"olmoe", 16, 64, 8, 50304}}) {
    const AuditLayout layout = layout_of(shape.layers, shape.experts, shape.top_k);
    LogHeader header = some_header();
    header.vocab_size = shape.vocabulary;
    AuditStream stream(header, [](std::span<const std::byte>) {});
    stream.sink().open(layout, audit_record_bytes(layout, 1, 1));
    Rng rng(2);
    constexpr int32_t kTokens = 2000;
    for (int32_t position = 0; position < kTokens;) {
      const BuiltPass built = build_step(layout, 0, 1, position, 1, rng, shape.vocabulary);
      if (!built.expected[0].has_prediction) continue;
      send(stream.sink(), built.bytes);
      ++position;
    }
    stream.finish("length");
    const double bytes = static_cast<double>(stream.counts().bytes) / kTokens;
    const double budget = 3.0 * shape.layers * shape.top_k + 2.0 * shape.layers + 104;
    std::printf("%s: %.1f bytes a token, at most %.1f\n", shape.name, bytes, budget);
    RecordProperty(std::string("stream_bytes_per_token_") + shape.name, std::to_string(bytes));
    EXPECT_LE(bytes, budget) << shape.name;
  }
}

/// A receiver that takes nothing until it is let go.
struct SlowReceiver : Receiver {
  std::atomic<bool> is_open{false};
  AuditStream::Send slow() {
    return [this, keep = send()](std::span<const std::byte> message) {
      // The head is taken at once: open() waits for it.
      while (!messages.empty() && !is_open) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      keep(message);
    };
  }
};

TEST(AuditStreamTest, ASlowReceiverLosesWholePassesAndIsTold) {
  const AuditLayout layout = four_layers();
  SlowReceiver receiver;
  AuditStream stream(some_header(), receiver.slow(),
                     {.when_behind = VtrOptions::WhenBehind::kDrop, .ring_bytes = size_t{1} << 14});
  stream.sink().open(layout, audit_record_bytes(layout, 7, 7));
  Rng rng(5);
  const size_t sent = send_run(stream.sink(), layout, 2000, rng).size();
  receiver.is_open = true;
  stream.finish("length");
  const StreamCounts& counts = stream.counts();
  EXPECT_GT(counts.lost, 0u);
  EXPECT_GT(counts.tokens, 0u);
  EXPECT_EQ(counts.tokens + counts.lost, sent);
  EXPECT_EQ(counts.unsent, 0u);
  // Every position is in a step or in a Lost, in order.
  uint64_t next = 0;
  for (const auto& [content, message] : receiver.read()) {
    if (content == kStep) {
      for (const uint64_t position : varints(message, 2)) EXPECT_EQ(position, next++);
    } else if (content == kLost) {
      EXPECT_EQ(count_of(message, 2), next);
      next += count_of(message, 3);
    }
  }
  EXPECT_EQ(next, sent);
  EXPECT_EQ(count_of(receiver.read().back().second, 8), counts.lost);
}

TEST(AuditStreamTest, ASlowReceiverIsWaitedFor) {
  const AuditLayout layout = four_layers();
  SlowReceiver receiver;
  AuditStream stream(some_header(), receiver.slow(), {.ring_bytes = size_t{1} << 14});
  stream.sink().open(layout, audit_record_bytes(layout, 7, 7));
  Rng rng(5);
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    receiver.is_open = true;
  });
  const size_t sent = send_run(stream.sink(), layout, 2000, rng).size();
  opener.join();
  stream.finish("length");
  EXPECT_EQ(stream.counts().tokens, sent);
  EXPECT_EQ(stream.counts().lost, 0u);
}

/// A pipe whose reader goes away: an error, and no signal.
TEST(AuditStreamTest, AClosedPipe) {
  const AuditLayout layout = four_layers();
  for (const auto on_error : {VtrOptions::OnError::kFail, VtrOptions::OnError::kDegrade}) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    std::atomic<int> taken{0};
    AuditStream stream(some_header(),
                       [&](std::span<const std::byte> message) {
                         if (taken++ == 20) ::close(ends[0]);
                         if (::write(ends[1], message.data(), message.size()) < 0) {
                           throw Error(ErrorKind::kIo,
                                       "the pipe: " + std::string(std::strerror(errno)));
                         }
                       },
                       {.on_error = on_error});
    stream.sink().open(layout, audit_record_bytes(layout, 7, 7));
    Rng rng(5);
    const bool fails = on_error == VtrOptions::OnError::kFail;
    std::string thrown;
    uint64_t sent = 0;
    try {
      for (int i = 0; i < 200; ++i) {
        sent += send_run(stream.sink(), layout, 10, rng).size();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    } catch (const Error& error) {
      thrown = error.what();
    }
    EXPECT_EQ(thrown, fails ? "the pipe: Broken pipe" : "");
    if (fails) {
      EXPECT_THROW(stream.finish("length"), Error);
    } else {
      stream.finish("length");
      EXPECT_EQ(stream.counts().messages, 20u);
      EXPECT_EQ(stream.counts().tokens + stream.counts().unsent, sent);
    }
    ::close(ends[1]);
  }
}

TEST(AuditStreamTest, Misuse) {
  const auto kind_of = [](const auto& action) {
    try {
      action();
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      return error.kind();
    }
    return ErrorKind::kInternal;
  };
  const auto nothing = [](std::span<const std::byte>) {};
  EXPECT_EQ(kind_of([&] { AuditStream({}, nothing, {.detail = LogDetail::kCounters}); }),
            ErrorKind::kInvalidArgument);
  EXPECT_EQ(
      kind_of([&] { AuditStream({}, nothing, {.when_behind = VtrOptions::WhenBehind::kSpill}); }),
      ErrorKind::kInvalidArgument);
  AuditStream never({}, nothing);
  EXPECT_EQ(kind_of([&] { never.finish("length"); }), ErrorKind::kInvalidArgument);
  AuditStream full({}, nothing, {.detail = LogDetail::kFull});
  EXPECT_EQ(kind_of([&] { full.sink().open(four_layers(), 4096); }), ErrorKind::kUnsupported);
  AuditStream deaf({}, [](std::span<const std::byte>) { throw Error(ErrorKind::kIo, "deaf"); });
  EXPECT_EQ(kind_of([&] { deaf.sink().open(four_layers(), 4096); }), ErrorKind::kIo);
  AuditStream stream({}, nothing);
  stream.sink().open(four_layers(), 4096);
  EXPECT_EQ(kind_of([&] { stream.sink().open(layout_of(1, 8, 2), 4096); }),
            ErrorKind::kInvalidArgument);
  stream.finish("length");
  EXPECT_EQ(kind_of([&] { stream.sink().reserve(64); }), ErrorKind::kInvalidArgument);
  EXPECT_EQ(kind_of([&] { stream.finish("length"); }), ErrorKind::kInvalidArgument);
}

TEST(AuditStreamTest, NeedsAFunctionThatSends) {
  try {
    const AuditStream stream(LogHeader{}, {});
    ADD_FAILURE() << "was not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument) << error.what();
  }
}

// Names that are no UTF-8 must not make a message that readers refuse.
TEST(AuditStreamTest, StringsAreUtf8) {
  LogHeader header = some_header();
  header.model_path = "a\xff\xC3(\xE2\x82\xAC\xED\xA0\x80";
  Receiver receiver;
  AuditStream stream(header, receiver.send());
  stream.sink().open(four_layers(), 4096);
  stream.finish("length");
  const auto messages = receiver.read();
  const Bytes& path = messages.front().second.bytes.at(5).at(0);
  EXPECT_EQ(std::string(path.begin(), path.end()), "a\uFFFD\uFFFD(\u20AC\uFFFD\uFFFD\uFFFD");
}

class TeeTest : public VtrTest {};

TEST_F(TeeTest, BothGetEverything) {
  const AuditLayout layout = four_layers();
  Receiver receiver;
  AuditStream stream(some_header(), receiver.send());
  VtrLog log(at("run.vtr"), some_header());
  TeeSink both(log.sink(), stream.sink());
  both.open(layout, audit_record_bytes(layout, 7, 7));
  both.on_event({AuditEvent::Kind::kCreated, 1, 0, 0, 0});
  Rng rng(9);
  const auto expected = send_run(both, layout, 300, rng);
  both.on_event({AuditEvent::Kind::kReleased, 1, 0, 300, 0});
  log.finish("length");
  stream.finish("length");
  EXPECT_EQ(verify_vtr(at("run.vtr")).counts.positions.captured, 300u);
  EXPECT_EQ(stream.counts().tokens, 300u);
  EXPECT_EQ(stream.counts().events, 2u);
  std::vector<uint64_t> ids, want;
  for (const auto& [content, message] : receiver.read()) {
    if (content != kStep) continue;
    for (const uint64_t id : varints(message, 3)) ids.push_back(id);
  }
  for (const TokenRecord& record : expected) want.push_back(static_cast<uint64_t>(record.token));
  EXPECT_EQ(ids, want);
}

}  // namespace
}  // namespace vitrine
