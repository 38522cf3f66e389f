// SPDX-License-Identifier: Apache-2.0
// All block formats of this folder.
#pragma once

#include "iq1_m.h"
#include "iq1_s.h"
#include "iq2_s.h"
#include "iq2_xs.h"
#include "iq2_xxs.h"
#include "iq3_s.h"
#include "iq3_xxs.h"
#include "iq4_nl.h"
#include "iq4_xs.h"
#include "nvfp4.h"
#include "q1_0.h"
#include "q2_0.h"
#include "q3_k.h"
#include "q5_0.h"
#include "q5_1.h"
#include "q5_k.h"
#include "tq1_0.h"
#include "tq2_0.h"

namespace vitrine::kernels::blocks {

template <class... Formats>
struct FormatList {};

using AllFormats = FormatList<Q5_0, Q5_1, Q3_K, Q5_K, Iq2Xxs, Iq2Xs, Iq3Xxs, Iq1S, Iq4Nl, Iq3S,
                              Iq2S, Iq4Xs, Iq1M, Tq1_0, Tq2_0, Q1_0, Q2_0, Nvfp4>;

/// Calls take.operator()<Format>() for the format of that number; false where there is none.
template <class Take, class... Formats>
static bool with_format(BlockFormat format, FormatList<Formats...>, const Take& take) {
  return ((Formats::kFormat == format ? (take.template operator()<Formats>(), true) : false) ||
          ...);
}

template <class Take>
static bool with_format(BlockFormat format, const Take& take) {
  return with_format(format, AllFormats{}, take);
}

/// What is known of a format without its decoder.
struct Shape {
  BlockFormat format;
  const char* name;
  int cols, bytes;              // of a block in the file
  int unit_bytes, scale_bytes;  // of a tile
  bool has_two_parts, has_two_scales, has_minimum;
};

template <class Format>
constexpr Shape shape_of() {
  return {Format::kFormat,   Format::kName,      Format::kCols,
          Format::kBytes,    Format::kUnitBytes, Format::kScaleBytes,
          Format::kTwoParts, Format::kTwoScales, Format::kHasMinimum};
}

/// The shape of a format of this folder; its cols are 0 where it is none.
static inline Shape find_shape(BlockFormat format) {
  Shape shape = {};
  with_format(format, [&]<class Format>() { shape = shape_of<Format>(); });
  return shape;
}

/// The shape of a matrix of kBlocks; of any other all is 0.
static inline Shape shape_of(const Weight& weight) {
  return weight.format == WeightFormat::kBlocks ? find_shape(weight.block_format) : Shape{};
}

/// Where a tile's units begin, and its blocks' scales.
template <class Format>
static const uint8_t* units_of(const Weight& weight, int64_t tile) {
  return static_cast<const uint8_t*>(weight.data) +
         tile * (weight.cols / kUnitCols) * Format::kUnitBytes;
}
template <class Format>
static const uint8_t* scales_of(const Weight& weight, int64_t tile) {
  return static_cast<const uint8_t*>(weight.scales) +
         tile * (weight.cols / Format::kCols) * Format::kScaleBytes;
}

}  // namespace vitrine::kernels::blocks
