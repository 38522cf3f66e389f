// SPDX-License-Identifier: Apache-2.0
#include "http/account.h"

#include <sodium.h>
#include <sys/stat.h>

#include <condition_variable>
#include <deque>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "vitrine/checkpoint.h"

namespace vitrine::http {

namespace {

constexpr size_t kIdDigits = 32;

std::string log_path(const HttpAudit& audit, const std::string& id, const char* extension) {
  return (std::filesystem::path(audit.folder) / (id + extension)).string();
}

// What is not the log's to say: whose it is, and what was asked for.
Json receipt(const House& house, const std::string& id, const Request& asked,
             const ServeRequest& request, const LogHeader& header) {
  Json sampler = Json::object(), hashes = Json::object();
  for (const auto& [name, value] : header.sampler) sampler[name] = value;
  for (const auto& [name, value] : header.hashes) hashes[name] = value;
  return {{"id", id},
          {"request_id", asked.id},
          {"path", asked.path},
          {"owner", digest_of(request.tenant)},
          {"model", house.shown_model(request.model)},
          {"hashes", hashes},
          {"sampler", sampler},
          {"seed", std::to_string(request.sampler.seed)},
          {"branch", request.branch},
          {"max_new_tokens", request.max_new_tokens}};
}

LogHeader header_of(const HttpAudit& audit, const ServeRequest& request) {
  const auto own = audit.headers.find(request.model);
  LogHeader header = own != audit.headers.end() ? own->second : audit.header;
  header.seed = request.sampler.seed;
  header.sampler = sampler_option_values(request.sampler);
  using Kind = ServeConstraint::Kind;
  if (request.constraint.kind != Kind::kNone) {
    header.constraint = {{"kind", "request"}, {"digest", digest_of(request.constraint.text)}};
  } else if (!request.chat.tools_json.empty()) {
    header.constraint = {{"kind", "tools"}, {"digest", digest_of(request.chat.tools_json)}};
  }
  if (!audit.drafter.empty()) header.speculation = {{"drafter", audit.drafter}};
  return header;
}

}  // namespace

void RecordCollector::open(const AuditLayout& layout, size_t max_record_bytes) {
  const std::lock_guard lock(mutex_);
  layout_ = layout;
  reserved_.reserve(max_record_bytes);
}

std::byte* RecordCollector::reserve(size_t num_bytes) {
  reserved_.assign(num_bytes, std::byte{0});
  return reserved_.data();
}

void RecordCollector::commit() {
  const std::lock_guard lock(mutex_);
  records_.push_back(reserved_);
}

void RecordCollector::on_drafts(const DraftedPass& drafts) {
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < drafts.accepted.size(); ++i) {
    drafted_.push_back(drafts.position + static_cast<int64_t>(i));
  }
}

std::vector<int64_t> RecordCollector::take_drafted() {
  const std::lock_guard lock(mutex_);
  return std::exchange(drafted_, {});
}

std::vector<TokenRecord> RecordCollector::take() {
  std::vector<std::vector<std::byte>> records;
  AuditLayout layout;
  {
    const std::lock_guard lock(mutex_);
    records.swap(records_);
    layout = layout_;
  }
  std::vector<TokenRecord> taken;
  for (const std::vector<std::byte>& record : records) {
    std::vector<TokenRecord> decoded = decode_pass(layout, record);
    taken.insert(taken.end(), std::make_move_iterator(decoded.begin()),
                 std::make_move_iterator(decoded.end()));
  }
  return taken;
}

std::vector<AuditLayout::Layer> RecordCollector::sparse_layers() const {
  const std::lock_guard lock(mutex_);
  std::vector<AuditLayout::Layer> sparse;
  for (const AuditLayout::Layer& layer : layout_.layers) {
    if (layer.top_k > 0) sparse.push_back(layer);
  }
  return sparse;
}

Account::Account(const HttpAudit& audit, const House& house, const Request& asked,
                 const ServeRequest& request, bool collects) {
  if (collects) collector_.emplace();
  if (!audit.folder.empty()) {
    id_ = random_id();
    path_ = log_path(audit, id_, ".vtr");
    key_ = audit.log.seal;
    const LogHeader header = header_of(audit, request);
    VtrOptions options = audit.log;
    if (audit.redacts_prompt) {
      const auto tokens = static_cast<int64_t>(house.server->encode(request).size());
      for (VtrRedaction& each : redact_prompt(tokens)) options.redact.push_back(std::move(each));
    }
    log_ = std::make_unique<VtrLog>(path_, header, std::move(options));
    write_file_atomically(log_path(audit, id_, ".receipt.json"),
                          dump(receipt(house, id_, asked, request, header)) + "\n");
  }
  if (log_ && collector_) both_.emplace(log_->sink(), *collector_);
}

Account::~Account() {
  if (!log_) return;
  log_.reset();
  std::error_code error;
  if (std::filesystem::exists(path_, error)) return;
  std::filesystem::remove(std::filesystem::path(path_).replace_extension(".receipt.json"), error);
}

AuditSink* Account::sink() {
  if (both_) return &*both_;
  if (log_) return &log_->sink();
  return collector();
}

std::string Account::finish(const std::string& reason) {
  if (!log_) return "";
  try {
    log_->finish(reason);
    log_.reset();
    if (key_) write_manifest(path_, *key_, manifest_path(path_));
  } catch (const std::exception& error) {
    log_.reset();
    return error.what();
  }
  return "";
}

struct AccountCloser::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::pair<std::shared_ptr<Account>, std::string>> accounts;
  bool is_ending = false;
  uint64_t num_failed = 0;
  std::thread thread;

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return !accounts.empty() || is_ending; });
      if (accounts.empty()) return;
      auto [account, reason] = std::move(accounts.front());
      accounts.pop_front();
      lock.unlock();
      const std::string problem = account->finish(reason);
      account.reset();
      if (!problem.empty()) log_message(LogLevel::kWarning, "an account was not ended: " + problem);
      lock.lock();
      num_failed += problem.empty() ? 0 : 1;
    }
  }
};

AccountCloser::AccountCloser() : state_(new State) {
  state_->thread = std::thread([this] { state_->run(); });
}

AccountCloser::~AccountCloser() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->is_ending = true;
  }
  state_->changed.notify_all();
  state_->thread.join();
}

void AccountCloser::close(std::shared_ptr<Account> account, std::string reason) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->accounts.emplace_back(std::move(account), std::move(reason));
  }
  state_->changed.notify_all();
}

uint64_t AccountCloser::num_failed() const {
  const std::lock_guard lock(state_->mutex);
  return state_->num_failed;
}

std::string find_log(const HttpAudit& audit, const std::string& id, const Client& client) {
  const HttpError missing(404,
                          "there is no account '" + id.substr(0, kIdDigits) + "' of this key's");
  const bool is_id =
      id.size() == kIdDigits && id.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!is_id || audit.folder.empty()) throw missing;
  std::ifstream file(log_path(audit, id, ".receipt.json"));
  const Json told = Json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!told.is_object() || !told.contains("owner")) throw missing;
  const bool is_own = told["owner"] == digest_of(client.tenant);
  if (!is_own && !client.is_auditor) throw missing;
  return log_path(audit, id, ".vtr");
}

}  // namespace vitrine::http
