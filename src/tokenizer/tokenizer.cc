// SPDX-License-Identifier: Apache-2.0
#include "vitrine/tokenizer.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "added_tokens.h"
#include "bpe.h"
#include "core/utf8.h"
#include "decoder.h"
#include "json_reader.h"
#include "normalizer.h"
#include "post_processor.h"
#include "pre_tokenizer.h"

namespace vitrine {

using namespace tokenizer;  // NOLINT(google-build-using-namespace): this file is the room's face

namespace {
constexpr size_t kMaxFileBytes = size_t{512} << 20;

}  // namespace

struct Tokenizer::Impl {
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  Bpe bpe;
  AddedTokens added_tokens;
  PostProcessor post_processor;
  Decoder decoder;
  int32_t vocab_size = 0;

  void check_id(int32_t id) const {
    if (id >= 0 && id < vocab_size) return;
    throw Error(ErrorKind::kInvalidArgument, "token id " + std::to_string(id) +
                                                 " is out of range, expected 0 to " +
                                                 std::to_string(vocab_size - 1));
  }

  /// What decoding sees of an id; false where nothing: an unused id, or a special token to skip.
  bool decoded_token(int32_t id, bool skip_special_tokens, std::string& token) const {
    check_id(id);
    const AddedToken* added = added_tokens.find(id);
    token = added != nullptr ? added->decoded : bpe.token(id);
    return !token.empty() && !(skip_special_tokens && added_tokens.is_special_text(token));
  }

  void encode_text(std::string text, bool is_start, RegexScratch& regex_scratch,
                   Bpe::Scratch& scratch, std::vector<int32_t>& ids) const {
    const Words words = pre_tokenizer.apply(std::move(text), is_start, regex_scratch);
    for (const Words::Span& span : words.spans) {
      bpe.encode_word(words.word(span), scratch, ids);
    }
  }

  /// Spells the special tokens among the ids from `first` on character by character: a vocabulary
  /// may merge guarded text to one.
  void spell_special_tokens(size_t first, Bpe::Scratch& scratch, std::vector<int32_t>& ids) const {
    const auto is_special = [this](int32_t id) {
      const AddedToken* added = added_tokens.find(id);
      return added != nullptr && added->special;
    };
    const auto begin = ids.begin() + static_cast<ptrdiff_t>(first);
    if (std::none_of(begin, ids.end(), is_special)) return;
    const std::vector<int32_t> found(begin, ids.end());
    ids.erase(begin, ids.end());
    for (const int32_t id : found) {
      if (!is_special(id)) {
        ids.push_back(id);
        continue;
      }
      const std::string text = bpe.token(id);
      for (size_t at = 0; at < text.size();) {
        const size_t start = at;
        next_code_point(text, at);
        bpe.encode_word(std::string_view(text).substr(start, at - start), scratch, ids);
      }
    }
  }
};

Tokenizer::Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::from_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream content;
  if (!stream || !(content << stream.rdbuf())) {
    const int error = errno;
    const bool is_missing = error == ENOENT || error == ENOTDIR || error == EISDIR;
    throw Error(is_missing ? ErrorKind::kBadFile : ErrorKind::kIo,
                path + ": cannot be read (" + std::strerror(error) +
                    "), expected a Hugging Face tokenizer.json");
  }
  return from_json(content.view(), path);
}

Tokenizer Tokenizer::from_json(std::string_view json, const std::string& name) {
  if (json.size() > kMaxFileBytes) {
    throw Error(ErrorKind::kBadFile, name + ": file of " + std::to_string(json.size()) +
                                         " bytes, expected at most " +
                                         std::to_string(kMaxFileBytes));
  }
  const Json document = parse_json(json, name);
  const JsonNode root(document, name, "");
  const JsonNode version = root.get("version");
  if (!version.is_null() && version.as_string() != "1.0") {
    version.fail(quote(version.as_string()), "'1.0'");
  }
  auto impl = std::make_shared<Impl>();
  impl->normalizer = Normalizer::load(root.get("normalizer"));
  impl->pre_tokenizer = PreTokenizer::load(root.get("pre_tokenizer"));
  impl->bpe = Bpe::load(root.at("model"));
  impl->added_tokens = AddedTokens::load(root.get("added_tokens"), impl->bpe, impl->normalizer);
  impl->vocab_size = std::max(impl->bpe.end_id(), impl->added_tokens.end_id());
  impl->post_processor = PostProcessor::load(root.get("post_processor"), impl->vocab_size);
  impl->decoder = Decoder::load(root.get("decoder"));
  return Tokenizer(std::move(impl));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens,
                                       const std::atomic<bool>* cancelled) const {
  return encode_parts(text, add_special_tokens, /*is_guarded=*/false, cancelled);
}

std::vector<int32_t> Tokenizer::encode_guarded(std::string_view text,
                                               bool add_special_tokens) const {
  return encode_parts(text, add_special_tokens, /*is_guarded=*/true, nullptr);
}

std::string Tokenizer::without_guards(std::string_view text) {
  std::string left;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(Tokenizer::kTextGuard, begin), text.size());
    left.append(text.substr(begin, end - begin));
    begin = end + Tokenizer::kTextGuard.size();
  }
  return left;
}

std::string Tokenizer::guard_special_tokens(std::string_view text) const {
  return impl_->added_tokens.guard(without_guards(text), kTextGuard);
}

std::vector<int32_t> Tokenizer::encode_parts(std::string_view text, bool add_special_tokens,
                                             bool is_guarded,
                                             const std::atomic<bool>* cancelled) const {
  if (text.size() > kMaxTextBytes) {
    throw Error(ErrorKind::kInvalidArgument, "text of " + std::to_string(text.size()) +
                                                 " bytes, expected at most " +
                                                 std::to_string(kMaxTextBytes));
  }
  std::string valid;
  valid.reserve(text.size());
  append_lossy(text, true, valid);

  RegexScratch regex_scratch(cancelled);
  Bpe::Scratch scratch;
  scratch.cancelled = cancelled;
  std::vector<int32_t> ids;
  std::vector<TextPart> parts, inner_parts;
  impl_->added_tokens.split(valid, false, parts);
  for (const TextPart& part : parts) {
    if (part.id >= 0) {
      ids.push_back(part.id);
      continue;
    }
    const std::string normalized = impl_->normalizer.apply(std::string(part.text), regex_scratch);
    inner_parts.clear();
    impl_->added_tokens.split(normalized, true, inner_parts);
    for (const TextPart& inner : inner_parts) {
      if (inner.id >= 0) {
        ids.push_back(inner.id);
        continue;
      }
      const bool is_start =
          part.text.data() == valid.data() && inner.text.data() == normalized.data();
      const size_t first = ids.size();
      impl_->encode_text(is_guarded ? without_guards(inner.text) : std::string(inner.text),
                         is_start, regex_scratch, scratch, ids);
      if (is_guarded) impl_->spell_special_tokens(first, scratch, ids);
    }
  }
  return impl_->post_processor.apply(std::move(ids), add_special_tokens);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  std::string token;
  for (int32_t id : ids) {
    if (impl_->decoded_token(id, skip_special_tokens, token)) tokens.push_back(std::move(token));
  }
  return impl_->decoder.decode(std::move(tokens));
}

std::string Tokenizer::token_bytes(int32_t id) const {
  std::string token;
  if (!impl_->decoded_token(id, false, token)) return {};
  return impl_->decoder.token_bytes(std::move(token));
}

std::string Tokenizer::token_text(int32_t id) const {
  impl_->check_id(id);
  const AddedToken* added = impl_->added_tokens.find(id);
  return added != nullptr ? added->content : impl_->bpe.token(id);
}

int32_t Tokenizer::token_id(std::string_view token) const {
  const AddedToken* added = impl_->added_tokens.find(token);
  return added != nullptr ? added->id : impl_->bpe.id_of(token);
}

bool Tokenizer::is_special(int32_t id) const {
  impl_->check_id(id);
  const AddedToken* added = impl_->added_tokens.find(id);
  return added != nullptr && added->special;
}

int32_t Tokenizer::vocab_size() const { return impl_->vocab_size; }

struct StreamDecoder::State {
  std::shared_ptr<const Tokenizer::Impl> impl;
  bool skip_special_tokens;
  Decoder::Stream stream;
  std::string pending;              // bytes of an unfinished character
  std::vector<std::string> tokens;  // of a decoder that cannot stream
};

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special_tokens)
    : state_(std::make_unique<State>()) {
  state_->impl = tokenizer.impl_;
  state_->skip_special_tokens = skip_special_tokens;
}
StreamDecoder::~StreamDecoder() = default;
StreamDecoder::StreamDecoder(StreamDecoder&&) noexcept = default;
StreamDecoder& StreamDecoder::operator=(StreamDecoder&&) noexcept = default;

std::string StreamDecoder::add(int32_t id) {
  const Decoder& decoder = state_->impl->decoder;
  std::string token;
  if (!state_->impl->decoded_token(id, state_->skip_special_tokens, token)) return {};
  if (!decoder.is_streamable()) {
    state_->tokens.push_back(std::move(token));
    return {};
  }
  state_->pending += decoder.add(std::move(token), state_->stream);
  std::string text;
  state_->pending.erase(0, append_lossy(state_->pending, false, text));
  return text;
}

std::string StreamDecoder::finish() {
  std::string text;
  if (!state_->impl->decoder.is_streamable()) {
    text = state_->impl->decoder.decode(std::exchange(state_->tokens, {}));
  } else {
    state_->pending += state_->impl->decoder.finish(state_->stream);
  }
  append_lossy(std::exchange(state_->pending, {}), true, text);
  return text;
}

}  // namespace vitrine
