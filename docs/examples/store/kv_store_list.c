/*
 * A kv_store_v1 plugin in C: everything in one list in memory, for the scheme `list`.
 *
 *     cc -shared -fPIC -I crates/store/include -o libkv_store_list.so docs/examples/store/kv_store_list.c
 *     transload store check list://anything --library ./libkv_store_list.so
 */
#include <kv_store_v1.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A chunk by its hash, or a manifest by its name: two namespaces. */
typedef struct entry {
    struct entry *next;
    int is_manifest;
    size_t key_len, len;
    unsigned char *key, *bytes;
} entry;

/* Handles are used from several threads at once, and all of them are of one store. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static entry *first;

/* A copy from malloc, which is also what a consumer gives to free(). Never NULL for zero bytes. */
static unsigned char *copy(const void *bytes, size_t len)
{
    unsigned char *to = malloc(len ? len : 1);
    if (to && len)
        memcpy(to, bytes, len);
    return to;
}

static entry **find(int is_manifest, const void *key, size_t key_len)
{
    entry **at = &first;
    while (*at && ((*at)->is_manifest != is_manifest || (*at)->key_len != key_len ||
                   memcmp((*at)->key, key, key_len)))
        at = &(*at)->next;
    return at;
}

static int put(int is_manifest, const void *key, size_t key_len, const uint8_t *data, size_t len)
{
    int result = KV_STORE_ERROR;
    unsigned char *bytes;
    entry **at, *new;

    if (!is_manifest && (key_len < 1 || key_len > KV_STORE_HASH_MAX)) {
        fprintf(stderr, "kv_store_list: a hash of %zu bytes\n", key_len);
        return KV_STORE_INVALID;
    }
    pthread_mutex_lock(&lock);
    at = find(is_manifest, key, key_len);
    if (*at && !is_manifest) {
        result = KV_STORE_ALREADY_THERE;
    } else if (!(bytes = copy(data, len))) {
        fprintf(stderr, "kv_store_list: no memory\n");
    } else if (*at) {
        free((*at)->bytes);
        (*at)->bytes = bytes;
        (*at)->len = len;
        result = KV_STORE_STORED;
    } else if ((new = malloc(sizeof *new)) && (new->key = copy(key, key_len))) {
        new->next = NULL;
        new->is_manifest = is_manifest;
        new->key_len = key_len;
        new->bytes = bytes;
        new->len = len;
        *at = new;
        result = KV_STORE_STORED;
    } else {
        free(new);
        free(bytes);
        fprintf(stderr, "kv_store_list: no memory\n");
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static int get(int is_manifest, const void *key, size_t key_len, uint8_t **out, size_t *out_len)
{
    int result = KV_STORE_MISSING;
    entry *found;

    *out = NULL;
    *out_len = 0;
    pthread_mutex_lock(&lock);
    found = *find(is_manifest, key, key_len);
    if (found) {
        *out = copy(found->bytes, found->len);
        *out_len = *out ? found->len : 0;
        result = *out ? 0 : KV_STORE_ERROR;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static kv_store_handle list_open(const char *uri)
{
    (void)uri;
    return &first;
}

static void list_close(kv_store_handle handle)
{
    (void)handle;
}

static int put_chunk(kv_store_handle handle, const uint8_t *hash, size_t hash_len, const uint8_t *data,
                     size_t len)
{
    (void)handle;
    return put(0, hash, hash_len, data, len);
}

static int get_chunk(kv_store_handle handle, const uint8_t *hash, size_t hash_len, uint8_t **out,
                     size_t *out_len)
{
    (void)handle;
    return get(0, hash, hash_len, out, out_len);
}

/* What was put can be read at once, so there is nothing to publish before. */
static int put_manifest(kv_store_handle handle, const char *name, const uint8_t *data, size_t len)
{
    (void)handle;
    return put(1, name, strlen(name), data, len);
}

static int get_manifest(kv_store_handle handle, const char *name, uint8_t **out, size_t *out_len)
{
    (void)handle;
    return get(1, name, strlen(name), out, out_len);
}

static int delete_manifest(kv_store_handle handle, const char *name)
{
    entry **at, *gone;

    (void)handle;
    pthread_mutex_lock(&lock);
    at = find(1, name, strlen(name));
    gone = *at;
    if (gone) {
        *at = gone->next;
        free(gone->key);
        free(gone->bytes);
        free(gone);
    }
    pthread_mutex_unlock(&lock);
    return 0;
}

/* Without prefetch_chunks it is a table of version 1. */
static const kv_store_vtable table = {
    .version = KV_STORE_VERSION_1,
    .open = list_open,
    .close = list_close,
    .put_chunk = put_chunk,
    .get_chunk = get_chunk,
    .put_manifest = put_manifest,
    .get_manifest = get_manifest,
    .delete_manifest = delete_manifest,
};

const kv_store_vtable *kv_store_get_vtable(void)
{
    return &table;
}
