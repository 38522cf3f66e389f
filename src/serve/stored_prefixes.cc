// SPDX-License-Identifier: Apache-2.0
#include "serve/stored_prefixes.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/prefix_image.h"
#include "serve/host_error.h"

namespace vitrine::serve {

namespace {

constexpr int64_t kWorthReading = 16;  // tokens more than the tree has
constexpr double kMostWait = 2;        // seconds that a prompt waits for the store

}  // namespace

StoredPrefixes::StoredPrefixes(Engine& engine, PrefixTree& tree, const RecordTap& tap,
                               std::unique_ptr<PrefixStore> store, std::function<bool()> evict,
                               AuditSink* audit)
    : engine_(engine),
      tree_(tree),
      tap_(tap),
      store_(std::move(store)),
      evict_(std::move(evict)),
      audit_(audit) {
  if (!store_->fit().sizes().resumes_anywhere()) engine::clear_taken_blocks(engine_);
  tree_.show_evicted([this](const PrefixTree::Kept& kept) {
    if (kept.is_stored || kept.uses == 0 || !store_->is_idle()) return;
    if (store_->open(*kept.key)) try_to_store(kept);
  });
}

bool StoredPrefixes::awaits(const PrefixKey& key, std::span<const int32_t> tokens, int64_t has,
                            double waited) {
  if (waited > kMostWait || std::ssize(tokens) < has + kWorthReading) return false;
  if (!store_->open(key)) return is_awaited_ = true;
  const StoreShelf::Found found = store_->find(key, tokens);
  if (found.length < has + kWorthReading) return false;
  const bool is_read = store_->is_reading(found.name) ||
                       store_->read(key, found.name, [&](std::span<const int32_t> begin) {
                         return tree_.covering(key, begin).length;
                       });
  is_awaited_ = is_awaited_ || is_read;
  return is_read;
}

void StoredPrefixes::take_in(double now) {
  is_awaited_ = false;
  std::vector<PrefixTree::Node*> held;  // what is behind stands on it
  for (PrefixStore::Read& read : store_->take_read()) {
    try {
      held.push_back(take_in(read, now));
      ++num_read_;
      num_read_tokens_ += static_cast<uint64_t>(read.record.shape.length() - read.record.begin);
    } catch (...) {
      const Error error = host_error();
      if (error.kind() == ErrorKind::kOutOfMemory) continue;  // the prompt is computed
      store_->note(std::string("a stored prefix is not used: ") + error.what());
    }
  }
  for (PrefixTree::Node* node : held) PrefixTree::drop(node);
}

PrefixId StoredPrefixes::make_prefix(PrefixStore::Read& read, PrefixId parent) {
  const engine::PrefixImage image{read.record.shape, std::move(read.content.bytes)};
  for (;;) {
    try {
      return engine::write_prefix(engine_, image, read.key.adapter, parent);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kOutOfMemory || !evict_()) throw;
    }
  }
}

// Returns the node, held.
PrefixTree::Node* StoredPrefixes::take_in(PrefixStore::Read& read, double now) {
  const StoredRecord& record = read.record;
  const std::span<const int32_t> tokens = record.shape.history;
  const PrefixTree::Match parent =
      tree_.covering(read.key, tokens.first(static_cast<size_t>(record.begin)));
  if (parent.length < record.begin) {
    throw Error(ErrorKind::kOutOfMemory, "what it begins with has given way meanwhile");
  }
  std::vector<int32_t> words;
  if (store_->fit().token_words() > 0) {
    if (parent.node != nullptr) words = tree_.words(parent);
    words.insert(words.end(), read.content.words.begin(), read.content.words.end());
    if (std::ssize(words) != std::ssize(tokens) * record.token_words) words.clear();
  }
  if (parent.node != nullptr) PrefixTree::hold(parent.node);
  PrefixId made = 0;
  PrefixTree::Node* node = nullptr;
  try {
    made = make_prefix(read, parent.prefix);
    if (audit_ != nullptr && !words.empty()) {
      audit_->on_event({AuditEvent::Kind::kCreated, made, 0, 0, 0});
      tap_.copy(*audit_, made, made, tokens, words);
    }
    node = tree_.adopt(read.key, made, now, words);
  } catch (...) {
    if (made != 0) engine_.release_prefix(made);
    PrefixTree::drop(parent.node);
    throw;
  }
  PrefixTree::drop(parent.node);
  PrefixTree::mark_stored(node);
  return node;
}

// A prefix that files have already, but for a few tokens, is not stored again. Of a model that goes
// on from anywhere whole blocks are: behind a part of one others' positions may stand.
void StoredPrefixes::store(const PrefixTree::Kept& kept) {
  PrefixTree::mark_stored(kept.node);
  const engine::ImageSizes& sizes = store_->fit().sizes();
  const int64_t block = sizes.block_size, words_of_token = store_->fit().token_words();
  std::span<const int32_t> tokens = kept.tokens;
  int64_t resumed = engine_.resumed_length(kept.prefix, std::ssize(tokens));
  if (sizes.resumes_anywhere()) {
    resumed = resumed / block * block;
    tokens = tokens.first(static_cast<size_t>(resumed));
  }
  if (resumed < store_->find(*kept.key, tokens).length + kWorthReading) return;
  const int64_t length = std::ssize(tokens);
  StoredRecord record;
  std::vector<int32_t> words;
  if (words_of_token > 0) {
    words = tree_.words({kept.prefix, length, kept.node});
    if (words.empty()) return;  // what the recorder said has to be there
    record.token_words = words_of_token;
  }
  const StoreShelf::Found parent = store_->covering(*kept.key, tokens);
  record.begin = std::min(parent.length, length - 1) / block * block;
  if (record.begin > 0) record.parent = parent.name;
  words.erase(words.begin(), words.begin() + record.begin * words_of_token);
  engine::PrefixImage image = engine::read_prefix(engine_, kept.prefix, record.begin / block);
  image.shape.history.resize(tokens.size());
  image.bytes.resize(engine::image_bytes(sizes, image.shape));
  record.shape = std::move(image.shape);
  store_->write(*kept.key, std::move(record), std::move(image.bytes), std::move(words));
}

void StoredPrefixes::try_to_store(const PrefixTree::Kept& kept) {
  try {
    store(kept);
  } catch (...) {
    store_->note(std::string("a prefix is not stored: ") + host_error().what());
  }
}

void StoredPrefixes::store_one() {
  if (!store_->is_idle() || tree_.num_changes() == changes_seen_) return;
  std::optional<PrefixTree::Kept> most;
  std::vector<int32_t> tokens;
  tree_.visit([&](const PrefixTree::Kept& kept) {
    if (kept.is_stored || kept.uses == 0 || (most && most->uses >= kept.uses)) return;
    tokens.assign(kept.tokens.begin(), kept.tokens.end());
    most.emplace(kept);
    most->tokens = tokens;
  });
  if (!most) {
    changes_seen_ = tree_.num_changes();
    return;
  }
  if (!store_->open(*most->key)) return;  // it wakes us
  try_to_store(*most);
}

void StoredPrefixes::store_all() {
  tree_.visit([this](const PrefixTree::Kept& kept) { store_->open(*kept.key); });
  store_->finish();
  struct Waiting {
    PrefixTree::Kept kept;
    std::vector<int32_t> tokens;
  };
  std::vector<Waiting> all;
  tree_.visit([&all](const PrefixTree::Kept& kept) {
    if (!kept.is_stored) all.push_back({kept, {kept.tokens.begin(), kept.tokens.end()}});
  });
  std::ranges::stable_sort(
      all, [](const Waiting& a, const Waiting& b) { return a.kept.uses > b.kept.uses; });
  for (Waiting& each : all) {
    each.kept.tokens = each.tokens;
    try_to_store(each.kept);
    store_->finish();  // the next one may stand on it
  }
}

void StoredPrefixes::add_counts(ServerTelemetry& telemetry) const {
  store_->add_counts(telemetry);
  telemetry.store_read += num_read_;
  telemetry.store_read_tokens += num_read_tokens_;
}

}  // namespace vitrine::serve
