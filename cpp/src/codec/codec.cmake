# One call per instruction set: kvcache_isa_sources(kvcache_core AVX2 SOURCES ... FLAGS ...).
