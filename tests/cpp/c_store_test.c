/* What is stored, from C99: files, a disk tier, explanations, tenants, pins, times to live, what is
 * erased, events. */
#define _POSIX_C_SOURCE 200809L /* mkdtemp */

#include <stdlib.h>

#include "c_toy.h"

enum { kPrompt = 11 };

static const kvcache_space kTeam = {
    .struct_size = sizeof kTeam, .name = {"team\0one", 8}, .salt = {"s", 1}};

static int32_t prompt[kPrompt];

static kvcache_explanation empty_explanation(void) {
  kvcache_explanation why = {.struct_size = sizeof why};
  return why;
}

/* The prompt is restored up to its last token, and right. */
static int restored_test(kvcache_cache* cache, const kvcache_space* space) {
  kvcache_sequence* sequence = NULL;
  OK(kvcache_sequence_open(cache, prompt, kPrompt, space, NULL, &sequence));
  CHECK(kvcache_sequence_cached_tokens(sequence) == kPrompt - 1);
  CHECK(kvcache_sequence_matched_tokens(sequence) == kPrompt - 1);
  CHECK(toy_check(sequence, prompt, kPrompt - 1) == 0);
  CHECK(toy_run(sequence, prompt, kPrompt) == 0);
  CHECK(toy_check(sequence, prompt, kPrompt) == 0);
  kvcache_sequence_destroy(sequence);
  return 0;
}

/* Saved by one cache, loaded by another. */
static int prompt_cache_test(const char* directory) {
  const kvcache_options options = toy_options();
  const kvcache_save_options replace = {
      .struct_size = sizeof replace, .replace = 1, .not_durable = 1};
  const kvcache_load_options charge = {.struct_size = sizeof charge, .tenant = "acme"};
  const kvcache_load_options convert = {.struct_size = sizeof convert, .convert = 1};
  kvcache_explanation why = empty_explanation();
  kvcache_cache *first = NULL, *second = NULL;
  uint64_t positions = 0;
  char path[256];
  snprintf(path, sizeof path, "%s/prompt", directory);
  OK(toy_cache(&options, &first));
  OK(toy_cache(&options, &second));
  CHECK(kvcache_cache_save(first, path, prompt, kPrompt, &kTeam, NULL, &positions) ==
        KVCACHE_NOT_FOUND);
  CHECK(toy_serve(first, prompt, kPrompt, &kTeam, NULL) == 0);
  OK(kvcache_cache_save(first, path, prompt, kPrompt, &kTeam, NULL, &positions));
  CHECK(positions == kPrompt - 1);
  CHECK(kvcache_cache_save(first, path, prompt, kPrompt, &kTeam, NULL, &positions) ==
        KVCACHE_INVALID_ARGUMENT);
  OK(kvcache_cache_save(first, path, prompt, kPrompt, &kTeam, &replace, &positions));
  kvcache_cache_destroy(first);

  OK(kvcache_cache_explain(second, prompt, kPrompt, &kTeam, &why));
  CHECK(why.tokens == kPrompt && why.cached_tokens == 0 && why.limit == KVCACHE_LIMIT_TOKENS);
  CHECK(why.reason == KVCACHE_MISS_NEVER_STORED && why.snapshot_format == -1 && why.group == -1);
  CHECK(kvcache_cache_load(second, path, NULL, NULL, &positions) == KVCACHE_UNSUPPORTED);
  CHECK(kvcache_cache_load(second, directory, &kTeam, NULL, &positions) != KVCACHE_OK);
  positions = 0;
  OK(kvcache_cache_load(second, path, &kTeam, &charge, &positions));
  CHECK(positions == kPrompt - 1);
  OK(kvcache_cache_explain(second, prompt, kPrompt, &kTeam, &why));
  CHECK(why.cached_tokens == kPrompt - 1 && why.position == kPrompt - 1);
  CHECK(why.limit == KVCACHE_LIMIT_TOKENS && why.snapshot_format == KVCACHE_SNAPSHOT_EXACT);
  CHECK(restored_test(second, &kTeam) == 0);
  kvcache_cache_destroy(second);

  OK(toy_cache_of(KVCACHE_F32, &options, &second));
  CHECK(kvcache_cache_load(second, path, &kTeam, NULL, &positions) == KVCACHE_UNSUPPORTED);
  OK(kvcache_cache_load(second, path, &kTeam, &convert, &positions));
  CHECK(restored_test(second, &kTeam) == 0);
  kvcache_cache_destroy(second);
  return 0;
}

/* What a cache publishes is there for the next one, after a restart. */
static int disk_tier_test(const char* directory) {
  const kvcache_durability each = KVCACHE_DURABILITY_RECORD;
  const uint64_t wait_ms = 60000;
  kvcache_disk_options disk = {.struct_size = sizeof disk, .max_bytes = 64 << 20};
  kvcache_options options = toy_options();
  kvcache_disk_stats stats = {.struct_size = sizeof stats};
  kvcache_erase_filter all = {.struct_size = sizeof all};
  kvcache_cache* cache = NULL;
  uint64_t positions = 0, blocks = 0;
  char path[256];
  snprintf(path, sizeof path, "%s/tier", directory);
  OK(toy_cache(&options, &cache));
  CHECK(kvcache_cache_disk_stats(cache, &stats) == KVCACHE_UNSUPPORTED);
  CHECK(kvcache_cache_flush_disk(cache, NULL) == KVCACHE_UNSUPPORTED);
  kvcache_cache_destroy(cache);
  options.disk = &disk;
  CHECK(toy_cache(&options, &cache) == KVCACHE_INVALID_ARGUMENT); /* no path */
  disk.path = path;
  disk.durability = &each;
  OK(toy_cache(&options, &cache));
  CHECK(toy_serve(cache, prompt, kPrompt, &kTeam, NULL) == 0);
  OK(kvcache_cache_flush_disk(cache, &wait_ms));
  OK(kvcache_cache_disk_stats(cache, &stats));
  CHECK(stats.is_writer && stats.written_records > 0 && stats.queued_bytes == 0);
  CHECK(stats.syncs > 0 && strcmp(stats.last_error, "") == 0);
  kvcache_cache_destroy(cache);

  disk.only_prefetch = 1;
  OK(toy_cache(&options, &cache));
  OK(kvcache_cache_prefetch(cache, prompt, kPrompt, &kTeam, NULL, &positions));
  CHECK(positions == kPrompt - 1);
  CHECK(restored_test(cache, &kTeam) == 0);
  OK(kvcache_cache_disk_stats(cache, &stats));
  CHECK(stats.fetched_tokens == kPrompt - 1 && stats.damaged_records == 0);
  kvcache_cache_destroy(cache);

  disk.only_prefetch = 0;
  OK(toy_cache(&options, &cache));
  CHECK(restored_test(cache, &kTeam) == 0); /* by open() alone */
  OK(kvcache_cache_erase(cache, &all, &blocks));
  CHECK(blocks > 0);
  OK(kvcache_cache_prefetch(cache, prompt, kPrompt, &kTeam, NULL, &positions));
  CHECK(positions == 0);
  kvcache_cache_destroy(cache);
  return 0;
}

/* A tenant without room stores nothing, and the explanation says whose quota it was. */
static int quota_test(void) {
  const kvcache_options options = toy_options();
  const double reuse = 0.5;
  const uint64_t nothing = 1;
  const kvcache_share little = {.bytes = &nothing}, wrong = {.fraction = 2};
  const kvcache_open_options acme = {
      .struct_size = sizeof acme, .tenant = "acme", .kind = "chat", .expected_reuse = &reuse};
  kvcache_explanation why = empty_explanation();
  kvcache_tenant_usage usage = {.struct_size = sizeof usage};
  kvcache_tenants* tenants = NULL;
  kvcache_cache* cache = NULL;
  OK(toy_cache(&options, &cache));
  CHECK(kvcache_cache_set_quota(cache, "acme", &wrong) == KVCACHE_INVALID_ARGUMENT);
  CHECK(kvcache_cache_set_quota(cache, "", &little) == KVCACHE_INVALID_ARGUMENT);
  OK(kvcache_cache_set_quota(cache, "acme", &little));
  CHECK(toy_serve(cache, prompt, kPrompt, NULL, &acme) == 0);
  OK(kvcache_cache_explain(cache, prompt, kPrompt, NULL, &why));
  CHECK(why.cached_tokens == 0 && why.reason == KVCACHE_MISS_QUOTA);
  CHECK(why.tenant != NULL && strcmp(why.tenant, "acme") == 0);
  OK(kvcache_cache_tenants(cache, &tenants));
  CHECK(kvcache_tenants_count(tenants) == 1);
  OK(kvcache_tenants_read(tenants, 0, &usage));
  CHECK(strcmp(usage.name, "acme") == 0 && usage.bytes == 0 && usage.quota_bytes == 1);
  CHECK(usage.refused_blocks > 0);
  CHECK(kvcache_tenants_read(tenants, 1, &usage) == KVCACHE_INVALID_ARGUMENT);
  kvcache_tenants_destroy(tenants);
  OK(kvcache_cache_set_quota(cache, "acme", NULL));
  CHECK(toy_serve(cache, prompt, kPrompt, NULL, &acme) == 0);
  OK(kvcache_cache_tenants(cache, &tenants));
  OK(kvcache_tenants_read(tenants, 0, &usage));
  CHECK(usage.bytes > 0 && usage.quota_bytes == UINT64_MAX);
  kvcache_tenants_destroy(tenants);
  CHECK(restored_test(cache, NULL) == 0);
  kvcache_cache_destroy(cache);
  return 0;
}

/* A lease on the caller's clock, and a limit of all pins. */
static int pin_test(void) {
  kvcache_options options = toy_options();
  const kvcache_share none = {.fraction = 0};
  const uint64_t start = 0, lease = 1000, later = 999, after = 1000;
  kvcache_pin_options how = {.struct_size = sizeof how, .lease_ms = &lease, .now_ms = &start};
  kvcache_pin_state state = {.struct_size = sizeof state};
  kvcache_stats stats = {.struct_size = sizeof stats};
  kvcache_cache* cache = NULL;
  kvcache_pin *pin = NULL, *refused = NULL;
  OK(toy_cache(&options, &cache));
  CHECK(kvcache_cache_pin(cache, prompt, kPrompt, NULL, &how, &pin) == KVCACHE_NOT_FOUND);
  CHECK(toy_serve(cache, prompt, kPrompt, NULL, NULL) == 0);
  OK(kvcache_cache_pin(cache, prompt, kPrompt, NULL, &how, &pin));
  OK(kvcache_pin_read(pin, &state));
  CHECK(state.tokens == kPrompt - 1 && state.is_held && state.expires_ms != UINT64_MAX);
  OK(kvcache_cache_stats(cache, &stats));
  CHECK(stats.pins == 1 && stats.pinned_bytes > 0);
  how.now_ms = &later;
  OK(kvcache_pin_renew(pin, &how));
  how.lease_ms = NULL;
  how.now_ms = &after;
  OK(kvcache_pin_read(pin, &state));
  CHECK(state.is_held && state.expires_ms == later + lease);
  OK(kvcache_pin_renew(pin, &how));
  OK(kvcache_pin_read(pin, &state));
  CHECK(state.expires_ms == UINT64_MAX);
  OK(kvcache_cache_clear(cache));
  OK(kvcache_pin_read(pin, &state));
  CHECK(!state.is_held && kvcache_pin_renew(pin, NULL) == KVCACHE_NOT_FOUND);
  kvcache_cache_destroy(cache);
  kvcache_pin_destroy(pin);
  options.pin_limit = &none;
  OK(toy_cache(&options, &cache));
  CHECK(toy_serve(cache, prompt, kPrompt, NULL, NULL) == 0);
  CHECK(kvcache_cache_pin(cache, prompt, kPrompt, NULL, NULL, &refused) == KVCACHE_OUT_OF_CAPACITY);
  CHECK(refused == NULL);
  kvcache_cache_destroy(cache);
  return 0;
}

/* Prefixes that end by themselves, that are erased, that other weights make wrong. */
static int leaving_test(void) {
  const kvcache_options options = toy_options();
  const uint64_t start = 0, end = 5000;
  kvcache_open_options how = {.struct_size = sizeof how, .now_ms = &start, .ttl_ms = 5000};
  kvcache_erase_filter filter = {.struct_size = sizeof filter};
  kvcache_explanation why = empty_explanation();
  kvcache_cache* cache = NULL;
  kvcache_sequence* sequence = NULL;
  uint64_t blocks = 0;
  OK(toy_cache(&options, &cache));
  CHECK(toy_serve(cache, prompt, kPrompt, NULL, &how) == 0);
  how.now_ms = &end;
  OK(kvcache_sequence_open(cache, prompt, kPrompt, NULL, &how, &sequence));
  CHECK(kvcache_sequence_cached_tokens(sequence) == 0);
  OK(kvcache_cache_drop_expired(cache, &blocks));
  CHECK(blocks == 3);
  OK(kvcache_cache_explain(cache, prompt, kPrompt, NULL, &why));
  CHECK(why.reason == KVCACHE_MISS_EXPIRED && why.once_tokens > 0);
  kvcache_sequence_destroy(sequence);

  CHECK(toy_serve(cache, prompt, kPrompt, &kTeam, NULL) == 0);
  filter.name = &kTeam.salt; /* a space that nobody has */
  OK(kvcache_cache_erase(cache, &filter, &blocks));
  CHECK(blocks == 0);
  filter.name = &kTeam.name;
  OK(kvcache_cache_erase(cache, &filter, &blocks));
  CHECK(blocks == 3);
  OK(kvcache_cache_explain(cache, prompt, kPrompt, &kTeam, &why));
  CHECK(why.reason == KVCACHE_MISS_ERASED);
  filter.tokens = prompt; /* of what space? */
  filter.token_count = 4;
  filter.name = NULL;
  CHECK(kvcache_cache_erase(cache, &filter, &blocks) == KVCACHE_INVALID_ARGUMENT);

  CHECK(toy_serve(cache, prompt, kPrompt, NULL, NULL) == 0);
  OK(kvcache_cache_bump_epoch(cache, "tuned"));
  OK(kvcache_cache_explain(cache, prompt, kPrompt, NULL, &why));
  CHECK(why.cached_tokens == 0 && why.reason == KVCACHE_MISS_WEIGHTS);
  kvcache_cache_destroy(cache);
  return 0;
}

/* A router follows what is stored. */
static int events_test(void) {
  const kvcache_media image = {.start = 1, .length = 2, .digest = {"picture", 7}};
  kvcache_space space = kTeam;
  kvcache_options options = toy_options();
  kvcache_event event = {.struct_size = sizeof event};
  kvcache_events* events = NULL;
  kvcache_cache* cache = NULL;
  size_t i, snapshots = 0, groups = 0, hashes = 0;
  OK(toy_cache(&options, &cache));
  CHECK(kvcache_cache_take_events(cache, &events) == KVCACHE_UNSUPPORTED && events == NULL);
  kvcache_cache_destroy(cache);
  options.event_capacity = 100;
  space.media = &image;
  space.media_count = 1;
  OK(toy_cache(&options, &cache));
  OK(kvcache_cache_group_count(cache, &groups));
  CHECK(groups == 1);
  CHECK(toy_serve(cache, prompt, kPrompt, &space, NULL) == 0);
  OK(kvcache_cache_take_events(cache, &events));
  for (i = 0; i < kvcache_events_count(events); ++i) {
    OK(kvcache_events_read(events, i, &event));
    CHECK(event.kind == KVCACHE_EVENT_STORED && event.space != NULL);
    CHECK(event.space->name.size == 8 && memcmp(event.space->name.data, "team\0one", 8) == 0);
    if (event.group == groups) {
      ++snapshots;
      continue;
    }
    hashes += event.hash_count;
    CHECK(event.start == 0 && event.parent == NULL && event.block_tokens == kToyBlock);
    CHECK(event.token_count == event.hash_count * kToyBlock && event.tokens[3] == prompt[3]);
    CHECK(event.media_count == 1 && event.media[0].digest.size == 7);
  }
  CHECK(hashes == 2 && snapshots == 1); /* whole blocks */
  CHECK(kvcache_events_read(events, i, &event) == KVCACHE_INVALID_ARGUMENT);
  kvcache_events_destroy(events);
  OK(kvcache_cache_lose_events(cache));
  OK(kvcache_cache_take_events(cache, &events));
  OK(kvcache_events_read(events, 0, &event));
  CHECK(event.kind == KVCACHE_EVENT_CLEARED && event.space == NULL);
  kvcache_events_destroy(events);
  OK(kvcache_cache_events_snapshot(cache, &events));
  CHECK(kvcache_events_count(events) > 1);
  kvcache_cache_destroy(cache);
  OK(kvcache_events_read(events, 1, &event)); /* the list is the caller's */
  CHECK(event.kind == KVCACHE_EVENT_STORED);
  kvcache_events_destroy(events);
  return 0;
}

int main(void) {
  char directory[] = "c_store_test.XXXXXX";
  char command[64];
  int i, failed;
  for (i = 0; i < kPrompt; ++i) prompt[i] = 100 + i;
  CHECK(mkdtemp(directory) != NULL);
  failed = prompt_cache_test(directory) || disk_tier_test(directory) || quota_test() ||
           pin_test() || leaving_test() || events_test();
  snprintf(command, sizeof command, "rm -r %s", directory);
  CHECK(system(command) == 0);
  if (failed) return 1;
  puts("c_store_test passed");
  return 0;
}
