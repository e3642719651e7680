/*
 * kv_store_v1: the C ABI between an inference engine (the consumer) and a storage backend.
 *
 *     put these bytes under this hash        put_chunk
 *     give me the bytes of this hash         get_chunk
 *     publish them all under this name       put_manifest
 *
 * A backend for URIs `foo://...` is a shared object `libkv_store_foo.so` (`.dylib` on macOS) that exports one
 * symbol, kv_store_get_vtable(). A consumer looks for the file in the folder that the environment variable
 * KV_STORE_LIBRARY_PATH names, then where its own dynamic loader looks.
 *
 * CHUNKS are immutable, under a hash that the consumer chose: 8 bytes of XXH3, 32 bytes of SHA-256. A backend
 * computes no hashes and gives no meaning to their bytes.
 * MANIFESTS are named and replaced at once and whole: a reader gets the old one or the new one.
 * Once put_manifest() has returned 0, anybody can read every chunk that was put before on that handle. Until
 * then a backend may buffer them.
 *
 * OWNERSHIP   Inputs are borrowed for the call. An output is a buffer from the C library's malloc(); it
 *             belongs to the caller, who gives it to free().
 * RETURN      0 is done, a negative code is an error. Nothing unwinds across: no exception, no panic. What
 *             went wrong goes to stderr. Secrets come from the environment, never from the URI, and are
 *             never printed.
 * THREADS     Every function may be called from any thread, also several at once on one handle. Only close()
 *             is the last call on its handle.
 * LENGTHS     Bytes, as size_t. Data of length 0 may come with a pointer that is NULL or points nowhere.
 *
 * Paragraphs marked [T] are what Transload's backends do where the contract is silent, and what its
 * conformance kit reports as a note where another backend differs.
 */
#ifndef KV_STORE_V1_H
#define KV_STORE_V1_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A table that ends after delete_manifest, or whose last field means nothing. */
#define KV_STORE_VERSION_1 1
/* A table with prefetch_chunks. */
#define KV_STORE_VERSION_2 2

/* put_chunk: it was not there; it is now. */
#define KV_STORE_STORED 0
/* put_chunk: a chunk of this hash was there already. */
#define KV_STORE_ALREADY_THERE 1

/* [T] The negative codes of Transload's backends are errno's, so that "missing" can be told from "failed". The
 * contract promises no more than their sign. */
/* Not there: -ENOENT. Nothing is printed. */
#define KV_STORE_MISSING (-2)
/* The store failed: -EIO. One line on stderr says why. */
#define KV_STORE_ERROR (-5)
/* An argument is none: -EINVAL. One line on stderr says which. */
#define KV_STORE_INVALID (-22)

/* [T] A hash has 1 to 64 bytes. */
#define KV_STORE_HASH_MAX 64
/* [T] A manifest's name is UTF-8 of at most 1024 bytes, without the NUL that ends it. */
#define KV_STORE_NAME_MAX 1024

/* An open store, as its backend represents it. */
typedef void *kv_store_handle;

/*
 * The functions of a backend. The table is constant and lives as long as the library is loaded.
 *
 * A version 1 table may end after delete_manifest, with nothing mapped behind it. Read `version` first, through
 * a pointer, and never copy the whole struct. New functions come at the end, with a new version; a change that
 * would break a consumer is another struct under another symbol.
 */
typedef struct kv_store_vtable {
    /* The highest version whose functions are all here. */
    uint32_t version;

    /*
     * Opens the store at `uri`, a C string that is passed on as the user wrote it (one '/' at its end may
     * have been cut). Returns a handle, or NULL with the reason on stderr.
     */
    kv_store_handle (*open)(const char *uri);

    /*
     * Closes a handle. Chunks that no put_manifest() followed may be lost. [T] close(NULL) does nothing.
     */
    void (*close)(kv_store_handle handle);

    /*
     * Stores `data_len` bytes under a hash of `hash_len` bytes. KV_STORE_STORED; KV_STORE_ALREADY_THERE, and
     * then nothing changed; negative for an error. [T] Also other bytes under a hash that is there change
     * nothing: the first stay.
     */
    int (*put_chunk)(kv_store_handle handle, const uint8_t *hash, size_t hash_len, const uint8_t *data,
                     size_t data_len);

    /*
     * Gives the bytes of a chunk to the caller in *out and *out_len, and 0; or a negative code for an error or
     * a chunk that is not there, and then *out is not for the caller. [T] Zero bytes come in a buffer too:
     * *out is never NULL after 0, always NULL after a negative code.
     */
    int (*get_chunk)(kv_store_handle handle, const uint8_t *hash, size_t hash_len, uint8_t **out,
                     size_t *out_len);

    /*
     * Publishes every chunk put before on this handle and then `data` as the manifest `name`, a C string, in
     * the place of an earlier one. 0, or negative, and then the earlier one is still there. [T] A name is
     * never a path: "../x", "/" and "chunks" are names like others.
     */
    int (*put_manifest)(kv_store_handle handle, const char *name, const uint8_t *data, size_t data_len);

    /* As get_chunk, for the manifest `name`. */
    int (*get_manifest)(kv_store_handle handle, const char *name, uint8_t **out, size_t *out_len);

    /*
     * Removes the manifest `name`. 0, also when it was not there; negative for an error. [T] Chunks stay until
     * a collection finds that no manifest refers to them.
     */
    int (*delete_manifest)(kv_store_handle handle, const char *name);

    /*
     * From version 2 on: says that the chunks of `n_hashes` hashes of `hash_len` bytes each, laid end to end,
     * will be read soon. 0, or negative, which is never fatal. Not to be read in a version 1 table.
     */
    int (*prefetch_chunks)(kv_store_handle handle, const uint8_t *hashes, size_t hash_len, size_t n_hashes);
} kv_store_vtable;

/* What a backend exports. Never NULL; the same table at every call. */
#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
const kv_store_vtable *kv_store_get_vtable(void);

/* The type of the symbol, for dlsym(). */
typedef const kv_store_vtable *(*kv_store_get_vtable_fn)(void);

#ifdef __cplusplus
}
#endif

#endif
