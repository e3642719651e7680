/* A small store in memory, as a vendor might write it, and with -DFAULT_... one broken in one way. It keeps
 * everything until the process ends: all handles of one URI's scheme are of one store. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kv_store_v1.h"

#ifndef MISSING_IS
#define MISSING_IS -1
#endif

typedef struct entry {
    struct entry *next;
    uint8_t *key, *data;
    size_t key_len, data_len;
} entry;

static entry *chunks, *manifests;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static uint8_t *copy(const void *data, size_t len) {
    uint8_t *to = (uint8_t *)malloc(len + 1);
    if (to != NULL && len != 0) memcpy(to, data, len);
    return to;
}

static entry **find(entry **at, const void *key, size_t key_len) {
    for (; *at != NULL; at = &(*at)->next)
        if ((*at)->key_len == key_len && memcmp((*at)->key, key, key_len) == 0) break;
    return at;
}

static entry **find_manifest(const char *name) {
    entry **at = &manifests;
#if defined FAULT_NO_CASE
    for (; *at != NULL; at = &(*at)->next)
        if ((*at)->key_len == strlen(name) && strncasecmp((const char *)(*at)->key, name, strlen(name)) == 0) break;
    return at;
#else
    return find(at, name, strlen(name));
#endif
}

static void insert(entry **at, const void *key, size_t key_len, const uint8_t *data, size_t data_len) {
    entry *made = (entry *)calloc(1, sizeof(entry));
    if (made == NULL) abort();
    made->key = copy(key, key_len), made->key_len = key_len;
    made->data = copy(data, data_len), made->data_len = data_len;
    *at = made;
}

static int give(const entry *from, uint8_t **out, size_t *out_len) {
    if (from == NULL) return MISSING_IS;
#if defined FAULT_STATIC_OUTPUT
    static uint8_t buffer[1 << 20];
    if (from->data_len <= sizeof(buffer)) {
        memcpy(buffer, from->data, from->data_len);
        *out = buffer, *out_len = from->data_len;
        return 0;
    }
#elif defined FAULT_OWN_OUTPUT
    /* The stored bytes themselves: malloc'd, but not the caller's. */
    *out = from->data, *out_len = from->data_len;
    return 0;
#elif defined FAULT_INNER_OUTPUT
    /* In a malloc'd buffer, but not its beginning. */
    uint8_t *header = (uint8_t *)malloc(from->data_len + 16);
    memset(header, 0, 16);
    memcpy(header + 16, from->data, from->data_len);
    *out = header + 16, *out_len = from->data_len;
    return 0;
#elif defined FAULT_MMAP_OUTPUT
    /* Not malloc's at all; its first page looks like nothing that malloc has made. */
    uint8_t *pages = (uint8_t *)mmap(NULL, from->data_len + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(pages, from->data, from->data_len);
    *out = pages, *out_len = from->data_len;
    return 0;
#elif defined FAULT_NULL_FOR_EMPTY
    if (from->data_len == 0) {
        *out = NULL, *out_len = 0;
        return 0;
    }
#elif defined FAULT_NULL_OUTPUT
    *out = NULL, *out_len = from->data_len + 1;
    return 0;
#elif defined FAULT_ABSURD_LENGTH
    *out = copy(from->data, from->data_len), *out_len = (size_t)-1;
    return 0;
#elif defined FAULT_LEAK
    static uint8_t *volatile forgotten;
    forgotten = copy(from->data, from->data_len);
    (void)forgotten;
#endif
    *out = copy(from->data, from->data_len);
    *out_len = from->data_len;
    return *out != NULL ? 0 : -1;
}

static kv_store_handle toy_open(const char *uri) {
#if defined FAULT_ABORT_IN_OPEN
    abort();
#elif defined FAULT_NULL_HANDLE
    fprintf(stderr, "libkv_store_toy: open: there is nothing at %s\n", uri);
    return NULL;
#endif
    if (uri == NULL || strstr(uri, "://") == NULL) {
        fprintf(stderr, "libkv_store_toy: open: not a URI\n");
        return NULL;
    }
    return malloc(1);
}

static void toy_close(kv_store_handle handle) {
#if defined FAULT_CRASH_IN_CLOSE
    *(volatile int *)8 = 0;
#endif
    free(handle);
}

static int toy_put_chunk(kv_store_handle handle, const uint8_t *hash, size_t hash_len, const uint8_t *data,
                         size_t data_len) {
    int code = KV_STORE_STORED;
#if defined FAULT_ABORT_ON_LONG_HASH
    if (hash_len > 64) abort();
#elif defined FAULT_HANG
    for (;;) pause();
#elif defined FAULT_STRANGE_CODE
    return 7;
#elif defined FAULT_EIO
    return -EIO;
#endif
#if defined FAULT_ANY_HASH_LENGTH
    (void)handle;
#else
    if (handle == NULL || hash == NULL || hash_len < 1 || hash_len > 64) return -1;
#endif
    if (data == NULL && data_len != 0) return -1;
    pthread_mutex_lock(&lock);
    entry **at = find(&chunks, hash, hash_len);
    if (*at == NULL) insert(at, hash, hash_len, data, data_len);
    else code = KV_STORE_ALREADY_THERE;
    pthread_mutex_unlock(&lock);
    return code;
}

static int toy_get_chunk(kv_store_handle handle, const uint8_t *hash, size_t hash_len, uint8_t **out,
                         size_t *out_len) {
#if defined FAULT_EIO
    /* It can tell what is missing, until it fails. */
    static int asked;
    return asked++ == 0 ? -ENOENT : -EIO;
#endif
    if (handle == NULL || hash == NULL || out == NULL || out_len == NULL) return -1;
    pthread_mutex_lock(&lock);
    int code = give(*find(&chunks, hash, hash_len), out, out_len);
    pthread_mutex_unlock(&lock);
    return code;
}

static int toy_put_manifest(kv_store_handle handle, const char *name, const uint8_t *data, size_t data_len) {
#if defined FAULT_EIO
    return -EIO;
#endif
    if (handle == NULL || name == NULL || (data == NULL && data_len != 0)) return -1;
    pthread_mutex_lock(&lock);
    entry **at = find_manifest(name);
    if (*at == NULL) {
        insert(at, name, strlen(name), data, data_len);
    } else {
        uint8_t *old = (*at)->data;
        (*at)->data = copy(data, data_len), (*at)->data_len = data_len;
        free(old);
    }
    pthread_mutex_unlock(&lock);
    return 0;
}

static int toy_get_manifest(kv_store_handle handle, const char *name, uint8_t **out, size_t *out_len) {
#if defined FAULT_EIO
    return -EIO;
#endif
    if (handle == NULL || name == NULL || out == NULL || out_len == NULL) return -1;
    pthread_mutex_lock(&lock);
    int code = give(*find_manifest(name), out, out_len);
    pthread_mutex_unlock(&lock);
    return code;
}

static int toy_delete_manifest(kv_store_handle handle, const char *name) {
#if defined FAULT_EIO
    return -EIO;
#endif
    if (handle == NULL || name == NULL) return -1;
    pthread_mutex_lock(&lock);
    entry **at = find_manifest(name);
    entry *found = *at;
    if (found != NULL) {
        *at = found->next;
        free(found->key);
        free(found->data);
        free(found);
    }
    pthread_mutex_unlock(&lock);
    return 0;
}

static int toy_prefetch_chunks(kv_store_handle handle, const uint8_t *hashes, size_t hash_len, size_t n_hashes) {
#if defined FAULT_PREFETCH_COUNTS
    if (n_hashes == 1) return 1;
#elif defined FAULT_PREFETCH_LOOPS
    for (volatile size_t n = 0; n < n_hashes; n++) {
    }
#endif
    if (handle == NULL || hash_len < 1 || (hashes == NULL && n_hashes != 0)) return -1;
    return hash_len <= (size_t)-1 / (n_hashes + 1) ? 0 : -1;
}

#ifndef VERSION
#define VERSION KV_STORE_VERSION_1
#endif

static const kv_store_vtable table = {
    VERSION,
    toy_open,
    toy_close,
    toy_put_chunk,
#if defined FAULT_NULL_FUNCTION
    NULL,
#else
    toy_get_chunk,
#endif
    toy_put_manifest,
    toy_get_manifest,
    toy_delete_manifest,
#if defined FAULT_NULL_PREFETCH
    NULL,
#else
    toy_prefetch_chunks,
#endif
};

#if defined FAULT_NO_SYMBOL
#define kv_store_get_vtable another_symbol
const kv_store_vtable *another_symbol(void);
#endif

#if defined FAULT_MORE_SYMBOLS
int toy_helper(void);
int toy_helper(void) { return chunks != NULL; }
#endif

const kv_store_vtable *kv_store_get_vtable(void) {
#if defined FAULT_NULL_TABLE
    return NULL;
#elif defined EDGE
    /* A version 1 table that ends where its read-only page does; the next page cannot be touched. */
    static const char *at;
    if (at == NULL) {
        size_t page = (size_t)sysconf(_SC_PAGESIZE), len = offsetof(kv_store_vtable, prefetch_chunks);
        char *pages = (char *)mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memcpy(pages + page - len, &table, len);
        mprotect(pages, page, PROT_READ);
        mprotect(pages + page, page, PROT_NONE);
        at = pages + page - len;
    }
    return (const kv_store_vtable *)at;
#else
    return &table;
#endif
}
