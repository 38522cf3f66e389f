// SPDX-License-Identifier: Apache-2.0
// Vocabularies that rank their tokens: the two neighbours whose union has the lowest rank are
// joined first, from the left where ranks are equal. Mistral's tekken.json has the pattern that
// cuts words and the special tokens in itself; Kimi's tiktoken.model has lines of base64 and a
// rank, and its special tokens in tokenizer_config.json.
#include "rank_tokenizer.h"

#include <sodium.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <vector>

#include "config_limits.h"
#include "fields.h"
#include "file_io.h"
#include "gguf_pre_tokenizer.h"
#include "gguf_tokenizer_parts.h"
#include "text.h"
#include "vitrine/checkpoint.h"

namespace vitrine::checkpoint {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kTekken = "tekken.json";
constexpr std::string_view kTiktoken = "tiktoken.model";
constexpr uint64_t kMaxVocabularyBytes = uint64_t{256} << 20;
constexpr size_t kMaxTokenBytes = 1024;
/// The most that the squares of the tokens' lengths may come to: their cuts take so much to try.
constexpr uint64_t kMaxCutWork = uint64_t{1} << 28;
/// A thousand are published.
constexpr int64_t kMaxSpecialTokens = 1 << 16;
/// Tokens of a tiktoken.model, whatever its tokenizer_config.json names.
constexpr int64_t kReservedTokens = 256;

struct SpecialToken {
  std::string text;
  bool is_special = true;  ///< Decoding may leave it out.
};

struct RankedVocabulary {  // NOLINT(bugprone-exception-escape): its Json throws none
  std::string file;
  std::vector<std::string> tokens;  ///< bytes, by rank
  int64_t first_id = 0;             ///< the id of rank 0
  std::map<int64_t, SpecialToken> specials;
  Json pre_tokenizer;
  std::string first_token;  ///< begins every text; empty: none is added
};

std::string decode_base64(std::string_view text, const std::string& place) {
  std::string bytes(text.size(), '\0');
  size_t size = 0;
  if (text.empty() || sodium_base642bin(reinterpret_cast<unsigned char*>(bytes.data()),
                                        bytes.size(), text.data(), text.size(), nullptr, &size,
                                        nullptr, sodium_base64_VARIANT_ORIGINAL) != 0) {
    throw_bad_file(place + " is " + quote_text(text) + "; expected a token's bytes in base64");
  }
  bytes.resize(size);
  return bytes;
}

/// Puts a token at its rank; ranks may come in any order.
void add_token(RankedVocabulary& vocabulary, int64_t rank, std::string bytes,
               const std::string& place) {
  if (bytes.size() > kMaxTokenBytes) {
    throw_bad_file(place + " is a token of " + std::to_string(bytes.size()) +
                   " bytes; expected at most " + std::to_string(kMaxTokenBytes));
  }
  const auto index = static_cast<size_t>(rank);
  if (vocabulary.tokens.size() <= index) vocabulary.tokens.resize(index + 1);
  if (!vocabulary.tokens[index].empty()) {
    throw_bad_file(place + " has the rank " + std::to_string(rank) +
                   ", which another token has; expected each rank once");
  }
  vocabulary.tokens[index] = std::move(bytes);
}

/// Writes tokenizer.json; checks that the ranks are whole.
class RankWriter {
 public:
  explicit RankWriter(const RankedVocabulary& vocabulary) : vocabulary_(vocabulary) {
    uint64_t work = 0;
    for (size_t rank = 0; rank < vocabulary.tokens.size(); ++rank) {
      const std::string& token = vocabulary.tokens[rank];
      if (token.empty()) {
        throw_bad_file(vocabulary.file + ": no token has the rank " + std::to_string(rank) +
                       "; expected one for each of 0 to " +
                       std::to_string(vocabulary.tokens.size() - 1));
      }
      if (!ranks_.emplace(token, rank).second) {
        throw_bad_file(vocabulary.file + ": the token of rank " + std::to_string(rank) +
                       " has the bytes of another one; expected each token once");
      }
      work += token.size() * token.size();
    }
    if (work > kMaxCutWork) {
      throw_bad_file(vocabulary.file + ": the squares of the tokens' lengths add up to " +
                     std::to_string(work) + "; expected at most " + std::to_string(kMaxCutWork));
    }
    leave_out_specials();
    write_letters();
    for (int byte = 0; byte < 256; ++byte) {
      const char letter = static_cast<char>(byte);
      if (ranks_.contains(std::string_view(&letter, 1))) continue;
      throw_bad_file(vocabulary.file + ": no token is the byte " + std::to_string(byte) +
                     "; expected one for each byte");
    }
  }

  std::string write() {
    out_ = R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[)";
    bool is_first = true;
    for (const auto& [id, token] : vocabulary_.specials) {
      out_ += is_first ? R"({"id":)" : R"(,{"id":)";
      is_first = false;
      out_ += std::to_string(id) + R"(,"content":)";
      append_special(id, token);
      out_ += R"(,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":)";
      out_ += token.is_special ? "true}" : "false}";
    }
    out_ += R"(],"normalizer":null,"pre_tokenizer":)" + vocabulary_.pre_tokenizer.dump();
    out_ += R"(,"post_processor":)" + post_processor().dump();
    out_ += R"(,"decoder":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,)";
    out_ += R"("use_regex":true},"model":{"type":"BPE","dropout":null,"unk_token":null,)";
    out_ += R"("continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,)";
    out_ += R"("byte_fallback":false,"ignore_merges":true,"vocab":{)";
    // Special tokens stand here, too: others than these have ids behind all that do.
    is_first = true;
    const auto begin_entry = [&] {
      if (!is_first) out_ += ',';
      is_first = false;
    };
    for (const auto& [id, token] : vocabulary_.specials) {
      begin_entry();
      append_special(id, token);
      out_ += ':' + std::to_string(id);
    }
    for (size_t rank = 0; rank < vocabulary_.tokens.size(); ++rank) {
      if (!ranks_.contains(vocabulary_.tokens[rank])) continue;
      begin_entry();
      append_letters(vocabulary_.tokens[rank]);
      out_ += ':' + std::to_string(vocabulary_.first_id + static_cast<int64_t>(rank));
    }
    out_ += '}';
    write_merges();
    out_ += "}}\n";
    return std::move(out_);
  }

 private:
  void append_special(int64_t id, const SpecialToken& token) {
    append_json_string(
        token.text, [&] { return vocabulary_.file + ": special token " + std::to_string(id); },
        out_);
  }

  /// A token with the text of a special one (tekken has "<unk>" twice) never comes of a text, since
  /// the special one is found first; a tokenizer.json has room for one of them.
  void leave_out_specials() {
    for (const auto& [id, token] : vocabulary_.specials) ranks_.erase(token.text);
  }

  /// What byte-level vocabularies write for each byte, as JSON has it within a text.
  void write_letters() {
    char32_t other = 256;
    for (int byte = 0; byte < 256; ++byte) {
      const bool is_plain = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
      std::string& letter = letters_[static_cast<size_t>(byte)];
      if (byte == '"' || byte == '\\') letter = '\\';
      append_utf8(is_plain ? static_cast<char32_t>(byte) : other++, letter);
    }
  }

  void append_letters(std::string_view token) {
    out_ += '"';
    for (const char byte : token) out_ += letters_[static_cast<unsigned char>(byte)];
    out_ += '"';
  }

  /// Every two tokens that make a third, at its rank.
  void write_merges() {
    std::string ranks;
    out_ += R"(,"merges":[)";
    for (size_t rank = 0; rank < vocabulary_.tokens.size(); ++rank) {
      const std::string_view token = vocabulary_.tokens[rank];
      for (size_t cut = 1; cut < token.size(); ++cut) {
        if (!ranks_.contains(token) || !ranks_.contains(token.substr(0, cut)) ||
            !ranks_.contains(token.substr(cut))) {
          continue;
        }
        out_ += ranks.empty() ? "[" : ",[";
        append_letters(token.substr(0, cut));
        out_ += ',';
        append_letters(token.substr(cut));
        out_ += ']';
        ranks += (ranks.empty() ? "" : ",") + std::to_string(rank);
      }
    }
    out_ += R"(],"merge_ranks":[)" + ranks + "]";
  }

  Json post_processor() const {
    for (const auto& [id, token] : vocabulary_.specials) {
      const std::string& text = token.text;
      if (vocabulary_.first_token.empty() || text != vocabulary_.first_token) continue;
      const Json first = {{"SpecialToken", {{"id", text}, {"type_id", 0}}}};
      const auto sequence = [](const char* name, int type) {
        return Json{{"Sequence", {{"id", name}, {"type_id", type}}}};
      };
      return {{"type", "TemplateProcessing"},
              {"single", Json::array({first, sequence("A", 0)})},
              {"pair", Json::array({first, sequence("A", 0), sequence("B", 1)})},
              {"special_tokens", {{text, {{"id", text}, {"ids", {id}}, {"tokens", {text}}}}}}};
    }
    return Json();
  }

  const RankedVocabulary& vocabulary_;
  std::unordered_map<std::string_view, size_t> ranks_;
  std::array<std::string, 256> letters_;
  std::string out_;
};

/// Those of the files that list none (mistral-common knows them).
constexpr std::string_view kFirstTekkenTokens[] = {"<unk>",
                                                   "<s>",
                                                   "</s>",
                                                   "[INST]",
                                                   "[/INST]",
                                                   "[AVAILABLE_TOOLS]",
                                                   "[/AVAILABLE_TOOLS]",
                                                   "[TOOL_RESULTS]",
                                                   "[/TOOL_RESULTS]",
                                                   "[TOOL_CALLS]",
                                                   "[IMG]",
                                                   "<pad>",
                                                   "[IMG_BREAK]",
                                                   "[IMG_END]",
                                                   "[PREFIX]",
                                                   "[MIDDLE]",
                                                   "[SUFFIX]",
                                                   "[SYSTEM_PROMPT]",
                                                   "[/SYSTEM_PROMPT]",
                                                   "[TOOL_CONTENT]"};

void read_tekken_specials(const Fields& document, int64_t count, RankedVocabulary& vocabulary) {
  const Json* listed = document.find("special_tokens");
  if (listed == nullptr) {
    for (const std::string_view text : kFirstTekkenTokens) {
      const auto id = static_cast<int64_t>(vocabulary.specials.size());
      if (id < count) vocabulary.specials[id].text = text;
    }
  } else if (!listed->is_array()) {
    document.bad("special_tokens", "a list of objects");
  } else {
    for (size_t i = 0; i < listed->size(); ++i) {
      const std::string place = vocabulary.file + ": special_tokens[" + std::to_string(i) + "]";
      if (!(*listed)[i].is_object()) throw_bad_file(place + " is no object; expected one");
      const Fields token((*listed)[i], place);
      const int64_t id = token.required_integer("rank", 0, count - 1);
      const auto text = token.string("token_str");
      if (!text || text->empty()) token.bad("token_str", "a text");
      if (!vocabulary.specials.try_emplace(id, SpecialToken{*text}).second) {
        token.bad("rank", "a rank of its own");
      }
    }
  }
  for (int64_t id = 0; id < count; ++id) {
    if (vocabulary.specials.contains(id)) continue;
    vocabulary.specials[id].text = "<SPECIAL_" + std::to_string(id) + ">";
  }
}

RankedVocabulary read_tekken(const std::string& path) {
  const Json json = parse_json_object(read_text_file(path, kMaxVocabularyBytes), path);
  const Fields document(json, path);
  const auto config = document.object("config");
  if (!config) document.bad("config", "an object");
  RankedVocabulary vocabulary;
  vocabulary.file = path;
  const int64_t ids = config->required_integer("default_vocab_size", 1, kMaxVocabulary);
  vocabulary.first_id = config->required_integer("default_num_special_tokens", 0,
                                                 std::min(ids - 1, kMaxSpecialTokens));
  const int64_t count = ids - vocabulary.first_id;
  const auto pattern = config->string("pattern");
  if (!pattern || pattern->empty()) config->bad("pattern", "a regular expression");
  vocabulary.pre_tokenizer = pre_tokenizer_of(*pattern);
  vocabulary.first_token = "<s>";
  read_tekken_specials(document, vocabulary.first_id, vocabulary);
  const Json* tokens = document.find("vocab");
  if (tokens == nullptr || !tokens->is_array() || std::ssize(*tokens) < count) {
    document.bad("vocab", "a list of " + std::to_string(count) +
                              " tokens or more (default_vocab_size without the special ones)");
  }
  for (size_t i = 0; i < tokens->size(); ++i) {
    const std::string place = path + ": vocab[" + std::to_string(i) + "]";
    if (!(*tokens)[i].is_object()) throw_bad_file(place + " is no object; expected one");
    const Fields token((*tokens)[i], place);
    const int64_t rank = token.required_integer("rank", 0, kMaxVocabulary);
    if (rank >= count) continue;  // files hold more than the model has
    const auto bytes = token.string("token_bytes");
    add_token(vocabulary, rank, decode_base64(bytes.value_or(""), place + ": token_bytes"), place);
  }
  vocabulary.tokens.resize(static_cast<size_t>(count));
  return vocabulary;
}

/// Names and kinds of the ids behind the ranks.
void read_tiktoken_specials(const std::string& path, RankedVocabulary& vocabulary) {
  if (!file_exists(path)) {
    throw_bad_file(path + ": is not there; expected the special tokens of " + vocabulary.file);
  }
  const Json json = parse_json_object(read_text_file(path, kMaxVocabularyBytes), path);
  const Fields fields(json, path);
  if (fields.string("tokenizer_class").value_or("TikTokenTokenizer") != "TikTokenTokenizer") {
    fields.unsupported("tokenizer_class", "'TikTokenTokenizer', Kimi's");
  }
  const auto decoder = fields.object("added_tokens_decoder");
  if (!decoder) fields.bad("added_tokens_decoder", "an object from ids to special tokens");
  const auto first = static_cast<int64_t>(vocabulary.tokens.size());
  const int64_t last = first + kMaxSpecialTokens - 1;
  int64_t end = first + kReservedTokens;
  for (const auto& [key, value] : fields.find("added_tokens_decoder")->items()) {
    int64_t id = -1;
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), id);
    const auto token = decoder->object(key);
    const bool is_id = parsed.ec == std::errc() && parsed.ptr == key.data() + key.size();
    if (!token || !is_id || id < first || id > last) {
      decoder->bad(key, "an object, named by an id of " + range_text(first, last));
    }
    const auto text = token->string("content");
    if (!text || text->empty()) token->bad("content", "a text");
    vocabulary.specials[id] = {*text, token->boolean("special").value_or(true)};
    end = std::max(end, id + 1);
  }
  for (int64_t id = first; id < end; ++id) {
    if (vocabulary.specials.contains(id)) continue;
    vocabulary.specials[id].text = "<|reserved_token_" + std::to_string(id) + "|>";
  }
}

RankedVocabulary read_tiktoken(const std::string& path) {
  RankedVocabulary vocabulary;
  vocabulary.file = path;
  const std::string text = read_text_file(path, kMaxVocabularyBytes);
  const auto lines = std::min<int64_t>(std::ranges::count(text, '\n') + 1, kMaxVocabulary);
  size_t number = 0;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    const std::string place = path + ": line " + std::to_string(++number);
    if (line.empty()) continue;
    const size_t space = line.find(' ');
    const std::string_view digits = line.substr(std::min(space, line.size() - 1) + 1);
    int64_t rank = -1;
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
    if (space == line.npos || parsed.ec != std::errc() ||
        parsed.ptr != digits.data() + digits.size() || rank < 0 || rank >= lines) {
      throw_bad_file(place + " is " + quote_text(line) +
                     "; expected base64, a blank and a rank of " + range_text(0, lines - 1));
    }
    add_token(vocabulary, rank, decode_base64(line.substr(0, space), place), place);
  }
  if (vocabulary.tokens.empty()) throw_bad_file(path + ": is empty; expected tokens and ranks");
  GgufPreTokenizer kimi;
  find_gguf_pre_tokenizer("kimi-k2", kimi);
  vocabulary.pre_tokenizer = kimi.pre_tokenizer;
  read_tiktoken_specials(path.substr(0, path.size() - kTiktoken.size()) + "tokenizer_config.json",
                         vocabulary);
  return vocabulary;
}

}  // namespace

std::string find_rank_tokenizer(const std::string& folder) {
  for (const std::string_view name : {kTekken, kTiktoken}) {
    std::string path = folder + "/" + std::string(name);
    if (file_exists(path)) return path;
  }
  return {};
}

std::string rank_tokenizer_json(const std::string& path) {
  return RankWriter(path.ends_with(kTekken) ? read_tekken(path) : read_tiktoken(path)).write();
}

}  // namespace vitrine::checkpoint
