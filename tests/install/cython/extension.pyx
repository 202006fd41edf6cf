from kvcache.c cimport KVCACHE_INVALID_ARGUMENT, kvcache_batch_create, kvcache_last_error

assert kvcache_batch_create(NULL, 0, NULL) == KVCACHE_INVALID_ARGUMENT
refused = kvcache_last_error().decode()
