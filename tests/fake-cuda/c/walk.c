// The kernel, and how the fake driver runs a thread of it.

#include "walk.h"
#include "walk.cu"

u64 fake_walk_size(void)
{
    return sizeof(struct launch);
}

// Replaces what the kernel reads without LOAD, the places and the tables of bases, by the host's views of
// them. A table's length is unknown here: past the end of an allocation its view reads as zeros, which are no
// address. Returns 0 if the device cannot read them.
u32 fake_walk_prepare(const struct machine *of, struct launch *launch)
{
    struct side *sides[] = {&launch->src, &launch->dst};
    for (u32 i = 0; i < 2; i++) {
        if (!sides[i]->bases)
            continue;
        sides[i]->bases = of->view(of->running, (u64)sides[i]->bases, sizeof(u64));
        if (!sides[i]->bases)
            return 0;
    }
    if (!launch->units)
        return 1;
    u64 last = (u64)launch->first + launch->units - 1;
    // The divisions are right only below that.
    if (last >> 31 || !launch->place_units.divisor || !launch->run_units.divisor)
        return 0;
    // A division grows with its number, so these are the first and the last place that threads read.
    u64 from = divide(launch->first, launch->place_units);
    u64 to = divide((u32)last, launch->place_units);
    u64 size = (to - from + 1) * sizeof(struct place);
    const struct place *view = of->view(of->running, (u64)launch->places + from * sizeof(struct place), size);
    if (!view)
        return 0;
    launch->places = view - from;
    return 1;
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
