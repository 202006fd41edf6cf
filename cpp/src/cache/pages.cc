// Rows where they lie: block tables, pinned pages, and the memory of a whole pool.
#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

#include "base/checked.h"
#include "cache/cache_core.h"
#include "kvcache/cache.h"

namespace kvcache {

using arena::ItemId;
using arena::kNoItem;

namespace {

// Holds one page for as long as somebody looks at it.
struct PagePin {
  explicit PagePin(std::shared_ptr<CacheCore> cache_value) : cache(std::move(cache_value)) {}
  PagePin(const PagePin&) = delete;
  PagePin& operator=(const PagePin&) = delete;
  ~PagePin() {
    if (page == kNoItem) return;
    const std::lock_guard lock(cache->mutex);
    if (cache->mutex.is_own_process()) pool->release(page);
  }

  const std::shared_ptr<CacheCore> cache;
  arena::Pool* pool = nullptr;
  ItemId page = kNoItem;  // nothing is held yet
};

using Pins = std::vector<std::shared_ptr<PagePin>>;

// Own. Pins the pages of blocks [first, last) of one group.
Pins pin_pages(const std::shared_ptr<CacheCore>& cache, const sequence::SequenceState& state,
               std::size_t group, std::uint64_t first, std::uint64_t last) {
  Pins pins;
  for (std::uint64_t block = first; block < last; ++block) {
    pins.push_back(std::make_shared<PagePin>(cache));
  }
  const std::lock_guard lock(cache->mutex);
  for (std::uint64_t block = first; block < last; ++block) {
    PagePin& pin = *pins[block - first];
    pin.pool = cache->pools.pages[group];
    pin.page = state.tables()[group].pages()[block];
    pin.pool->retain(pin.page);
  }
  return pins;
}

std::vector<PageView> views_of(const Pins& pins, const PagedComponent& component,
                               std::uint64_t block_tokens, std::uint64_t start,
                               std::uint64_t stop) {
  const std::uint64_t first = start / block_tokens;
  std::vector<PageView> views;
  for (std::size_t i = 0; i < pins.size(); ++i) {
    const PagePin& pin = *pins[i];
    const std::uint64_t begin = std::max(start, (first + i) * block_tokens);
    const std::uint64_t end = std::min(stop, (first + i + 1) * block_tokens);
    const std::byte* page = pin.pool->data(pin.page);
    PageView view;
    view.page = pin.page;
    view.start = begin;
    view.positions = end - begin;
    view.component = &component;
    view.rows = page + component.rows_offset + begin % block_tokens * component.row_bytes();
    if (component.row_scale_bytes > 0) {
      view.scales = page + component.scales_offset + begin % block_tokens * component.scale_bytes();
    }
    view.pin = pins[i];
    views.push_back(std::move(view));
  }
  return views;
}

PageMemory page_memory(const std::shared_ptr<CacheCore>& core, const sequence::PagedRef& ref) {
  const arena::Pool& pool = *core->pools.pages[ref.group];
  std::byte* base = pool.data(0);
  PageMemory memory;
  memory.group = ref.group;
  memory.component = ref.component;
  memory.block_tokens =
      static_cast<std::uint32_t>(core->plan.groups()[ref.group].rows(core->plan.block_tokens()));
  memory.pages = pool.addressable_items();
  memory.page_stride = pool.item_stride();
  memory.rows = base + ref.component->rows_offset;
  memory.scales =
      ref.component->row_scale_bytes > 0 ? base + ref.component->scales_offset : nullptr;
  memory.owner = core;
  return memory;
}

}  // namespace

Result<std::vector<std::int32_t>> Sequence::block_table(std::size_t group) const {
  if (!core_) return closed();
  const std::lock_guard own(core_->mutex);
  if (Status status = core_->check_open(); !status) return status;
  if (Status status = core_->cache->check_group(group); !status) return status;
  return core_->state->tables()[group].pages();
}

Result<std::vector<std::vector<PageView>>> Sequence::views(std::int32_t layer, std::uint64_t start,
                                                           std::uint64_t stop) const {
  if (!core_) return closed();
  const std::lock_guard own(core_->mutex);
  if (Status status = core_->check_open(); !status) return status;
  const std::shared_ptr<CacheCore>& cache = core_->cache;
  if (Status status = cache->check_backing("views"); !status) return status;
  sequence::SequenceState& state = *core_->state;
  if (Status status = state.check_read(layer, start, stop); !status) return status;
  const std::uint64_t block = cache->plan.block_tokens();
  const std::uint64_t last = start == stop ? start / block : ceil_div(stop, block);
  std::vector<std::vector<PageView>> views;
  std::size_t group = 0;
  Pins pins;
  for (const sequence::PagedRef& ref : **cache->layers.paged(layer)) {
    if (views.empty() || ref.group != group) {
      group = ref.group;
      pins = pin_pages(cache, state, group, start / block, last);
    }
    views.push_back(views_of(pins, *ref.component, block, start, stop));
  }
  state.mark_seen(stop);
  return views;
}

Result<PageMemory> Cache::pages(std::int32_t layer, std::string_view component) const {
  if (Status status = check_process(); !status) return status;
  if (Status status = core_->check_backing("pages"); !status) return status;
  if (const auto stream = core_->layers.stream(layer, component)) {
    return page_memory(core_, (*stream)->ref);
  }
  const auto refs = core_->layers.paged(layer);
  if (!refs) return refs.status();
  std::string known;
  for (const sequence::PagedRef& ref : **refs) {
    const std::string& name = core_->plan.decls()[ref.component->decl].component;
    known += (known.empty() ? "" : ", ") + name;
    if (name != component) continue;
    return page_memory(core_, ref);
  }
  return Status::not_found("layer ", layer, " keeps no pages of '", component,
                           "'; it keeps: ", known);
}

Result<std::vector<PageRefs>> Cache::page_refs(std::size_t group) const {
  if (Status status = check_process(); !status) return status;
  if (Status status = core_->check_group(group); !status) return status;
  const arena::Pool& pool = *core_->pools.pages[group];
  std::vector<PageRefs> live;
  const std::lock_guard lock(core_->mutex);
  for (ItemId page = 0; page < pool.known_items(); ++page) {
    if (pool.refs(page) > 0) live.push_back({page, pool.refs(page), pool.indexed(page)});
  }
  return live;
}

}  // namespace kvcache
