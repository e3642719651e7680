// The kernels, and how the fake driver runs a thread of each.

#include "machine.h"
#include "walk.cu"
#include "crc32c.cu"

u64 fake_walk_size(void)
{
    return sizeof(struct launch);
}

// Each entry, in the order of `Entry::NAMED`.
static void (*const walks[])(const struct launch) = {walk_1, walk_2, walk_4, walk_8, walk_16, stream_16, runs_16};

void fake_walk_thread(const struct machine *of, u32 entry, const struct launch *launch, u32 thread, u32 threads)
{
    machine = of;
    thread_index = thread;
    thread_count = threads;
    walks[entry](*launch);
}

u64 fake_fold_size(void)
{
    return sizeof(struct fold);
}

void fake_fold_thread(const struct machine *of, const struct fold *parameter, u32 thread, u32 threads)
{
    machine = of;
    thread_index = thread;
    thread_count = threads;
    fold(*parameter);
}
