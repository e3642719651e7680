// Runs the kernel that sums on a CPU, for tests. What it is compiled with watches that it stays in its two texts, which are as
// long as they have to be.
//
// Its input is, in numbers of this machine's byte order: u64 threads, struct fold (without addresses), u64 length, text. Its
// output is the folded text.

#include <stdio.h>
#include <stdlib.h>

typedef unsigned long long u64;
typedef unsigned int u32;
typedef unsigned char u8;

static u32 thread, threads;

#define SUM_ENTRY static void
#define PARAMETER const
#define THREAD thread
#define THREADS threads
#define LOOP
#define UNROLL
#define LOAD(type, from) (*(const type *)(from))
#define STORE(type, to, value) (*(type *)(to) = (value))

#include "crc32c.cu"

static void get(void *into, u64 length)
{
    if (length && fread(into, 1, length, stdin) != length) {
        fprintf(stderr, "the input ends early\n");
        exit(1);
    }
}

int main(void)
{
    u64 wanted, length;
    struct fold parameter;
    get(&wanted, sizeof wanted);
    get(&parameter, sizeof parameter);
    get(&length, sizeof length);
    u64 folded_length = wanted * sizeof(u32) + parameter.rest;
    u8 *text = malloc(length), *folded = malloc(folded_length);
    get(text, length);
    parameter.text = (u64)text;
    parameter.folded = (u64)folded;
    threads = wanted;
    // From the last to the first: none may need another.
    for (thread = threads; thread-- > 0;)
        fold(parameter);
    fwrite(folded, 1, folded_length, stdout);
    return 0;
}
