// SPDX-License-Identifier: Apache-2.0
// What a request leaves behind beside its text: records, and a sealed log of them.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "http/message.h"
#include "http/route.h"
#include "vitrine/audit_log.h"
#include "vitrine/audit_stream.h"
#include "vitrine/http.h"

namespace vitrine::http {

/// Keeps records until somebody takes them. Thread-safe between the steps' thread and one reader.
class RecordCollector final : public AuditSink {
 public:
  void open(const AuditLayout& layout, size_t max_record_bytes) override;
  std::byte* reserve(size_t num_bytes) override;
  void commit() override;
  void on_drafts(const DraftedPass& drafts) override;

  /// Returns what came since the last call.
  std::vector<TokenRecord> take();
  /// Returns the positions of guesses that were right, of what came since the last call: they may
  /// come behind the records of their tokens, and before the answer's end.
  std::vector<int64_t> take_drafted();
  /// Returns the layout's layers that have experts; empty before the first record.
  std::vector<AuditLayout::Layer> sparse_layers() const;

 private:
  mutable std::mutex mutex_;
  AuditLayout layout_;
  std::vector<std::byte> reserved_;
  std::vector<std::vector<std::byte>> records_;
  std::vector<int64_t> drafted_;
};

/// The account of one request. Its server uses sink() until ServeRequest::on_end.
class Account {
 public:
  /// `collects`: records are kept for the reply. A log is written where the audit names a folder.
  /// Throws what VtrLog throws.
  Account(const HttpAudit& audit, const House& house, const Request& asked,
          const ServeRequest& request, bool collects);

  /// Leaves nothing of a request that was never computed.
  ~Account();
  Account(const Account&) = delete;
  Account& operator=(const Account&) = delete;

  /// Null where nothing wants records.
  AuditSink* sink();
  /// The log's id; empty where there is none.
  const std::string& id() const { return id_; }
  RecordCollector* collector() { return collector_ ? &*collector_ : nullptr; }
  /// Ends the log. Returns what went wrong; empty: nothing.
  std::string finish(const std::string& reason);

 private:
  std::string id_, path_;
  std::optional<SealKey> key_;
  std::unique_ptr<VtrLog> log_;
  std::optional<RecordCollector> collector_;
  std::optional<TeeSink> both_;
};

/// Ends accounts on a thread of its own, since that writes files. Thread-safe.
class AccountCloser {
 public:
  AccountCloser();
  /// Ends what was given to it first.
  ~AccountCloser();
  AccountCloser(const AccountCloser&) = delete;
  AccountCloser& operator=(const AccountCloser&) = delete;
  void close(std::shared_ptr<Account> account, std::string reason);
  /// How many logs could not be ended as they should.
  uint64_t num_failed() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Where a log of that id is, if it is one of `client`'s. Throws HttpError (404) otherwise: whether
/// others have one of that id, nobody learns.
std::string find_log(const HttpAudit& audit, const std::string& id, const Client& client);

}  // namespace vitrine::http
