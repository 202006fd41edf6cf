#include "kvcache/state_terms.h"

#include <algorithm>

#include "base/checked.h"

namespace kvcache {
namespace {

// Appends units * unit bytes.
Status add_term(std::vector<StateTerm>& terms, const StateDecl& decl, std::uint32_t index,
                Holding holding, std::uint64_t units) {
  const auto unit = unit_bytes(decl);
  if (!unit) return unit.status();
  const auto bytes = checked_mul(units, *unit);
  if (!bytes) {
    return Status::invalid_argument(decl.id, ": ", units, " units of ", *unit,
                                    " bytes do not fit 64 bits");
  }
  terms.push_back({index, holding, units, *bytes});
  return Status::ok();
}

// Intermediates of one recurrent state over all verify slots.
Result<std::uint64_t> verify_steps(const StateDecl& decl, const VerifyCounts& verify) {
  if (decl.verify == VerifyRule::kNone) {
    return Status::invalid_argument(decl.id,
                                    ": recurrent state without a verify rule cannot be "
                                    "sized for a speculative verify");
  }
  if (decl.verify == VerifyRule::kConvSteps) {
    const auto steps = checked_mul(verify.conv_steps, verify.h_steps.size());
    if (!steps) return Status::invalid_argument(decl.id, ": verify steps do not fit 64 bits");
    return *steps;
  }
  std::uint64_t steps = 0;
  for (const std::uint64_t count : verify.h_steps) {
    const auto sum = checked_add(steps, count);
    if (!sum) return Status::invalid_argument(decl.id, ": verify steps do not fit 64 bits");
    steps = *sum;
  }
  return steps;
}

Status add_recurrent(std::vector<StateTerm>& terms, const StateDecl& decl, std::uint32_t index,
                     const StateInputs& inputs) {
  if (Status s = add_term(terms, decl, index, Holding::kLive, inputs.slots); !s) return s;
  if (!inputs.verify) return Status::ok();
  const auto steps = verify_steps(decl, *inputs.verify);
  if (!steps) return steps.status();
  if (Status s = add_term(terms, decl, index, Holding::kSteps, *steps); !s) return s;
  return add_term(terms, decl, index, Holding::kCheckpoint, inputs.verify->h_steps.size());
}

Status add_paged(std::vector<StateTerm>& terms, const StateDecl& decl, std::uint32_t index,
                 const StateInputs& inputs) {
  const auto& pool = decl.section == Section::kDraft ? inputs.draft_kv : inputs.kv;
  if (!pool) return Status::ok();
  const auto positions = checked_mul(pool->blocks, pool->block_tokens);
  if (!positions) {
    return Status::invalid_argument(decl.id, ": ", pool->blocks, " blocks of ", pool->block_tokens,
                                    " positions do not fit 64 bits");
  }
  if (decl.record_tokens == 0 || *positions % decl.record_tokens != 0) {
    return Status::invalid_argument(decl.id, ": ", *positions, " positions are no whole number of ",
                                    decl.record_tokens, "-position records");
  }
  return add_term(terms, decl, index, Holding::kBlocks, *positions / decl.record_tokens);
}

}  // namespace

Result<std::vector<StateTerm>> state_terms(const std::vector<StateDecl>& decls,
                                           const StateInputs& inputs) {
  std::vector<StateTerm> terms;
  for (std::uint32_t index = 0; index < decls.size(); ++index) {
    const StateDecl& decl = decls[index];
    Status status;
    if (decl.kind == StateKind::kRecurrent) status = add_recurrent(terms, decl, index, inputs);
    if (decl.kind == StateKind::kPagedKv) status = add_paged(terms, decl, index, inputs);
    if (!status) return status;
  }
  return terms;
}

Result<std::uint64_t> retained_units(const StateDecl& decl, std::uint64_t tokens,
                                     std::uint64_t block_tokens) {
  if (block_tokens == 0) return Status::invalid_argument("block_tokens must be positive, got 0");
  if (decl.kind == StateKind::kRecurrent) return std::uint64_t{1};
  if (decl.kind != StateKind::kPagedKv) {
    return Status::invalid_argument(decl.id, ": a cache is sized by its inputs, not by positions");
  }
  if (decl.record_tokens == 0) {
    return Status::invalid_argument(decl.id, ": record_tokens must be positive, got 0");
  }
  const Retention retention = decl.retention();
  std::uint64_t positions = retention.most_seen(tokens);
  if (!retention.forgets()) {
    const auto rounded = checked_mul(ceil_div(tokens, block_tokens), block_tokens);
    if (!rounded) {
      return Status::invalid_argument(decl.id, ": ", tokens, " positions in blocks of ",
                                      block_tokens, " do not fit 64 bits");
    }
    positions = *rounded;
  }
  return retention.rows(positions);
}

Result<std::uint64_t> retained_bytes(const StateDecl& decl, std::uint64_t tokens,
                                     std::uint64_t block_tokens) {
  const auto units = retained_units(decl, tokens, block_tokens);
  if (!units) return units.status();
  const auto unit = unit_bytes(decl);
  if (!unit) return unit.status();
  const auto bytes = checked_mul(*units, *unit);
  if (!bytes) {
    return Status::invalid_argument(decl.id, ": the state of ", tokens,
                                    " positions does not fit 64 bits");
  }
  return *bytes;
}

Result<std::uint64_t> retained_bytes(const std::vector<StateDecl>& decls, std::uint64_t tokens,
                                     std::uint64_t block_tokens) {
  std::uint64_t total = 0;
  for (const StateDecl& decl : decls) {
    const auto bytes = retained_bytes(decl, tokens, block_tokens);
    if (!bytes) return bytes.status();
    const auto sum = checked_add(total, *bytes);
    if (!sum) {
      return Status::invalid_argument("the state of ", tokens, " positions does not fit 64 bits");
    }
    total = *sum;
  }
  return total;
}

}  // namespace kvcache
