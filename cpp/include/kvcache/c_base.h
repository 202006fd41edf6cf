/* What the other C headers share: statuses, elements, rows, spaces. Conventions: kvcache/c.h. */
#ifndef KVCACHE_C_BASE_H
#define KVCACHE_C_BASE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define KVCACHE_API __attribute__((visibility("default")))
#else
#define KVCACHE_API
#endif

/* In C++ any int is then a value of the enumeration, as it is in C. */
#ifdef __cplusplus
#define KVCACHE_ENUM : int32_t
#else
#define KVCACHE_ENUM
#endif

#define KVCACHE_ABI 1

typedef enum kvcache_status KVCACHE_ENUM {
  KVCACHE_OK = 0,
  KVCACHE_INVALID_ARGUMENT = 1,
  KVCACHE_NOT_FOUND = 2,
  KVCACHE_OUT_OF_CAPACITY = 3,
  KVCACHE_CORRUPTION = 4,
  KVCACHE_UNSUPPORTED = 5,
  KVCACHE_IO_ERROR = 6,
  KVCACHE_NON_FINITE = 7,
  KVCACHE_INTERNAL = 8
} kvcache_status;

typedef enum kvcache_dtype KVCACHE_ENUM {
  KVCACHE_F32 = 0,
  KVCACHE_U32 = 1,
  KVCACHE_I32 = 2,
  KVCACHE_F16 = 3,
  KVCACHE_BF16 = 4,
  KVCACHE_U64 = 5,
  KVCACHE_U8 = 6,
  KVCACHE_FP8 = 7,
  KVCACHE_I8 = 8
} kvcache_dtype;

/* HugePages in kvcache/memory_options.h. */
typedef enum kvcache_huge_pages KVCACHE_ENUM {
  KVCACHE_HUGE_PAGES_OFF = 0,
  KVCACHE_HUGE_PAGES_ADVISE = 1,
  KVCACHE_HUGE_PAGES_SYSTEM = 2
} kvcache_huge_pages;

typedef struct kvcache_cache kvcache_cache;
typedef struct kvcache_sequence kvcache_sequence;
typedef struct kvcache_batch kvcache_batch;

typedef struct kvcache_bytes {
  const void* data; /* may be NULL when size is 0 */
  size_t size;
} kvcache_bytes;

/* Elements [tokens, heads, width]; strides in bytes, the last axis contiguous. */
typedef struct kvcache_rows {
  void* data;
  kvcache_dtype dtype; /* KVCACHE_F32, KVCACHE_F16 or KVCACHE_BF16; of integer rows, theirs */
  size_t tokens;
  size_t heads;
  size_t width;
  ptrdiff_t token_stride;
  ptrdiff_t head_stride;
} kvcache_rows;

/* One image, clip or file among the tokens; see kvcache/prefix_space.h. */
typedef struct kvcache_media {
  uint64_t start;
  uint64_t length;
  kvcache_bytes digest; /* 1 to 64 bytes */
} kvcache_media;

/* Only sequences that agree in all of it, byte for byte, share prefixes. */
typedef struct kvcache_space {
  size_t struct_size;
  kvcache_bytes name;
  kvcache_bytes adapter;
  kvcache_bytes salt;
  const kvcache_media* media; /* by ascending start, apart from one another */
  size_t media_count;
} kvcache_space;

KVCACHE_API const char* kvcache_version(void);
KVCACHE_API uint32_t kvcache_abi(void);
/* Valid until the calling thread's next failure; "" before its first one. */
KVCACHE_API const char* kvcache_last_error(void);
KVCACHE_API const char* kvcache_status_name(kvcache_status status);

#ifdef __cplusplus
}
#endif

#endif /* KVCACHE_C_BASE_H */
