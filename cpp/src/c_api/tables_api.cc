// Tables of addresses for kernels, and token trees, through C.
#include <algorithm>
#include <utility>

#include "c_api/convert.h"
#include "c_api/handles.h"

using kvcache::Status;
using kvcache::c_api::answer;
using kvcache::c_api::copy_out;
using kvcache::c_api::entry;
using kvcache::c_api::hand_over;
using kvcache::c_api::some;
using kvcache::c_api::write_struct;

extern "C" {

kvcache_status kvcache_verify_table_create(const kvcache_cache* cache, uint64_t batch_rows,
                                           uint64_t tables, kvcache_verify_table** out) {
  return entry({{"cache", cache}, {"out", out}}, [&] {
    return hand_over(kvcache::VerifyTable::create(cache->cache->plan(), batch_rows, tables), out);
  });
}

void kvcache_verify_table_destroy(kvcache_verify_table* table) { delete table; }

kvcache_status kvcache_verify_table_pointers(const kvcache_verify_table* table, int32_t layer,
                                             const char* name, const uint64_t** out) {
  return entry({{"table", table}, {"name", name}, {"out", out}}, [&]() -> Status {
    const auto pointers = table->table.pointers(layer, name);
    if (!pointers) return pointers.status();
    *out = pointers->data;
    return Status::ok();
  });
}

kvcache_status kvcache_carry_table_create(const kvcache_cache* cache, uint64_t batch_rows,
                                          kvcache_carry_table** out) {
  return entry({{"cache", cache}, {"out", out}}, [&] {
    return hand_over(kvcache::CarryTable::create(cache->cache->plan(), batch_rows), out);
  });
}

void kvcache_carry_table_destroy(kvcache_carry_table* table) { delete table; }

kvcache_status kvcache_carry_table_layer(const kvcache_carry_table* table, int32_t layer,
                                         const uint64_t** out_stashes, uint32_t** out_engaged) {
  return entry({{"table", table}, {"out_stashes", out_stashes}, {"out_engaged", out_engaged}},
               [&]() -> Status {
                 const auto found = table->table.layer(layer);
                 if (!found) return found.status();
                 *out_stashes = found->stashes;
                 *out_engaged = found->engaged;
                 return Status::ok();
               });
}

kvcache_status kvcache_carry_table_live(const kvcache_carry_table* table, int32_t layer,
                                        const char* name, const uint64_t** out) {
  return entry({{"table", table}, {"name", name}, {"out", out}},
               [&] { return answer(table->table.live(layer, name), out); });
}

kvcache_status kvcache_tree_create(const int32_t* parents, size_t nodes, kvcache_tree** out) {
  return entry({some("parents", parents, nodes), {"out", out}},
               [&] { return hand_over(kvcache::TokenTree::create({parents, nodes}), out); });
}

void kvcache_tree_destroy(kvcache_tree* tree) { delete tree; }

kvcache_status kvcache_tree_read(const kvcache_tree* tree, kvcache_tree_nodes* out) {
  return entry({{"tree", tree}, {"out", out}}, [&] {
    const kvcache::TokenTree& from = tree->tree;
    return write_struct(out, {.struct_size = sizeof(kvcache_tree_nodes),
                              .nodes = from.nodes(),
                              .leaves = from.leaves(),
                              .depth = from.depth(),
                              .parents = from.parents().data(),
                              .depths = from.depths().data(),
                              .first_child = from.first_child().data(),
                              .next_sibling = from.next_sibling().data()});
  });
}

kvcache_status kvcache_tree_retrieval_indices(const kvcache_tree* tree, int32_t* out,
                                              size_t capacity, size_t* out_count) {
  return entry({{"tree", tree}, some("out", out, capacity), {"out_count", out_count}},
               [&] { return copy_out(tree->tree.retrieval_indices(), out, capacity, out_count); });
}

kvcache_status kvcache_tree_mask(const kvcache_tree* tree, uint64_t prefix, uint8_t* out,
                                 size_t count) {
  return entry({{"tree", tree}, some("out", out, count)},
               [&] { return tree->tree.fill_mask(prefix, {out, count}); });
}

kvcache_status kvcache_tree_bias(const kvcache_tree* tree, uint64_t prefix, float* out,
                                 size_t count) {
  return entry({{"tree", tree}, some("out", out, count)},
               [&] { return tree->tree.fill_bias(prefix, {out, count}); });
}

kvcache_status kvcache_tree_packed_mask(const kvcache_tree* tree, uint64_t prefix, uint32_t* out,
                                        size_t count) {
  return entry({{"tree", tree}, some("out", out, count)},
               [&] { return tree->tree.fill_packed_mask(prefix, {out, count}); });
}

kvcache_status kvcache_tree_accept(const kvcache_tree* tree, const int32_t* tokens,
                                   const int32_t* picks, int32_t* out, size_t capacity,
                                   size_t* out_count, int32_t* out_bonus) {
  return entry({{"tree", tree},
                {"tokens", tokens},
                {"picks", picks},
                some("out", out, capacity),
                {"out_count", out_count},
                {"out_bonus", out_bonus}},
               [&]() -> Status {
                 const std::size_t nodes = tree->tree.nodes();
                 const auto path = tree->tree.accept({tokens, nodes}, {picks, nodes});
                 if (!path) return path.status();
                 Status status = copy_out(path->rows, out, capacity, out_count);
                 if (status) *out_bonus = path->bonus;
                 return status;
               });
}

}  // extern "C"
