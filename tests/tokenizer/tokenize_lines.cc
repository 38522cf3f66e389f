// SPDX-License-Identifier: Apache-2.0
// Encodes and decodes for the oracle test: length-prefixed byte strings in, lines out.
//
//   tokenize_lines TOKENIZER < strings
//   tokenize_lines TOKENIZER --ids < arrays of 4-byte little-endian ids
//
// TOKENIZER is a tokenizer.json, a tekken.json or tiktoken.model, or a .gguf file that holds one's
// like, with a model or without.
// Input: for each string a 4-byte little-endian length, then the bytes. Output, four lines each:
// ids with special tokens, ids without, the first ids' text in hex (special tokens kept), the same
// with special tokens skipped; with --ids the last two only. The streamed text is compared here,
// and whole characters are demanded of every piece; a difference ends the program with 1.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "checkpoint/gguf_header.h"
#include "checkpoint/gguf_model.h"
#include "checkpoint/rank_tokenizer.h"
#include "vitrine/checkpoint.h"
#include "vitrine/tokenizer.h"

namespace {

vitrine::Tokenizer open_tokenizer(const std::string& path) {
  if (path.ends_with("tekken.json") || path.ends_with("tiktoken.model")) {
    return vitrine::Tokenizer::from_json(vitrine::checkpoint::rank_tokenizer_json(path), path);
  }
  if (!path.ends_with(".gguf")) return vitrine::Tokenizer::from_file(path);
  const auto header = vitrine::checkpoint::read_gguf_header(vitrine::checkpoint::InputFile(path));
  if (header.tensors.empty()) {  // a vocabulary alone, of any architecture
    return vitrine::Tokenizer::from_json(vitrine::checkpoint::gguf_tokenizer_json(header.metadata),
                                         path);
  }
  const vitrine::Checkpoint checkpoint = vitrine::Checkpoint::open(path);
  return vitrine::Tokenizer::from_json(checkpoint.tokenizer_json(), checkpoint.tokenizer_name());
}

void print_ids(const std::vector<int32_t>& ids) {
  for (size_t i = 0; i < ids.size(); ++i) std::printf(i == 0 ? "%d" : " %d", ids[i]);
  std::putchar('\n');
}

void print_hex(const std::string& text) {
  for (unsigned char byte : text) std::printf("%02x", byte);
  std::putchar('\n');
}

/// Whether a piece neither begins nor ends inside a character.
bool is_whole(const std::string& piece) {
  if (piece.empty()) return true;
  if ((static_cast<unsigned char>(piece[0]) & 0xc0) == 0x80) return false;
  size_t last = piece.size() - 1;
  while (last > 0 && (static_cast<unsigned char>(piece[last]) & 0xc0) == 0x80) --last;
  const unsigned char lead = static_cast<unsigned char>(piece[last]);
  const size_t length = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  return piece.size() - last == length;
}

std::string decode_both_ways(const vitrine::Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                             bool skip_special_tokens) {
  std::string text = tokenizer.decode(ids, skip_special_tokens);
  vitrine::StreamDecoder stream(tokenizer, skip_special_tokens);
  std::string streamed;
  for (size_t i = 0; i <= ids.size(); ++i) {
    const std::string piece = i < ids.size() ? stream.add(ids[i]) : stream.finish();
    if (!is_whole(piece)) {
      std::fprintf(stderr, "streaming decode emitted part of a character\n");
      std::exit(1);
    }
    streamed += piece;
  }
  if (streamed != text) {
    std::fprintf(stderr, "streaming decode differs from decode\n");
    std::exit(1);
  }
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  const bool reads_ids = argc == 3 && std::string(argv[2]) == "--ids";
  if (argc != 2 && !reads_ids) {
    std::fprintf(stderr, "usage: tokenize_lines TOKENIZER [--ids] < strings\n");
    return 2;
  }
  try {
    const vitrine::Tokenizer tokenizer = open_tokenizer(argv[1]);
    unsigned char header[4];
    while (std::fread(header, 1, 4, stdin) == 4) {
      const size_t length = header[0] | header[1] << 8 | header[2] << 16 | size_t{header[3]} << 24;
      std::string text(length, '\0');
      if (length > 0 && std::fread(text.data(), 1, length, stdin) != length) return 2;
      std::vector<int32_t> ids(length / 4);
      if (reads_ids) {
        std::memcpy(ids.data(), text.data(), ids.size() * 4);
      } else {
        ids = tokenizer.encode(text);
        print_ids(ids);
        print_ids(tokenizer.encode(text, false));
      }
      print_hex(decode_both_ways(tokenizer, ids, false));
      print_hex(decode_both_ways(tokenizer, ids, true));
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return 0;
}
