// SPDX-License-Identifier: Apache-2.0
// The room `evaluation`: samples in the form of lm-eval (`--log_samples`), written and read.
//
//     const Evaluation base = read_evaluation("base.eval");
//     write_lm_eval_samples(base, Suite::open("core"), "samples");
//     read_lm_eval_samples(std::vector<std::string>{"samples_arc_easy_2026-11-29.jsonl"},
//     "arc.eval");
#pragma once

#include <span>
#include <string>

#include "vitrine/evaluation.h"

namespace vitrine {

/// Writes `folder`/samples_TASK.jsonl for each task that has results, a line an item, as lm-eval
/// 0.4 logs samples: doc, target, arguments, resps, filtered_resps, filter, metrics and their
/// values, and the three hashes. A task of answers has the form of `generate_until` (the filter is
/// the scorer, filtered_resps what it read), one of choices that of `multiple_choice` (of which the
/// flag "greedy" is not known, "None"), one of texts that of `loglikelihood_rolling`. Items of
/// results that are not there are left out. Throws kInvalidArgument where the evaluation is one of
/// another suite or of other options of it, and kIo.
VITRINE_API void write_lm_eval_samples(const Evaluation& evaluation, const Suite& suite,
                                       const std::string& folder);

/// Reads samples files of one run of lm-eval's and writes them into `path` as evaluate() does, so
/// that they are compared and held to gates as Vitrine's own. Each file is a task, named after the
/// file, and each filter a task of its own ("gsm8k@strict-match"); an item's id is its doc_id. The
/// suite's digest is that of all docs, prompts and targets, so that runs of the same questions are
/// compared and others are not. An item is right where its first metric of exact_match, acc, or
/// else the first that is a number from 0 to 1, is 0.5 or more; further metrics are its parts.
/// `results_*.json` beside a file tells who answered. Returns how many items were read. Throws kIo,
/// kBadFile (naming file, line, field, what was found and expected), kUnsupported for samples of
/// `loglikelihood_rolling`, which tell no tokens, and kInvalidArgument for no files, two of one
/// task, and an output that is an input.
VITRINE_API size_t read_lm_eval_samples(std::span<const std::string> files,
                                        const std::string& path);

}  // namespace vitrine
