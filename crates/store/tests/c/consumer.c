/* An engine, as far as a plugin sees one: loads the library, saves and restores through it with several
 * threads, and prints what it did. `consumer LIBRARY URI`; exit 0 if everything was as kv_store_v1 says.
 *
 * Chunks are those of llama.cpp (8-byte hashes) and of oMLX (32 bytes, published by an empty manifest). */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kv_store_v1.h"

static const kv_store_vtable *store;
static int failures;

#define CHECK(holds, ...)                                            \
    do {                                                             \
        if (!(holds)) {                                              \
            fprintf(stderr, "consumer.c:%d: %s: ", __LINE__, #holds); \
            fprintf(stderr, __VA_ARGS__);                            \
            fputc('\n', stderr);                                     \
            __atomic_fetch_add(&failures, 1, __ATOMIC_RELAXED);      \
        }                                                            \
    } while (0)

/* Bytes that depend on all of their arguments. */
static void fill(uint8_t *to, size_t len, uint64_t seed) {
    size_t at;
    for (at = 0; at < len; at++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        to[at] = (uint8_t)(seed >> 56);
    }
}

static void put(kv_store_handle handle, uint64_t seed, size_t hash_len, size_t len, int expected) {
    uint8_t hash[KV_STORE_HASH_MAX], *data = malloc(len + 1);
    int code;
    fill(hash, hash_len, seed);
    fill(data, len, ~seed);
    code = store->put_chunk(handle, hash, hash_len, len != 0 ? data : NULL, len);
    CHECK(code == expected, "chunk %llu: %d, not %d", (unsigned long long)seed, code, expected);
    /* The input was borrowed: it is gone now. */
    memset(data, 0xee, len);
    free(data);
}

static void get(kv_store_handle handle, uint64_t seed, size_t hash_len, size_t len) {
    uint8_t hash[KV_STORE_HASH_MAX], *out = NULL, *expected = malloc(len + 1);
    size_t out_len = 12345;
    int code;
    fill(hash, hash_len, seed);
    fill(expected, len, ~seed);
    code = store->get_chunk(handle, hash, hash_len, &out, &out_len);
    CHECK(code == 0, "chunk %llu: %d", (unsigned long long)seed, code);
    if (code == 0) {
        CHECK(out != NULL && out_len == len, "chunk %llu has %zu bytes, not %zu", (unsigned long long)seed, out_len, len);
        CHECK(out_len == len && memcmp(out, expected, len) == 0, "chunk %llu differs", (unsigned long long)seed);
        /* It is ours, down to the last byte. */
        memset(out, 0xee, out_len);
        free(out);
    }
    free(expected);
}

static void missing(kv_store_handle handle, const char *name) {
    uint8_t hash[32], *out = (uint8_t *)&out;
    size_t out_len = 1;
    int code;
    fill(hash, sizeof(hash), 999999);
    code = store->get_chunk(handle, hash, sizeof(hash), &out, &out_len);
    CHECK(code == KV_STORE_MISSING && out == NULL, "a missing chunk: %d", code);
    code = store->get_manifest(handle, name, &out, &out_len);
    CHECK(code == KV_STORE_MISSING && out == NULL, "a missing manifest: %d", code);
}

static void manifest(kv_store_handle handle, const char *name, const char *expected) {
    uint8_t *out = NULL;
    size_t out_len = 0;
    int code = store->get_manifest(handle, name, &out, &out_len);
    CHECK(code == 0, "manifest %s: %d", name, code);
    if (code != 0) return;
    CHECK(out != NULL && out_len == strlen(expected) && memcmp(out, expected, out_len) == 0, "manifest %s differs", name);
    free(out);
}

/* One thread of an engine: a request of its own, on a handle that it shares. */
struct worker {
    pthread_t thread;
    kv_store_handle handle;
    uint64_t number;
};

static void *work(void *argument) {
    const struct worker *self = argument;
    char name[64];
    uint64_t first = 1000 * (self->number + 1), n;
    for (n = 0; n < 40; n++) put(self->handle, first + n, n % 2 != 0 ? 8 : 32, (size_t)(n * n * 37), KV_STORE_STORED);
    snprintf(name, sizeof(name), "slot/%llu", (unsigned long long)self->number);
    CHECK(store->put_manifest(self->handle, name, (const uint8_t *)name, strlen(name)) == 0, "%s", name);
    manifest(self->handle, name, name);
    for (n = 0; n < 40; n++) get(self->handle, first + n, n % 2 != 0 ? 8 : 32, (size_t)(n * n * 37));
    return NULL;
}

static void refusals(kv_store_handle handle) {
    uint8_t hash[100] = {1}, *out = NULL;
    size_t out_len = 0;
    CHECK(store->open(NULL) == NULL, "a NULL URI");
    CHECK(store->open("nonsense") == NULL, "no URI");
    CHECK(store->put_chunk(handle, hash, 0, hash, 1) == KV_STORE_INVALID, "a hash of 0 bytes");
    CHECK(store->put_chunk(handle, hash, 65, hash, 1) == KV_STORE_INVALID, "a hash of 65 bytes");
    CHECK(store->get_chunk(handle, NULL, 8, &out, &out_len) == KV_STORE_INVALID, "a NULL hash");
    CHECK(store->get_chunk(handle, hash, 8, NULL, &out_len) == KV_STORE_INVALID, "NULL for the output");
    CHECK(store->put_manifest(handle, NULL, hash, 1) == KV_STORE_INVALID, "a NULL name");
    CHECK(store->put_manifest(handle, "\xff", hash, 1) == KV_STORE_INVALID, "a name that is not UTF-8");
    CHECK(store->put_manifest(handle, "x", NULL, 1) == KV_STORE_INVALID, "NULL data");
    CHECK(store->delete_manifest(NULL, "x") == KV_STORE_INVALID, "a NULL handle");
    store->close(NULL);
}

static void prefetch(kv_store_handle handle) {
    uint8_t hashes[4 * 32];
    size_t n;
    for (n = 0; n < 4; n++) fill(hashes + 32 * n, 32, 1000 + 2 * n);
    CHECK(store->prefetch_chunks(handle, hashes, 32, 4) == 0, "four hashes");
    CHECK(store->prefetch_chunks(handle, NULL, 32, 0) == 0, "no hashes");
    CHECK(store->prefetch_chunks(handle, hashes, 64, (size_t)1 << 58) == KV_STORE_INVALID, "more than memory");
    for (n = 0; n < 4; n++) get(handle, 1000 + 2 * n, 32, 4 * n * n * 37);
}

int main(int argc, char **argv) {
    enum { WORKERS = 4 };
    struct worker workers[WORKERS];
    kv_store_get_vtable_fn get_vtable;
    kv_store_handle handle, other;
    void *library;
    uint64_t n;
    if (argc != 3) {
        fprintf(stderr, "usage: consumer LIBRARY URI\n");
        return 2;
    }
    library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    *(void **)&get_vtable = dlsym(library, "kv_store_get_vtable");
    if (get_vtable == NULL || (store = get_vtable()) == NULL) {
        fprintf(stderr, "no table\n");
        return 2;
    }
    handle = store->open(argv[2]);
    other = store->open(argv[2]);
    if (handle == NULL || other == NULL) return 2;

    missing(handle, "slot/none");
    /* An empty manifest publishes, as oMLX does it. */
    put(handle, 1, 32, 70000, KV_STORE_STORED);
    put(handle, 1, 32, 70000, KV_STORE_ALREADY_THERE);
    put(handle, 2, 32, 0, KV_STORE_STORED);
    CHECK(store->put_manifest(handle, "__omlx_index__", NULL, 0) == 0, "an empty manifest");
    manifest(other, "__omlx_index__", "");
    get(other, 1, 32, 70000);
    get(other, 2, 32, 0);
    put(other, 1, 32, 70000, KV_STORE_ALREADY_THERE);

    for (n = 0; n < WORKERS; n++) {
        workers[n].handle = n % 2 != 0 ? handle : other;
        workers[n].number = n;
        CHECK(pthread_create(&workers[n].thread, NULL, work, &workers[n]) == 0, "a thread");
    }
    for (n = 0; n < WORKERS; n++) pthread_join(workers[n].thread, NULL);

    CHECK(store->put_manifest(handle, "../escape", (const uint8_t *)"x", 1) == 0, "a name like a path");
    manifest(other, "../escape", "x");
    CHECK(store->put_manifest(handle, "../escape", (const uint8_t *)"longer", 6) == 0, "once more");
    manifest(other, "../escape", "longer");
    CHECK(store->delete_manifest(other, "../escape") == 0, "delete");
    CHECK(store->delete_manifest(other, "../escape") == 0, "delete what is gone");
    missing(handle, "../escape");
    refusals(handle);
    if (store->version >= KV_STORE_VERSION_2) prefetch(handle);
    store->close(handle);
    store->close(other);

    /* Everything is there for whoever opens the store next. */
    handle = store->open(argv[2]);
    CHECK(handle != NULL, "open again");
    if (handle != NULL) {
        get(handle, 1, 32, 70000);
        manifest(handle, "slot/3", "slot/3");
        for (n = 0; n < 40; n++) get(handle, 2000 + n, n % 2 != 0 ? 8 : 32, (size_t)(n * n * 37));
        store->close(handle);
    }
    printf("version %u, %d failures\n", (unsigned)store->version, failures);
    return failures == 0 ? 0 : 1;
}
