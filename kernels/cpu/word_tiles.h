// SPDX-License-Identifier: Apache-2.0
// Packing of words tile by tile: what the tables share.
#pragma once

#include "cpu_kernels.h"

namespace vitrine::kernels {

/// The numbers of one tile, whose first of `rows` (up to 16) rows is at `words`; what is past
/// `rows` or `cols` is the bias.
using PackWordTile = void (*)(WeightFormat format, const uint8_t* words, int64_t rows, int64_t cols,
                              uint8_t* tile);
void pack_word_tile(WeightFormat format, const uint8_t* words, int64_t rows, int64_t cols,
                    uint8_t* tile);

/// pack_words with this for each tile.
int64_t pack_word_tiles(const Weight& weight, int64_t row_begin, int64_t row_end,
                        const WordRows& rows, PackWordTile pack, void* data, void* scales,
                        void* offsets);

}  // namespace vitrine::kernels
