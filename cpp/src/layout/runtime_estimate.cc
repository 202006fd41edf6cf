#include "kvcache/runtime_estimate.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "base/checked.h"
#include "kvcache/retention.h"

namespace kvcache {
namespace {

Status overflow(std::string_view operation) {
  return Status::invalid_argument("arithmetic overflow in ", operation,
                                  ": the result does not fit 64 bits");
}

Result<std::uint64_t> product(const std::vector<std::uint64_t>& factors,
                              std::string_view operation) {
  std::uint64_t total = 1;
  // A zero factor wins over an overflow of the others.
  if (std::find(factors.begin(), factors.end(), 0U) != factors.end()) return std::uint64_t{0};
  for (const std::uint64_t factor : factors) {
    const auto next = checked_mul(total, factor);
    if (!next) return overflow(operation);
    total = *next;
  }
  return total;
}

Status add(std::uint64_t& total, const Result<std::uint64_t>& part, std::string_view operation) {
  if (!part) return part.status();
  const auto sum = checked_add(total, *part);
  if (!sum) return overflow(operation);
  total = *sum;
  return Status::ok();
}

bool depends_on_prefix(const EstimateComponent& component) {
  return std::any_of(component.shape.begin(), component.shape.end(), [](const Axis& axis) {
    return axis.kind == AxisKind::kPrefixTokens || axis.kind == AxisKind::kPrefixTokensDiv ||
           axis.kind == AxisKind::kPrefixTokensRem;
  });
}

Status check(const EstimateComponent& component) {
  const auto bad = [](const Axis& axis) { return axis.value == 0; };
  if (component.shape.empty() || component.element_bytes == 0 || component.presence_value == 0 ||
      std::any_of(component.shape.begin(), component.shape.end(), bad)) {
    return Status::invalid_argument(component.name, ": needs axes, and no size or divisor of 0");
  }
  return Status::ok();
}

bool is_counted(const EstimateComponent& component, std::uint64_t prefix) {
  switch (component.presence) {
    case Presence::kRequired:
    case Presence::kOptional:
      return true;
    case Presence::kPrefixRemainderNonZero:
      return prefix % component.presence_value != 0;
    case Presence::kPrefixAtLeast:
      return prefix >= component.presence_value;
    case Presence::kChargedElsewhere:
      break;
  }
  return false;
}

Result<std::uint64_t> component_bytes(const EstimateComponent& component, std::uint64_t prefix,
                                      std::uint64_t batch) {
  std::vector<std::uint64_t> factors = {component.element_bytes};
  for (const Axis& axis : component.shape) {
    switch (axis.kind) {
      case AxisKind::kBatch:
        factors.push_back(batch);
        break;
      case AxisKind::kPrefixTokens:
        factors.push_back(prefix);
        break;
      case AxisKind::kPrefixTokensDiv:
        factors.push_back(prefix / axis.value);
        break;
      case AxisKind::kPrefixTokensRem:
        factors.push_back(prefix % axis.value);
        break;
      case AxisKind::kFixed:
        factors.push_back(axis.value);
        break;
      case AxisKind::kScalar:
        break;
    }
  }
  return product(factors, component.name + " bytes");
}

// Bytes that one more position of one sequence adds, in the long run and rounded up.
Result<std::uint64_t> component_growth(const EstimateComponent& component) {
  std::uint64_t bytes = component.element_bytes;
  std::uint64_t divisor = 1;
  for (const Axis& axis : component.shape) {
    if (axis.kind == AxisKind::kPrefixTokensRem) return std::uint64_t{0};
    std::uint64_t& side = axis.kind == AxisKind::kPrefixTokensDiv ? divisor : bytes;
    const bool scales = axis.kind == AxisKind::kPrefixTokensDiv || axis.kind == AxisKind::kFixed;
    const auto next = checked_mul(side, scales ? axis.value : 1);
    if (!next) return overflow(component.name + " growth");
    side = *next;
  }
  return ceil_div(bytes, divisor);
}

Status add_component(RuntimeEstimate& estimate, const EstimateLayer& layer,
                     const EstimateComponent& component, const EstimateInput& input) {
  if (Status status = check(component); !status) return status;
  std::uint64_t prefix =
      input.positions > layer.prefix_lag ? input.positions - layer.prefix_lag : 0;
  const bool grows = depends_on_prefix(component);
  if (component.attention && layer.window != 0) {
    prefix = Retention{.window = layer.window}.most_seen(prefix);
  } else if (component.attention) {
    const auto rounded = checked_mul(ceil_div(prefix, input.granularity), input.granularity);
    if (!rounded) return overflow("retained positions");
    prefix = *rounded;
  }
  if (is_counted(component, prefix)) {
    std::uint64_t& total = grows ? estimate.context_bytes : estimate.fixed_bytes;
    const auto bytes = component_bytes(component, prefix, input.batch);
    if (Status s = add(total, bytes, grows ? "context state" : "fixed state"); !s) return s;
  }
  if (!grows || (component.attention && layer.window != 0)) return Status::ok();
  return add(estimate.growth_bytes, component_growth(component), "bytes per position");
}

}  // namespace

Result<RuntimeEstimate> estimate_runtime_state(const std::vector<EstimateLayer>& layers,
                                               const EstimateInput& input) {
  if (input.batch == 0)
    return Status::invalid_argument("batch_size: expected a positive count, got 0");
  if (input.granularity == 0 || input.floating_bytes == 0) {
    return Status::invalid_argument(
        "allocation_granularity and floating_state_dtype_bytes must be "
        "positive, got ",
        input.granularity, " and ", input.floating_bytes);
  }
  RuntimeEstimate estimate;
  std::set<std::uint64_t> windows;
  for (const EstimateLayer& layer : layers) {
    if (layer.window != 0) windows.insert(layer.window);
    for (const EstimateComponent& component : layer.components) {
      if (Status s = add_component(estimate, layer, component, input); !s) return s;
    }
  }
  estimate.window_bounds.assign(windows.begin(), windows.end());
  const auto embeddings = product(
      {input.media_positions, input.hidden_size, input.batch, input.floating_bytes}, "embeddings");
  if (Status s = add(estimate.embedding_bytes, embeddings, "embeddings"); !s) return s;
  const auto workspace = product({input.media_workspace_bytes, input.batch}, "media workspace");
  if (Status s = add(estimate.workspace_bytes, workspace, "media workspace"); !s) return s;
  for (const std::uint64_t part : {estimate.fixed_bytes, estimate.context_bytes,
                                   estimate.embedding_bytes, estimate.workspace_bytes}) {
    if (Status s = add(estimate.requested_bytes, part, "requested state"); !s) return s;
  }
  return estimate;
}

}  // namespace kvcache
