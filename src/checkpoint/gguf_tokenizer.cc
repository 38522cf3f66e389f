// SPDX-License-Identifier: Apache-2.0
// A GGUF file's vocabulary as a tokenizer.json, so that there is one way to read a tokenizer.
#include <algorithm>
#include <cmath>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "core/end_texts.h"
#include "core/utf8.h"
#include "gguf_model.h"
#include "gguf_pre_tokenizer.h"
#include "gguf_tokenizer_parts.h"
#include "text.h"

namespace vitrine::checkpoint {
namespace {

using Json = nlohmann::json;

// Values of `tokenizer.ggml.token_type`.
constexpr int64_t kNormal = 1;
constexpr int64_t kUnknown = 2;
constexpr int64_t kControl = 3;
constexpr int64_t kUserDefined = 4;
constexpr int64_t kUnused = 5;
constexpr int64_t kByte = 6;

constexpr uint64_t kMaxTokens = 1 << 22;
/// Every cut of a SentencePiece piece is tried; longer ones would take minutes.
constexpr size_t kMaxPieceBytes = 1024;
/// The most that the squares of the pieces' lengths may come to: their cuts take so much to try,
/// and to write as merges. 256,000 pieces of Gemma come to a tenth of it.
constexpr uint64_t kMaxPieceWork = uint64_t{1} << 28;

class TokenizerWriter {
 public:
  TokenizerWriter(const GgufMetadata& metadata, const GgufArray& tokens)
      : metadata_(metadata), tokens_(tokens) {
    if (tokens.count == 0 || tokens.count > kMaxTokens) {
      metadata.bad("tokenizer.ggml.tokens", "1 to " + std::to_string(kMaxTokens) + " tokens");
    }
    types_ = array_of_tokens("tokenizer.ggml.token_type", GgufType::kI32);
    for (uint64_t id = 0; id < tokens.count; ++id) check_type(id);
    find_ends();
  }

  std::string write() {
    constexpr std::string_view kModel = "tokenizer.ggml.model";
    const std::string model = metadata_.required_string(kModel);
    if (model == "gpt2") {
      write_byte_level();
    } else if (model == "llama") {
      write_sentence_piece();
    } else if (model == "gemma4") {
      write_characters();
    } else {
      metadata_.unsupported(kModel,
                            "'gpt2' (byte-level BPE), 'llama' (SentencePiece) or 'gemma4' (BPE of "
                            "characters with byte fallback)");
    }
    return std::move(out_);
  }

 private:
  int64_t type(uint64_t id) const { return ends_.contains(id) ? kControl : stored_type(id); }
  int64_t stored_type(uint64_t id) const {
    return types_ == nullptr ? kNormal : types_->integer(id);
  }
  std::string place(uint64_t id) const {
    return metadata_.file() + ": key 'tokenizer.ggml.tokens': token " + std::to_string(id);
  }

  void check_type(uint64_t id) const {
    if (type(id) >= kNormal && type(id) <= kByte) return;
    throw_bad_file(metadata_.file() + ": key 'tokenizer.ggml.token_type': token " +
                   std::to_string(id) + " has the type " + std::to_string(type(id)) +
                   "; expected 1 (normal), 2 (unknown), 3 (control), 4 (user-defined), 5 (unused) "
                   "or 6 (byte)");
  }

  /// Tokens that end a turn are control tokens, whatever their type: as text they would be spelled,
  /// and no answer would end (llama.cpp does the same).
  void find_ends() {
    for (uint64_t id = 0; id < tokens_.count; ++id) {
      const int64_t kind = stored_type(id);
      if ((kind != kNormal && kind != kUserDefined) || !core::is_end_text(tokens_.string(id))) {
        continue;
      }
      if (ends_.empty()) {
        log_message(LogLevel::kWarning, place(id) + " is " + quote_text(tokens_.string(id)) +
                                            ", which ends a turn, and has the type " +
                                            std::to_string(kind) +
                                            "; it and others like it are taken as control tokens");
      }
      ends_.insert(id);
    }
  }

  void append_token(uint64_t id) {
    append_json_string(
        tokens_.string(id), [&] { return place(id); }, out_);
  }

  const GgufArray* array_of_tokens(std::string_view key, GgufType element_type) const {
    const GgufArray* array = metadata_.array(key, element_type);
    if (array != nullptr && array->count != tokens_.count) {
      metadata_.bad(key, std::to_string(tokens_.count) + " values, one for each token");
    }
    return array;
  }

  void write_byte_level() {
    constexpr std::string_view kPre = "tokenizer.ggml.pre";
    GgufPreTokenizer pre;
    const std::string name = metadata_.string(kPre).value_or("");
    if (name.empty()) {
      log_message(LogLevel::kWarning,
                  metadata_.file() +
                      ": there is no key 'tokenizer.ggml.pre': words are cut as "
                      "llama.cpp does by default, which may not be how the model was "
                      "trained");
    }
    if (!find_gguf_pre_tokenizer(name.empty() ? "default" : name, pre)) {
      metadata_.unsupported(kPre, "one of " + gguf_pre_tokenizer_names());
    }
    begin();
    field("normalizer", pre.normalizes_nfc ? Json{{"type", "NFC"}} : Json());
    field("pre_tokenizer", pre.pre_tokenizer);
    field("post_processor", post_processor(pre.adds_bos));
    field("decoder", {{"type", "ByteLevel"},
                      {"add_prefix_space", true},
                      {"trim_offsets", true},
                      {"use_regex", true}});
    begin_model(Json(), false, pre.ignores_merges);
    write_listed_merges();
  }

  /// Gemma 4's: BPE of whole texts by the listed merges, over characters; what is no token becomes
  /// bytes.
  void write_characters() {
    begin();
    field("normalizer", space_as_piece());
    field("pre_tokenizer", Json());
    field("post_processor", post_processor(true));
    field("decoder", {{"type", "Sequence"}, {"decoders", piece_decoders()}});
    begin_model(unknown_token(), true, false);
    write_listed_merges();
  }

  void write_listed_merges() {
    const GgufArray* merges = metadata_.array("tokenizer.ggml.merges", GgufType::kString);
    if (merges == nullptr) metadata_.bad("tokenizer.ggml.merges", "an array of strings");
    out_ += R"(,"merges":[)";
    for (uint64_t i = 0; i < merges->count; ++i) {
      if (i > 0) out_ += ',';
      append_json_string(
          merges->string(i),
          [&] {
            return metadata_.file() + ": key 'tokenizer.ggml.merges': merge " + std::to_string(i);
          },
          out_);
    }
    out_ += "]}}\n";
  }

  Json unknown_token() const {
    const int64_t last = static_cast<int64_t>(tokens_.count) - 1;
    const int64_t id = metadata_.token_id("tokenizer.ggml.unknown_token_id", last).value_or(0);
    return Json(tokens_.string(static_cast<uint64_t>(id)));
  }

  void write_sentence_piece() {
    const bool has_prefix = metadata_.boolean("tokenizer.ggml.add_space_prefix").value_or(true);
    Json normalizers = Json::array();
    if (has_prefix) normalizers.push_back({{"type", "Prepend"}, {"prepend", kSpacePiece}});
    normalizers.push_back(space_as_piece());
    Json decoders = piece_decoders();
    if (has_prefix) {
      decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    }
    const GgufArray* scores = array_of_tokens("tokenizer.ggml.scores", GgufType::kF32);
    if (scores == nullptr) metadata_.bad("tokenizer.ggml.scores", "an array of float32");
    read_pieces(*scores);
    std::vector<Merge> merges = piece_merges(*scores);
    keep_unused(merges);
    begin();
    field("normalizer", {{"type", "Sequence"}, {"normalizers", std::move(normalizers)}});
    field("pre_tokenizer", Json());
    field("post_processor", post_processor(true));
    field("decoder", {{"type", "Sequence"}, {"decoders", std::move(decoders)}});
    begin_model(unknown_token(), true, false);
    write_merges(merges);
    out_ += "}}\n";
  }

  void begin() {
    out_ = R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[)";
    bool is_first = true;
    for (uint64_t id = 0; id < tokens_.count; ++id) {
      const int64_t kind = type(id);
      if ((kind != kControl && kind != kUserDefined && kind != kUnknown) ||
          tokens_.string(id).empty()) {
        continue;
      }
      out_ += is_first ? R"({"id":)" : R"(,{"id":)";
      is_first = false;
      out_ += std::to_string(id) + R"(,"content":)";
      append_token(id);
      out_ += R"(,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":)";
      out_ += kind == kUserDefined ? "false}" : "true}";
    }
    out_ += ']';
  }

  void field(const char* name, const Json& value) {
    out_ += ",\"" + std::string(name) + "\":" + value.dump();
  }

  /// The model up to its vocabulary, without unused ids but those kept.
  void begin_model(const Json& unknown_token, bool byte_fallback, bool ignore_merges) {
    std::unordered_map<std::string_view, uint64_t> ids;
    out_ += R"(,"model":{"type":"BPE","dropout":null,"unk_token":)";
    out_ += unknown_token.dump();
    out_ += R"(,"continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":)";
    out_ += byte_fallback ? "true" : "false";
    out_ += R"(,"byte_fallback":)";
    out_ += byte_fallback ? "true" : "false";
    out_ += R"(,"ignore_merges":)";
    out_ += ignore_merges ? "true" : "false";
    out_ += R"(,"vocab":{)";
    bool is_first = true;
    for (uint64_t id = 0; id < tokens_.count; ++id) {
      const std::string_view token = tokens_.string(id);
      if ((type(id) == kUnused && !kept_unused_.contains(id)) || token.empty()) continue;
      const auto [other, is_new] = ids.emplace(token, id);
      if (!is_new) {
        throw_bad_file(place(id) + " is " + quote_text(token) + " as token " +
                       std::to_string(other->second) + " is; expected each text once");
      }
      if (!is_first) out_ += ',';
      is_first = false;
      append_token(id);
      out_ += ':' + std::to_string(id);
    }
    out_ += '}';
  }

  struct Merge {
    double score;
    uint64_t whole, left, right;
  };

  /// The pieces that SentencePiece joins, by their text: unused ones too, where no other has it.
  void read_pieces(const GgufArray& scores) {
    std::unordered_set<std::string_view> others;
    uint64_t work = 0;
    for (uint64_t id = 0; id < tokens_.count; ++id) {
      if (type(id) != kUnused) others.insert(tokens_.string(id));
    }
    for (uint64_t id = 0; id < tokens_.count; ++id) {
      const std::string_view piece = tokens_.string(id);
      if (type(id) != kNormal && (type(id) != kUnused || others.contains(piece))) continue;
      if (piece.size() > kMaxPieceBytes) {
        throw_bad_file(place(id) + " has " + std::to_string(piece.size()) +
                       " bytes; expected at most " + std::to_string(kMaxPieceBytes));
      }
      if (!std::isfinite(scores.number(id))) {
        throw_bad_file(metadata_.file() + ": key 'tokenizer.ggml.scores': the score of token " +
                       std::to_string(id) + " is not finite; expected a number");
      }
      work += piece.size() * piece.size();
      if (work > kMaxPieceWork) {
        metadata_.bad("tokenizer.ggml.tokens",
                      "pieces whose lengths in bytes, squared, add up to at most " +
                          std::to_string(kMaxPieceWork) + " (fewer or shorter long ones)");
      }
      pieces_.emplace(piece, id);
    }
  }

  /// SentencePiece joins the two neighbours whose union has the best score, from the left where
  /// scores are equal: merges with the rank of their result's score.
  std::vector<Merge> piece_merges(const GgufArray& scores) const {
    std::vector<Merge> merges;
    for (const auto& [piece, id] : pieces_) {
      for (size_t cut = 1; cut < piece.size(); ++cut) {
        if (is_continuation(piece[cut])) continue;
        const auto left = pieces_.find(piece.substr(0, cut));
        if (left == pieces_.end()) continue;
        const auto right = pieces_.find(piece.substr(cut));
        if (right == pieces_.end()) continue;
        merges.push_back({scores.number(id), id, left->second, right->second});
      }
    }
    std::ranges::sort(merges, [](const Merge& a, const Merge& b) {
      if (a.score != b.score) return a.score > b.score;
      return std::tie(a.whole, a.left) < std::tie(b.whole, b.left);
    });
    return merges;
  }

  /// SentencePiece gives a text an unused piece of one character as any other, and takes a longer
  /// one apart again once all is joined: what it was joined of may have become something else. Both
  /// stay in the vocabulary, padding that nothing is joined to does not.
  void keep_unused(std::vector<Merge>& merges) {
    const auto is_gone = [&](uint64_t id) {
      return type(id) == kUnused && !kept_unused_.contains(id);
    };
    for (size_t before = merges.size() + 1; merges.size() < before;) {
      before = merges.size();
      kept_unused_.clear();
      for (const auto& [piece, id] : pieces_) {
        if (type(id) != kUnused || piece.empty()) continue;
        const Utf8Character first = read_utf8(piece, 0);
        if (first.is_valid && first.size == piece.size()) {
          kept_unused_.emplace(id, true);
        }
      }
      for (const Merge& merge : merges) {
        if (type(merge.whole) == kUnused) kept_unused_.emplace(merge.whole, false);
      }
      std::erase_if(
          merges, [&](const Merge& merge) { return is_gone(merge.left) || is_gone(merge.right); });
    }
  }

  void write_merges(const std::vector<Merge>& merges) {
    std::string ranks, unused;
    uint64_t rank = 0;
    out_ += R"(,"merges":[)";
    for (size_t i = 0; i < merges.size(); ++i) {
      if (i > 0 && merges[i].score != merges[i - 1].score) ++rank;
      out_ += i == 0 ? "[" : ",[";
      append_token(merges[i].left);
      out_ += ',';
      append_token(merges[i].right);
      out_ += ']';
      ranks += (i == 0 ? "" : ",") + std::to_string(rank);
    }
    out_ += R"(],"merge_ranks":[)" + ranks + "]";
    for (const auto& [id, is_character] : kept_unused_) {
      if (!is_character) unused += (unused.empty() ? "" : ",") + std::to_string(id);
    }
    if (!unused.empty()) out_ += R"(,"unused_ids":[)" + unused + "]";
  }

  /// The ids before and after a text, as `add_bos_token` and `add_eos_token` say.
  Json post_processor(bool adds_bos) const {
    adds_bos = metadata_.boolean("tokenizer.ggml.add_bos_token").value_or(adds_bos);
    const bool adds_eos = metadata_.boolean("tokenizer.ggml.add_eos_token").value_or(false);
    Json single = Json::array();
    Json tokens = Json::object();
    const auto add = [&](const char* key) {
      const std::string name = std::string("tokenizer.ggml.") + key;
      const int64_t last = static_cast<int64_t>(tokens_.count) - 1;
      const auto id = metadata_.token_id(name, last);
      if (!id) metadata_.bad(name, "the id that add_bos_token or add_eos_token asks for");
      const std::string text(tokens_.string(static_cast<uint64_t>(*id)));
      single.push_back({{"SpecialToken", {{"id", text}, {"type_id", 0}}}});
      tokens[text] = {{"id", text}, {"ids", {*id}}, {"tokens", {text}}};
    };
    // Some files ask for a first token and name none.
    if (adds_bos && metadata_.token_id("tokenizer.ggml.bos_token_id", INT64_MAX)) {
      add("bos_token_id");
    }
    single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
    if (adds_eos) add("eos_token_id");
    if (tokens.empty()) return Json();
    Json pair = single;
    pair.push_back({{"Sequence", {{"id", "B"}, {"type_id", 1}}}});
    return {{"type", "TemplateProcessing"},
            {"single", std::move(single)},
            {"pair", std::move(pair)},
            {"special_tokens", std::move(tokens)}};
  }

  const GgufMetadata& metadata_;
  const GgufArray& tokens_;
  const GgufArray* types_ = nullptr;
  std::unordered_set<uint64_t> ends_;  ///< control tokens whose type says otherwise
  std::unordered_map<std::string_view, uint64_t> pieces_;
  std::map<uint64_t, bool> kept_unused_;  ///< whether it is one character
  std::string out_;
};

}  // namespace

std::string gguf_tokenizer_json(const GgufMetadata& metadata) {
  const GgufArray* tokens = metadata.array("tokenizer.ggml.tokens", GgufType::kString);
  if (tokens == nullptr) return {};
  try {
    return TokenizerWriter(metadata, *tokens).write();
  } catch (const Json::exception&) {  // of a special token; the others were looked at one by one
    throw_bad_file(metadata.file() +
                   ": key 'tokenizer.ggml.tokens' holds a special token that is no UTF-8; expected "
                   "text");
  }
}

}  // namespace vitrine::checkpoint
