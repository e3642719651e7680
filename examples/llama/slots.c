/* Saves the state of a sequence of llama.cpp through kv_store_v1 and restores it: what an engine does for its slots.
 *
 *     cc -I crates/store/include -o slots examples/llama/slots.c -ldl
 *     ./slots save    libkv_store_file.so file:///var/kv slot0 state.bin
 *     ./slots restore libkv_store_file.so file:///var/kv slot0 state.bin
 *
 * `state.bin` holds what llama_state_seq_get_data() has written, and restore makes what llama_state_seq_set_data() reads.
 *
 * The state is cut where its rows are: all keys of a layer, then its values, in runs of 256 cells. So the state of a longer
 * sequence has the chunks of its beginning in common with that of a shorter one; cut at fixed offsets it would have
 * none. Transposed values (flash attention is off) have no rows, so each layer of them is one chunk.
 *
 * A chunk's hash is of its bytes. Two chunks can have one hash of 64 bits: so a chunk that the store has already is compared
 * with the one to save, and where they differ nothing is saved. The manifest lists hashes and lengths, with a sum over the state.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kv_store_v1.h"

enum { HASH = 8, RUN = 256 };

struct chunk {
    uint64_t hash, bytes;
};

struct manifest {
    char magic[8];
    uint64_t bytes, sum, chunks;
};

static const char MAGIC[8] = "slots-1";
static const kv_store_vtable *store;

static void fail(const char *what) {
    fprintf(stderr, "slots: %s\n", what);
    exit(1);
}

static void *allocate(size_t bytes) {
    void *made = malloc(bytes != 0 ? bytes : 1);
    if (made == NULL) fail("out of memory");
    return made;
}

/* FNV-1a, of 64 bits. An engine has a faster one at hand. */
static uint64_t hash_of(const uint8_t *data, size_t len, uint64_t hash) {
    size_t at;
    for (at = 0; at < len; at++) hash = (hash ^ data[at]) * 1099511628211u;
    return hash;
}

#define FNV 14695981039346656037u

/* Reading a state from front to end, and cutting it on the way. */
struct cutter {
    const uint8_t *state;
    size_t len, at, cut;
    struct chunk *chunks;
    size_t count, room;
};

static void take(const struct cutter *cutter, void *to, size_t offset, size_t len) {
    if (offset > cutter->len || len > cutter->len - offset) fail("the state is cut");
    memcpy(to, cutter->state + offset, len);
}

/* Everything up to `end` that is in no chunk yet becomes one. */
static void cut_to(struct cutter *cutter, size_t end) {
    struct chunk *chunk;
    if (end > cutter->len) fail("the state is cut");
    if (end == cutter->cut) return;
    if (cutter->count == cutter->room) {
        cutter->room = 2 * cutter->room + 64;
        cutter->chunks = realloc(cutter->chunks, cutter->room * sizeof(struct chunk));
        if (cutter->chunks == NULL) fail("out of memory");
    }
    chunk = &cutter->chunks[cutter->count++];
    chunk->bytes = end - cutter->cut;
    chunk->hash = hash_of(cutter->state + cutter->cut, chunk->bytes, FNV);
    cutter->cut = end;
}

/* One layer's keys or values. */
static void cut_layer(struct cutter *cutter, uint32_t cells, int transposed) {
    uint32_t words[2];
    uint64_t row;
    size_t first = cutter->at + 12, cell;
    take(cutter, words, cutter->at + 4, sizeof(words));
    memcpy(&row, words, sizeof(row));
    if (transposed) row = (uint64_t)words[0] * words[1];
    if (first > cutter->len || cells == 0 || row > (cutter->len - first) / cells) fail("the state is cut");
    cut_to(cutter, first);
    for (cell = RUN; !transposed && cell < cells; cell += RUN) cut_to(cutter, first + cell * row);
    cutter->at = first + cells * row;
    cut_to(cutter, cutter->at);
}

static void cut(struct cutter *cutter) {
    uint32_t head[4], tail[2], cell[2], n;
    take(cutter, head, 0, sizeof(head));
    if (head[0] != 0xaf143cd8 || head[2] != 1) fail("this is no state of one sequence");
    cutter->at = sizeof(head);
    for (n = 0; n < head[3]; n++) {
        take(cutter, cell, cutter->at, sizeof(cell));
        cutter->at += sizeof(cell) + 4 * (size_t)cell[1];
    }
    take(cutter, tail, cutter->at, sizeof(tail));
    cutter->at += sizeof(tail);
    for (n = 0; n < tail[1]; n++) cut_layer(cutter, head[3], 0);
    /* Models with latents have no values; what else follows, of windows or recurrent layers, is one chunk. */
    for (n = 0; n < tail[1] && cutter->at < cutter->len; n++) cut_layer(cutter, head[3], tail[0] != 0);
    cut_to(cutter, cutter->len);
}

static uint8_t *read_file(const char *path, size_t *len) {
    FILE *file = fopen(path, "rb");
    uint8_t *data;
    long end;
    if (file == NULL || fseek(file, 0, SEEK_END) != 0 || (end = ftell(file)) < 0) fail("the state cannot be read");
    rewind(file);
    *len = (size_t)end;
    data = allocate(*len);
    if (fread(data, 1, *len, file) != *len) fail("the state cannot be read");
    fclose(file);
    return data;
}

/* The store keeps the first chunk of a hash, whatever it is asked to put under it later. One that was put a moment ago may
 * be for nobody to read yet. */
static void compare(kv_store_handle handle, const struct chunk *chunk, const uint8_t *data) {
    uint8_t *there;
    size_t len;
    if (store->get_chunk(handle, (const uint8_t *)&chunk->hash, HASH, &there, &len) != 0) return;
    if (len != chunk->bytes || memcmp(there, data, len) != 0) fail("another chunk has this hash");
    free(there);
}

static void save(kv_store_handle handle, const char *name, const char *path) {
    struct cutter cutter = {0};
    struct manifest *manifest;
    size_t n, at = 0, len, written = 0;
    int put;
    cutter.state = read_file(path, &cutter.len);
    cut(&cutter);
    for (n = 0; n < cutter.count; n++) {
        const struct chunk *chunk = &cutter.chunks[n];
        put = store->put_chunk(handle, (const uint8_t *)&chunk->hash, HASH, cutter.state + at, chunk->bytes);
        if (put < 0) fail("a chunk cannot be put");
        if (put == KV_STORE_STORED) {
            written += chunk->bytes;
        } else {
            compare(handle, chunk, cutter.state + at);
        }
        at += chunk->bytes;
    }
    len = sizeof(*manifest) + cutter.count * sizeof(struct chunk);
    manifest = allocate(len);
    memcpy(manifest->magic, MAGIC, sizeof(MAGIC));
    manifest->bytes = cutter.len;
    manifest->sum = hash_of(cutter.state, cutter.len, FNV);
    manifest->chunks = cutter.count;
    memcpy(manifest + 1, cutter.chunks, cutter.count * sizeof(struct chunk));
    /* From here on, all of it can be read. */
    if (store->put_manifest(handle, name, (const uint8_t *)manifest, len) != 0) fail("the slot cannot be published");
    printf("saved %zu bytes, %zu of them new\n", cutter.len, written);
    free(manifest);
    free(cutter.chunks);
    free((void *)cutter.state);
}

/* Tells the store what will be read, where it wants to know. */
static void announce(kv_store_handle handle, const struct chunk *chunks, size_t count) {
    uint8_t *hashes;
    size_t n;
    if (store->version < KV_STORE_VERSION_2 || store->prefetch_chunks == NULL) return;
    hashes = allocate(count * HASH);
    for (n = 0; n < count; n++) memcpy(hashes + n * HASH, &chunks[n].hash, HASH);
    (void)store->prefetch_chunks(handle, hashes, HASH, count);
    free(hashes);
}

static void restore(kv_store_handle handle, const char *name, const char *path) {
    struct manifest *manifest;
    struct chunk *chunks;
    uint8_t *data, *state;
    size_t n, len, at = 0;
    FILE *file;
    if (store->get_manifest(handle, name, &data, &len) != 0) fail("there is no such slot");
    manifest = (struct manifest *)data;
    chunks = (struct chunk *)(manifest + 1);
    if (len < sizeof(*manifest) || memcmp(manifest->magic, MAGIC, sizeof(MAGIC)) != 0 ||
        manifest->chunks != (len - sizeof(*manifest)) / sizeof(struct chunk) || manifest->bytes > SIZE_MAX / 2)
        fail("the slot's manifest is damaged");
    announce(handle, chunks, manifest->chunks);
    state = allocate(manifest->bytes);
    for (n = 0; n < manifest->chunks; n++) {
        uint8_t *chunk;
        if (store->get_chunk(handle, (const uint8_t *)&chunks[n].hash, HASH, &chunk, &len) != 0) fail("a chunk is gone");
        if (len != chunks[n].bytes || len > manifest->bytes - at) fail("a chunk has another length");
        memcpy(state + at, chunk, len);
        at += len;
        /* It came from malloc(), and is ours. */
        free(chunk);
    }
    if (at != manifest->bytes || hash_of(state, at, FNV) != manifest->sum) fail("the state is not the one that was saved");
    file = fopen(path, "wb");
    if (file == NULL || fwrite(state, 1, at, file) != at || fclose(file) != 0) fail("the state cannot be written");
    printf("restored %zu bytes\n", at);
    free(state);
    free(data);
}

int main(int argc, char **argv) {
    kv_store_get_vtable_fn get_vtable;
    kv_store_handle handle;
    void *library;
    if (argc != 6 || (strcmp(argv[1], "save") != 0 && strcmp(argv[1], "restore") != 0)) {
        fprintf(stderr, "usage: slots save|restore LIBRARY URI NAME STATE\n");
        return 2;
    }
    library = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) fail(dlerror());
    *(void **)&get_vtable = dlsym(library, "kv_store_get_vtable");
    if (get_vtable == NULL || (store = get_vtable()) == NULL) fail("the library has no table of kv_store_v1");
    handle = store->open(argv[3]);
    /* The library has said why. */
    if (handle == NULL) return 1;
    if (strcmp(argv[1], "save") == 0) {
        save(handle, argv[4], argv[5]);
    } else {
        restore(handle, argv[4], argv[5]);
    }
    store->close(handle);
    return 0;
}
