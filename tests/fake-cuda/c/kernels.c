// The kernels, and how the fake driver runs a thread of each.

#include "machine.h"
#include "walk.cu"
#include "crc32c.cu"

u64 fake_walk_size(void)
{
    return sizeof(struct launch);
}

void fake_walk_thread(const struct machine *of, u32 unit, const struct launch *launch, u32 thread, u32 threads)
{
    machine = of;
    thread_index = thread;
    thread_count = threads;
    switch (unit) {
    case 16: walk_16(*launch); break;
    case 8: walk_8(*launch); break;
    case 4: walk_4(*launch); break;
    case 2: walk_2(*launch); break;
    default: walk_1(*launch); break;
    }
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
