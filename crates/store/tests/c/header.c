/* Prints how a C compiler lays out kv_store_v1.h; the test compares it with the Rust types. Plain C99 that is
 * C++ too: it is compiled as both. */
#include <stddef.h>
#include <stdio.h>

#include "kv_store_v1.h"
/* Once more: it has to guard itself. */
#include "kv_store_v1.h"

/* The functions have the types that these assignments say, or this does not compile. */
static kv_store_handle open_(const char *uri) { return uri != NULL ? (kv_store_handle)0 : (kv_store_handle)0; }
static void close_(kv_store_handle handle) { (void)handle; }
static int put_chunk_(void *handle, const uint8_t *hash, size_t hash_len, const uint8_t *data, size_t data_len) {
    return handle != NULL && hash != NULL && data != NULL && hash_len + data_len != 0;
}
static int get_chunk_(void *handle, const uint8_t *hash, size_t hash_len, uint8_t **out, size_t *out_len) {
    return handle != NULL && hash != NULL && out != NULL && out_len != NULL && hash_len != 0;
}
static int put_manifest_(void *handle, const char *name, const uint8_t *data, size_t data_len) {
    return handle != NULL && name != NULL && data != NULL && data_len != 0;
}
static int get_manifest_(void *handle, const char *name, uint8_t **out, size_t *out_len) {
    return handle != NULL && name != NULL && out != NULL && out_len != NULL;
}
static int delete_manifest_(void *handle, const char *name) { return handle != NULL && name != NULL; }
static int prefetch_chunks_(void *handle, const uint8_t *hashes, size_t hash_len, size_t n_hashes) {
    return handle != NULL && hashes != NULL && hash_len + n_hashes != 0;
}

static const kv_store_vtable table = {
    KV_STORE_VERSION_2, open_, close_, put_chunk_, get_chunk_, put_manifest_, get_manifest_, delete_manifest_,
    prefetch_chunks_,
};

const kv_store_vtable *kv_store_get_vtable(void) { return &table; }

#define FIELD(name) \
    printf(#name " %u %u\n", (unsigned)offsetof(kv_store_vtable, name), (unsigned)sizeof(table.name))
#define CONSTANT(name) printf(#name " %d\n", (int)(name))

int main(void) {
    kv_store_get_vtable_fn get = kv_store_get_vtable;
    if (get() != &table) return 1;
    printf("kv_store_vtable %u\n", (unsigned)sizeof(kv_store_vtable));
    FIELD(version);
    FIELD(open);
    FIELD(close);
    FIELD(put_chunk);
    FIELD(get_chunk);
    FIELD(put_manifest);
    FIELD(get_manifest);
    FIELD(delete_manifest);
    FIELD(prefetch_chunks);
    CONSTANT(KV_STORE_VERSION_1);
    CONSTANT(KV_STORE_VERSION_2);
    CONSTANT(KV_STORE_STORED);
    CONSTANT(KV_STORE_ALREADY_THERE);
    CONSTANT(KV_STORE_MISSING);
    CONSTANT(KV_STORE_ERROR);
    CONSTANT(KV_STORE_INVALID);
    CONSTANT(KV_STORE_HASH_MAX);
    CONSTANT(KV_STORE_NAME_MAX);
    return 0;
}
