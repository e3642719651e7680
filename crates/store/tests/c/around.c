/* A plugin that is another one, named by AROUND, but for one call: with CRASH, HANG or REFUSE defined,
 * get_manifest aborts, get_manifest never returns, or delete_manifest is refused. Before anything else it starts
 * a process that stays. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "kv_store_v1.h"

static const kv_store_vtable *inner;
static kv_store_vtable table;

#if defined(CRASH) || defined(HANG)
static int get_manifest(kv_store_handle handle, const char *name, uint8_t **out, size_t *out_len) {
    (void)handle, (void)name, (void)out, (void)out_len;
#ifdef CRASH
    abort();
#else
    fputs("it hangs\n", stderr);
    for (;;) pause();
#endif
    return KV_STORE_ERROR;
}
#endif

#ifdef REFUSE
static int delete_manifest(kv_store_handle handle, const char *name) {
    (void)handle, (void)name;
    return KV_STORE_ERROR;
}
#endif

const kv_store_vtable *kv_store_get_vtable(void) {
    if (inner == NULL) {
        void *library = dlopen(getenv("AROUND"), RTLD_NOW | RTLD_LOCAL);
        kv_store_get_vtable_fn get_vtable;
        if (library == NULL) return NULL;
        *(void **)&get_vtable = dlsym(library, "kv_store_get_vtable");
        inner = get_vtable();
        table = *inner;
#if defined(CRASH) || defined(HANG)
        table.get_manifest = get_manifest;
#endif
#ifdef REFUSE
        table.delete_manifest = delete_manifest;
#endif
        if (fork() == 0) {
            for (;;) pause();
        }
    }
    return &table;
}
