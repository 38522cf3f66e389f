// SPDX-License-Identifier: Apache-2.0
// A row of a federation's joint, made by the threads of its first engine.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/json_text.h"
#include "engine/federate/federation_impl.h"
#include "engine/run/worker_pool.h"

namespace vitrine {

static_assert(kJointBlock == kernels::kHeadBlock);

namespace {

void run_pieces(engine::WorkerPool* workers, engine::PieceWork& work, size_t pieces) {
  if (workers != nullptr) return workers->run(work, static_cast<int64_t>(pieces));
  for (size_t piece = 0; piece < pieces; ++piece) work.run_piece(static_cast<int64_t>(piece));
}

}  // namespace

// Pieces are blocks of one row; what a phase makes of each depends on nothing but the phase before.
class Federation::Impl::RowWork final : public engine::PieceWork {
 public:
  enum class Phase : uint8_t { kExponentials, kBlocks, kNormalise, kStatistics };

  RowWork(Impl& impl, const CombinerInput& input, std::span<SpecialistRow> rows,
          std::span<float> joint)
      : impl_(impl), input_(input), rows_(rows), joint_(joint) {}

  size_t blocks() const { return impl_.block_stats.size(); }

  void run(Phase phase, size_t pieces) {
    phase_ = phase;
    run_pieces(impl_.workers, *this, pieces);
  }

  void run_piece(int64_t piece) override {
    // A block's rows behind one another: they are the same thread's that mixes it, and mostly the
    // one's that made these logits.
    const auto index = static_cast<size_t>(piece);
    const bool is_of_specialist = phase_ == Phase::kExponentials;
    const size_t block = is_of_specialist ? index / rows_.size() : index;
    const size_t first = block * kJointBlock;
    const size_t count = std::min(kJointBlock, joint_.size() - first);
    const std::span<float> part = joint_.subspan(first, count);
    switch (phase_) {
      case Phase::kExponentials: {
        const size_t specialist = index % rows_.size(), at = specialist * blocks() + block;
        float* kept = impl_.exponentials.empty()
                          ? nullptr
                          : impl_.exponentials.data() + specialist * joint_.size() + first;
        impl_.sums[at] = sum_exponentials(rows_[specialist].logits.subspan(first, count), kept);
        impl_.block_max[at] = impl_.sums[at].max;
        return;
      }
      case Phase::kBlocks:
        impl_.block_combiner->combine_block(input_, impl_.row_exponentials, first, part);
        if (impl_.block_combiner->is_normalised()) return take_statistics(block);
        impl_.sums[block] = sum_exponentials(part, nullptr);
        return;
      case Phase::kNormalise:
        for (float& value : part) value -= log_normaliser_;
        return take_statistics(block);
      case Phase::kStatistics: return take_statistics(block);
    }
  }

  double total(size_t first_sum) const {
    ExponentialTotal total;
    for (size_t block = 0; block < blocks(); ++block) total.add(impl_.sums[first_sum + block]);
    return total.log();
  }
  void set_log_normaliser(double value) { log_normaliser_ = static_cast<float>(value); }

 private:
  void take_statistics(size_t block) {
    const auto begin = static_cast<int64_t>(block * kJointBlock);
    const auto vocabulary = static_cast<int64_t>(joint_.size());
    impl_.kernel.head_block(joint_.data(), begin,
                            std::min<int64_t>(vocabulary, begin + kernels::kHeadBlock), 1.0F,
                            impl_.records(), &impl_.block_stats[block], nullptr);
  }

  Impl& impl_;
  const CombinerInput& input_;
  std::span<SpecialistRow> rows_;
  std::span<float> joint_;
  Phase phase_ = Phase::kExponentials;
  float log_normaliser_ = 0;
};

void Federation::Impl::reserve_rows(size_t rows) {
  const size_t count = spec.specialists.size();
  const auto vocabulary = static_cast<size_t>(summary.vocab_size);
  const size_t blocks = (vocabulary + kJointBlock - 1) / kJointBlock;
  joint.resize(rows * vocabulary);
  stats.resize(rows);
  parts.resize(rows * count);
  block_stats.resize(blocks);
  sums.resize(count * blocks);
  block_max.resize(count * blocks);
  block_combiner = dynamic_cast<BlockCombiner*>(combiner.get());
  if (block_combiner == nullptr || !block_combiner->uses_exponentials()) return;
  exponentials.resize(count * vocabulary);
  for (size_t i = 0; i < count; ++i) {
    row_exponentials.push_back({std::span(exponentials).subspan(i * vocabulary, vocabulary),
                                std::span(block_max).subspan(i * blocks, blocks)});
  }
}

// parts[row, specialist].logits -> its joint and the statistics of that.
void Federation::Impl::make_joint(size_t row) {
  using Phase = RowWork::Phase;
  const size_t count = spec.specialists.size();
  const auto vocabulary = static_cast<size_t>(summary.vocab_size);
  const std::span<SpecialistRow> rows(parts.data() + row * count, count);
  const CombinerInput input{rows, hidden[row]};
  const std::span<float> to(joint.data() + row * vocabulary, vocabulary);
  RowWork work(*this, input, rows, to);
  const size_t blocks = work.blocks();
  work.run(Phase::kExponentials, count * blocks);
  for (size_t i = 0; i < count; ++i) rows[i].log_sum_exp = work.total(i * blocks);
  if (block_combiner == nullptr) {
    combiner->combine(input, to);
    work.run(Phase::kStatistics, blocks);
    check_hosts_joint();
  } else {
    block_combiner->begin(input);
    work.run(Phase::kBlocks, blocks);
    if (!block_combiner->is_normalised()) {
      const double log_normaliser = work.total(0);
      block_combiner->set_log_normaliser(log_normaliser);
      work.set_log_normaliser(log_normaliser);
      work.run(Phase::kNormalise, blocks);
    }
  }
  kernel.head_merge(block_stats.data(), static_cast<int32_t>(blocks), &stats[row]);
}

// A host's combiner may write anything; a joint that is no distribution must not be chosen from.
void Federation::Impl::check_hosts_joint() const {
  float max = -std::numeric_limits<float>::infinity();
  bool is_number = true;
  for (const kernels::HeadBlockStats& block : block_stats) {
    is_number = is_number && !std::isnan(block.max);
    max = std::max(max, block.max);
  }
  if (is_number && std::isfinite(max)) return;
  throw Error(
      ErrorKind::kInvalidArgument,
      "the combiner " + quote_text(combiner->name()) +
          " made a joint that has NaN or infinity in it, or nothing but -infinity; expected "
          "log-probabilities of the whole vocabulary");
}

void Federation::Impl::refuse_joint(const StepOutput& output) {
  throw Error(ErrorKind::kBadFile,
              "the joint of sequence " + std::to_string(output.sequence) + " at position " +
                  std::to_string(output.position) +
                  " is no number; a specialist, its weights or the combiner is broken");
}

void Federation::Impl::combine_row(size_t row) {
  const size_t count = spec.specialists.size();
  const auto vocabulary = static_cast<size_t>(summary.vocab_size);
  make_joint(row);
  const std::span<const float> to(joint.data() + row * vocabulary, vocabulary);
  const StepInput& input = input_of(row);
  StepOutput output = output_of(row);
  output.token = rows[row].next;
  output.scores = to;
  RowAccount& account = accounts[row];
  account.joint = to.data();
  if (rows[row].is_chosen()) {
    if (stats[row].count == 0) refuse_joint(output);
    output.token = stats[row].top_ids[0];
    if (engine::RowSampler::is_needed(input)) {
      output.token = row_sampler->sample(input, row, to.data(), context_of(row));
      if (input.guide != nullptr) input.guide->chosen(output.position + 1, output.token);
    }
  }
  output.hidden_state = hidden[row];
  const CombinerInput seen{{parts.data() + row * count, count}, hidden[row]};
  const std::span<SpecialistShare> own(shares.data() + row * count, count);
  account.logprob = to[static_cast<size_t>(output.token)];
  account.score = combiner->explain(seen, output.token, own);
  account.residual = engine::reconcile(layout.federation.shares, account.score, own);
  outputs.push_back(output);
}

}  // namespace vitrine
