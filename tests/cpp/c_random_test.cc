// Calls of the C face in any order, on handles that are freed in any order, with numbers of any
// size: an answer, whatever it is, but no bug of the library's, and afterwards all memory is back.
#include <string>

#include "c_player.h"

namespace {

// Plays with what lies beside a cache as well: rows of engines, pools, hidden rows, drafts.
class PartsPlayer : public Player {
 public:
  using Player::Player;
  ~PartsPlayer() override {
    free_later(views_), free_later(pools_), free_later(pins_of_blocks_), free_later(captures_);
    free_later(bands_), free_later(stashes_), free_later(drafts_), free_later(lookups_);
    free_later(lookup_caches_), free_later(scopes_);
  }

 protected:
  kvcache_status any_call() override {
    switch (below(12)) {
      case 0:
        return engine_call();
      case 1:
        return pool_call();
      case 2:
        return hidden_call();
      case 3:
        return bands_call();
      case 4:
        return drafts_call();
      case 5:
        return lookup_call();
      default:
        return Player::any_call();
    }
  }

 private:
  static constexpr std::size_t kElements = 2 * kToyMost * kToyHeads * kToyWidth;

  // A tensor of so many positions, of any of a few layouts; `joined`, of both components.
  kvcache_engine_tensor tensor(uint64_t tokens, bool joined) {
    static constexpr std::array<const char*, 6> kLayouts = {"tokens heads dim",
                                                            "heads tokens dim",
                                                            "kv blocks block heads dim",
                                                            "blocks block (kv heads dim)",
                                                            "layers kv tokens (heads dim)",
                                                            "(tokens"};
    constexpr std::array<std::size_t, 6> kAxes = {3, 3, 5, 3, 4, 1};
    constexpr uint64_t kRow = kToyHeads * kToyWidth;
    const std::array<std::array<uint64_t, 5>, 6> shapes = {{{tokens, kToyHeads, kToyWidth},
                                                            {kToyHeads, tokens, kToyWidth},
                                                            {2, 16, 4, kToyHeads, kToyWidth},
                                                            {16, 4, 2 * kRow},
                                                            {1, 2, tokens, kRow},
                                                            {}}};
    const std::size_t which = rarely() ? 5 : joined ? 2 + below(3) : below(2);
    shape_ = shapes[which];
    if (rarely()) shape_[below(5)] = number() % 16;
    kvcache_engine_tensor result = {};
    result.struct_size = sizeof result;
    result.data = rarely() ? nullptr : elements_.data();
    result.dtype = rarely() ? static_cast<kvcache_dtype>(below(12)) : KVCACHE_F32;
    result.layout = kLayouts[which];
    result.shape = shape_.data();
    result.axes = rarely() ? below(6) : kAxes[which];
    // Whatever the shape says is within the elements.
    uint64_t size = 1;
    for (std::size_t axis = 0; axis < result.axes; ++axis) size *= shape_[axis];
    if (size > kElements) shape_[0] = 0;
    return result;
  }
  kvcache_engine_places places() {
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      blocks_[i] = static_cast<int32_t>(rarely() && rarely() ? number() : i);
    }
    kvcache_engine_places result = {};
    result.struct_size = sizeof result;
    result.block_table = blocks_.data();
    result.block_count = rarely() ? below(blocks_.size()) : blocks_.size();
    if (!rarely()) return result;
    for (int64_t& each : slots_) each = static_cast<int64_t>(rarely() ? number() : below(16));
    result.slot_mapping = slots_.data();
    result.slot_count = below(slots_.size());
    return result;
  }

  kvcache_status engine_call() {
    kvcache_sequence* const sequence = one(sequences_);
    kvcache_page_view view = {};
    view.struct_size = sizeof view;
    const std::array<int32_t, 2> layers = {rarely() ? layer() : 0, 0};
    const std::size_t count = rarely() ? below(3) : 1;
    const uint64_t length = kvcache_sequence_length(sequence);
    const uint64_t start = rarely() ? number() : length;
    const uint64_t stop = rarely() ? number() : start + below(3);
    const uint64_t first = rarely() ? number() : below(length + 1);
    const uint64_t last = rarely() ? number() : length;
    const bool joined = below(2) == 0;
    const kvcache_engine_places where = places();
    switch (below(5)) {
      case 0: {
        const kvcache_engine_tensor each = tensor(stop - start, joined);
        const std::array<kvcache_engine_tensor, 2> tensors = {each, each};
        return kvcache_sequence_import_rows(sequence, layers.data(), count, start, stop,
                                            tensors.data(), joined ? 1 : 2,
                                            below(2) == 0 ? nullptr : &where);
      }
      case 1: {
        const kvcache_engine_tensor whole = tensor(last - first, true);
        return kvcache_sequence_export_rows(sequence, layers.data(), count, first, last, &whole, 1,
                                            below(2) == 0 ? nullptr : &where);
      }
      case 2:
        return make(views_, [&](kvcache_page_views** out) {
          return kvcache_sequence_views(sequence, layers[0], first, last, out);
        });
      case 3:
        return kvcache_page_views_read(one(views_), rarely() ? number() : below(3), &view);
      default: {
        const kvcache_layer_rows rows_of = {layers[0], rows(below(6)), components()};
        return below(2) == 0 ? kvcache_sequence_write_layers(sequence, start, &rows_of, count % 2)
                             : kvcache_sequence_read_layers(sequence, first, &rows_of, 1);
      }
    }
  }

  kvcache_status pool_call() {
    kvcache_pool* const pool = one(pools_);
    std::array<int32_t, 4> ids = {};
    for (int32_t& each : ids) each = static_cast<int32_t>(rarely() ? number() : below(6));
    uint32_t refs = 0;
    void* data = nullptr;
    kvcache_block_stats stats = {};
    stats.struct_size = sizeof stats;
    switch (below(9)) {
      case 0:
        return make(pools_, [&](kvcache_pool** out) {
          kvcache_pool_options options = {};
          options.struct_size = sizeof options;
          options.blocks = rarely() ? number() : 6;
          options.block_bytes = rarely() ? number() : 32;
          options.ledger = rarely();
          return kvcache_pool_create(&options, out);
        });
      case 1:
        return rarely() ? drop(pools_) : drop(pins_of_blocks_);
      case 2:
        return kvcache_pool_allocate(pool, ids.data(), below(4));
      case 3:
        return kvcache_pool_retain(pool, ids.data(), below(4));
      case 4:
        return kvcache_pool_free(pool, ids.data(), below(4));
      case 5:
        return kvcache_pool_refs(pool, ids[0], &refs);
      case 6: {
        const kvcache_status status = make(pins_of_blocks_, [&](kvcache_block_pin** out) {
          return kvcache_pool_pin(pool, ids[0], out, &data);
        });
        if (status == KVCACHE_OK && data != nullptr) memset(data, 1, 1);
        return status;
      }
      case 7:
        return kvcache_pool_data(pool, ids[0], &data);
      default:
        return kvcache_pool_stats(pool, &stats);
    }
  }

  // What memory is taken for: small, or more than there can be.
  uint64_t amount(uint64_t usual) {
    const uint64_t odd = number();
    if (!rarely()) return usual;
    return odd < 100 ? odd : UINT64_MAX;
  }
  kvcache_hidden_options hidden_options() {
    static constexpr kvcache_dtype kF32 = KVCACHE_F32;
    kvcache_hidden_options options = {};
    options.struct_size = sizeof options;
    options.rows = amount(4);
    options.width = amount(2);
    options.dtype = &kF32;
    options.cache = one(caches_);
    return options;
  }
  kvcache_hidden_rows hidden() {
    return {elements_.data(), rarely() ? KVCACHE_F16 : KVCACHE_F32, below(8),
            rarely() ? below(3) : 2, 8};
  }

  kvcache_status hidden_call() {
    kvcache_hidden_capture* const capture = one(captures_);
    const kvcache_hidden_options options = hidden_options();
    const kvcache_hidden_rows rows_in = hidden();
    kvcache_hidden_rows out = {};
    kvcache_capture_state state = {};
    state.struct_size = sizeof state;
    uint64_t kept = 0;
    switch (below(7)) {
      case 0:
        return make(captures_, [&](kvcache_hidden_capture** handle) {
          return kvcache_hidden_capture_create(&options, handle);
        });
      case 1:
        return rarely() ? drop(captures_) : kvcache_hidden_capture_begin(capture, one(sequences_));
      case 2:
        return kvcache_hidden_capture_write(capture, number(), &rows_in, &kept);
      case 3:
        return kvcache_hidden_capture_rows(capture, &out);
      case 4:
        return kvcache_hidden_capture_consume(capture);
      case 5:
        return rarely() ? kvcache_hidden_capture_release(capture) : KVCACHE_OK;
      default:
        return kvcache_hidden_capture_read(capture, &state);
    }
  }

  // A band of a verify's rows, stored while it is open and read after its verdict.
  kvcache_status band_of_a_verify() {
    kvcache_hidden_bands* const bands = one(bands_);
    kvcache_sequence* const sequence = one(sequences_);
    const kvcache_hidden_rows rows_in = {elements_.data(), KVCACHE_F32, 8, 2, 8};
    const std::array<int32_t, 2> offsets = {0, static_cast<int32_t>(1 + below(3))};
    kvcache_verify* verify = nullptr;
    const kvcache_status begun = kvcache_sequence_begin_verify(
        sequence, tokens(), static_cast<std::size_t>(offsets[1] - 1), nullptr, &verify);
    if (begun != KVCACHE_OK) return begun;
    const kvcache_status stored =
        kvcache_hidden_bands_store(bands, &sequence, 1, &rows_in, offsets.data());
    void* data = nullptr;
    uint64_t length = 0;
    for (uint64_t row = 0; row < static_cast<uint64_t>(offsets[1]); ++row) {
      static_cast<void>(kvcache_verify_state(verify, row, 1, TOY_STATE, &data, &length));
    }
    static_cast<void>(
        kvcache_verify_write(verify, 0, rows(static_cast<std::size_t>(offsets[1])), 2));
    static_cast<void>(kvcache_verify_commit(verify, 1, &length));
    kvcache_verify_destroy(verify);
    kvcache_hidden_rows out = {};
    const kvcache_status read = kvcache_hidden_bands_accepted(bands, 0, &out);
    return stored == KVCACHE_OK ? read : stored;
  }

  kvcache_status bands_call() {
    if (rarely()) return band_of_a_verify();
    kvcache_hidden_bands* const bands = one(bands_);
    kvcache_accept_stash* const stash = one(stashes_);
    const kvcache_hidden_options options = hidden_options();
    const kvcache_hidden_rows rows_in = hidden();
    const std::array<kvcache_sequence*, 2> members = {one(sequences_), one(sequences_)};
    const std::array<int32_t, 3> offsets = {0, static_cast<int32_t>(below(5)),
                                            static_cast<int32_t>(number() % 9) - 1};
    kvcache_hidden_rows out = {};
    switch (below(8)) {
      case 0:
        return make(bands_, [&](kvcache_hidden_bands** handle) {
          return kvcache_hidden_bands_create(&options, amount(2), handle);
        });
      case 1:
        return make(stashes_, [&](kvcache_accept_stash** handle) {
          return kvcache_accept_stash_create(&options, number(), handle);
        });
      case 2:
        return rarely() ? drop(bands_) : drop(stashes_);
      case 3:
        return kvcache_hidden_bands_store(bands, members.data(), below(3), &rows_in,
                                          offsets.data());
      case 4:
        return kvcache_hidden_bands_accepted(bands, rarely() ? number() : 0, &out);
      case 5:
        static_cast<void>(counts());
        return kvcache_accept_stash_store(stash, members.data(), below(3), &rows_in, counts_.data(),
                                          counts_.data() + 2, below(3),
                                          below(2) == 0 ? nullptr : counts_.data() + 1);
      case 6:
        return kvcache_accept_stash_rows(stash, number(), &out);
      default:
        return below(2) == 0 ? kvcache_accept_stash_row(stash, number(), &out)
                             : kvcache_accept_stash_catch_up(stash, number(), &out);
    }
  }

  kvcache_status drafts_call() {
    kvcache_drafts* const drafts = one(drafts_);
    const kvcache_sequence* const sequence = one(sequences_);
    std::array<int32_t, 8> out = {};
    std::array<float, 8> confidences = {};
    std::size_t count = 0;
    std::size_t confident = 0;
    uint64_t pending = 0;
    switch (below(7)) {
      case 0:
        return make(drafts_, [&](kvcache_drafts** handle) {
          return kvcache_drafts_create(number(), rarely() ? number() : 4, handle);
        });
      case 1:
        return drop(drafts_);
      case 2:
        return kvcache_drafts_put(drafts, sequence, tokens(), below(5),
                                  below(2) == 0 ? nullptr : confidences.data());
      case 3:
        return kvcache_drafts_take(drafts, sequence, out.data(), confidences.data(), below(9),
                                   &count, &confident);
      case 4:
        return kvcache_drafts_put_back(drafts, sequence);
      case 5:
        return rarely() ? kvcache_drafts_clear(drafts, sequence) : KVCACHE_OK;
      default:
        return kvcache_drafts_pending(drafts, sequence, &pending);
    }
  }

  kvcache_status lookup_call() {
    kvcache_lookup* const lookup = one(lookups_);
    kvcache_lookup_state state = {};
    state.struct_size = sizeof state;
    std::array<int32_t, 16> out = {};
    std::size_t count = 0;
    switch (below(9)) {
      case 0:
        return make(lookups_, [&](kvcache_lookup** handle) {
          kvcache_lookup_options options = {};
          options.struct_size = sizeof options;
          options.max_match = number();
          options.max_drafts = number() % 17;
          options.occurrence = static_cast<kvcache_occurrence>(below(4));
          return kvcache_lookup_create(&options, handle);
        });
      case 1:
        return drop(lookups_);
      case 2:
        return kvcache_lookup_observe(lookup, tokens(), some_tokens());
      case 3:
        return kvcache_lookup_find(lookup, tokens(), some_tokens(), out.data(), below(16), &count);
      case 4:
        return kvcache_lookup_propose(lookup, tokens(), some_tokens(), one(scopes_), out.data(),
                                      below(16), &count);
      case 5:
        return rarely() ? kvcache_lookup_abandon(lookup) : kvcache_lookup_settle(lookup, number());
      case 6:
        return lookup_batch_call();
      case 7:
        return scope_call();
      default:
        return below(2) == 0 ? kvcache_lookup_read(lookup, &state)
                             : kvcache_lookup_truncate(lookup, number());
    }
  }

  kvcache_status lookup_batch_call() {
    const std::array<kvcache_lookup*, 2> some_lookups = {one(lookups_), one(lookups_)};
    const std::array<const int32_t*, 2> histories = {tokens(), tokens() + 1};
    const std::array<std::size_t, 2> lengths = {some_tokens(), some_tokens()};
    std::array<uint64_t, 2> proposed = {};
    std::array<int32_t, 40> out = {};
    static_cast<void>(counts());
    if (below(2) == 0) {
      return kvcache_lookup_settle_batch(some_lookups.data(), below(3), counts_.data());
    }
    return kvcache_lookup_propose_batch(some_lookups.data(), below(3), histories.data(),
                                        lengths.data(), counts_.data(), out.data(), below(40),
                                        proposed.data());
  }

  kvcache_status scope_call() {
    const kvcache_lookup_scope* const scope = one(scopes_);
    kvcache_lookup_key key = {};
    key.struct_size = sizeof key;
    key.tenant = {"ab", below(3)};
    std::array<int32_t, 16> out = {};
    std::size_t count = 0;
    uint64_t held = 0;
    switch (below(6)) {
      case 0:
        return make(lookup_caches_, [&](kvcache_lookup_cache** handle) {
          kvcache_lookup_cache_options options = {};
          options.struct_size = sizeof options;
          options.memory_bytes = 1 << 14;
          options.scope_bytes = rarely() ? number() : 1 << 13;
          options.match = number();
          return kvcache_lookup_cache_create(&options, handle);
        });
      case 1:
        return make(scopes_, [&](kvcache_lookup_scope** handle) {
          return kvcache_lookup_cache_scope(one(lookup_caches_), &key, handle);
        });
      case 2:
        if (below(2) == 0) return kvcache_lookup_cache_drop(one(lookup_caches_), &key);
        return below(2) == 0 ? drop(lookup_caches_) : drop(scopes_);
      case 3:
        return kvcache_lookup_scope_insert(one(scopes_), tokens(), some_tokens());
      case 4:
        return kvcache_lookup_scope_find(scope, tokens(), some_tokens(), out.data(), below(16),
                                         &count);
      default:
        return kvcache_lookup_scope_tokens(scope, &held);
    }
  }

  std::array<float, kElements> elements_ = {};
  std::array<uint64_t, 5> shape_ = {};
  std::array<int32_t, 16> blocks_ = {};
  std::array<int64_t, 12> slots_ = {};
  Pool<kvcache_page_views> views_{kvcache_page_views_destroy};
  Pool<kvcache_pool> pools_{kvcache_pool_destroy};
  Pool<kvcache_block_pin> pins_of_blocks_{kvcache_block_pin_destroy};
  Pool<kvcache_hidden_capture> captures_{kvcache_hidden_capture_destroy};
  Pool<kvcache_hidden_bands> bands_{kvcache_hidden_bands_destroy};
  Pool<kvcache_accept_stash> stashes_{kvcache_accept_stash_destroy};
  Pool<kvcache_drafts> drafts_{kvcache_drafts_destroy};
  Pool<kvcache_lookup> lookups_{kvcache_lookup_destroy};
  Pool<kvcache_lookup_cache> lookup_caches_{kvcache_lookup_cache_destroy};
  Pool<kvcache_lookup_scope> scopes_{kvcache_lookup_scope_destroy};
};

TEST(CRandom, AnyCallInAnyOrderIsAnswered) {
  for (unsigned seed = 0; seed < 20 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    PartsPlayer player(seed);
    for (int call = 0; call < 1'000; ++call) player.play();
  }
}

}  // namespace
