// Runs launches of the kernel on a CPU, for tests: thread by thread, in a shuffled order, with every access checked.
//
// It reads memory and launches from its input, and writes what became of the memory to its output, then how often each byte was
// written. An access outside of all memory ends it; so does whatever sanitizers find that it was compiled with.
// Numbers are of this machine's byte order:
//
//   u64 seed
//   u64 memories; for each: u64 address for the kernel, u64 length, bytes
//   u64 launches; for each: u64 index of the entry, u64 warps, struct launch

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long u64;
typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;
typedef struct {
    u64 x, y;
} pair;

struct memory {
    u64 address, length;
    u8 *bytes, *writes;
};

static struct memory *memories;
static u64 memory_count;

static __thread u32 thread, threads;

static void fail(const char *what, u64 number)
{
    fprintf(stderr, "%s %#llx\n", what, number);
    exit(1);
}

// The memory that an access is in, and how far from its start.
static struct memory *locate_memory(u64 address, u64 length, u64 *offset)
{
    for (u64 i = 0; i < memory_count; i++) {
        struct memory *memory = &memories[i];
        *offset = address - memory->address;
        if (address >= memory->address && *offset < memory->length && length <= memory->length - *offset)
            return memory;
    }
    fail("no memory at", address);
    return 0;
}

static void *loaded(u64 address, u64 length)
{
    u64 offset;
    struct memory *memory = locate_memory(address, length, &offset);
    if (address % length)
        fail("misaligned access at", address);
    return memory->bytes + offset;
}

static void *stored(u64 address, u64 length)
{
    u64 offset;
    struct memory *memory = locate_memory(address, length, &offset);
    for (u64 i = 0; i < length; i++)
        memory->writes[offset + i]++;
    return loaded(address, length);
}

#define ENTRY static void
#define INLINE static inline
#define PARAMETER const
#define THREAD thread
#define THREADS threads
#define PAIR pair
#define HIGH(a, b) ((u32)(((u64)(a) * (b)) >> 32))
#define LOOP
#define UNROLL
#define LOAD(type, from) (*(const type *)loaded(from, sizeof(type)))
#define STORE(type, to, value) (*(type *)stored(to, sizeof(type)) = (value))
#define READ(type, from) LOAD(type, from)

#include "walk.cu"

static u64 number(void)
{
    u64 read;
    if (fread(&read, sizeof read, 1, stdin) != 1)
        fail("the input ends early", 0);
    return read;
}

static void bytes(void *into, u64 length)
{
    if (length && fread(into, 1, length, stdin) != length)
        fail("the input ends early", length);
}

static void run(u64 entry, const struct launch *launch)
{
    switch (entry) {
    case 0: walk_1(*launch); break;
    case 1: walk_2(*launch); break;
    case 2: walk_4(*launch); break;
    case 3: walk_8(*launch); break;
    case 4: walk_16(*launch); break;
    case 5: stream_16(*launch); break;
    case 6: runs_16(*launch); break;
    default: fail("no entry", entry);
    }
}

// Each thread runs once, the whole of it before the next.
static void run_threads(u64 entry, const struct launch *launch, u64 seed)
{
    u32 *order = malloc(threads * sizeof *order);
    for (u32 i = 0; i < threads; i++) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        u32 other = (seed >> 33) % (i + 1);
        order[i] = order[other];
        order[other] = i;
    }
    for (u32 i = 0; i < threads; i++) {
        thread = order[i];
        run(entry, launch);
    }
    free(order);
}

int main(void)
{
    u64 seed = number();
    memory_count = number();
    memories = calloc(memory_count, sizeof *memories);
    for (u64 i = 0; i < memory_count; i++) {
        struct memory *memory = &memories[i];
        memory->address = number();
        memory->length = number();
        // Aligned as it is for the kernel. A sanitizer watches what lies around it.
        u64 skew = memory->address % 16;
        memory->bytes = (u8 *)malloc(memory->length + skew) + skew;
        memory->writes = calloc(memory->length, 1);
        bytes(memory->bytes, memory->length);
    }
    for (u64 left = number(); left; left--) {
        struct launch launch;
        u64 entry = number();
        threads = number() * WARP;
        bytes(&launch, sizeof launch);
        run_threads(entry, &launch, seed + left);
    }
    for (u64 i = 0; i < memory_count; i++) {
        fwrite(memories[i].bytes, 1, memories[i].length, stdout);
        fwrite(memories[i].writes, 1, memories[i].length, stdout);
    }
    return 0;
}
