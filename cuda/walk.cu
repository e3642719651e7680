// The one kernel of Transload: moves the bytes of loop nests between two memories, or between a memory and a dense
// buffer.
//
// A launch runs one nest at a row of places. Its bytes are counted in units of 16, 8, 4, 2 or 1 B, the longest that
// everything in it is a multiple of; each thread works out for itself which bytes unit n is, so no list of
// chunks crosses the bus. Units are moved whole: what a range cuts off of one moves byte by byte, beside them.
//
// `walk_16` to `walk_1` do so for any sides, one for each length of unit. Two more are for dense buffers and units of 16 B:
// `stream_16`, and for long runs `runs_16`, whose warps take `SPAN` units of one run at a time, and divide once for them.
//
// The blocks of a launch have whole warps.
//
// It is plain C but for what `__CUDACC__` guards, so that tests run the very same text on a CPU. The structures are those of
// `crates/cuda/src/launch.rs`.

#ifdef __CUDACC__
typedef unsigned long long u64;
typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;
// Eight such blocks fill a multiprocessor, and one fits beside an engine's kernels: a thread has 32 registers at most.
#define ENTRY extern "C" __global__ __launch_bounds__(256, 8) void
#define INLINE static __device__ __forceinline__
#define PARAMETER const __grid_constant__
#define THREAD (blockIdx.x * blockDim.x + threadIdx.x)
#define THREADS (gridDim.x * blockDim.x)
// 16 B as `x` and `y`.
#define PAIR ulonglong2
#define HIGH(a, b) __umulhi(a, b)
#define LOOP _Pragma("unroll 1")
#define UNROLL _Pragma("unroll")
// What was read has passed, so it should not push out what the engine has in the GPU's caches; what was written is read next, by a
// copy engine, a sum or the engine. (Both also say that the address is in global memory, as caches and pinned memory are; a plain
// access would find that out for each.)
#define LOAD(type, from) __ldcs((const type *)(from))
#define STORE(type, to, value) __stcg((type *)(to), value)
// An entry of a table, which many threads read and nobody writes.
#define READ(type, from) __ldg((const type *)(from))
#endif

// How many units a thread has on their way at a time.
#define AHEAD 2

// The most loops of a nest.
#define LOOPS 8

// Threads of a warp, and how many units it takes at a time where runs are long.
#define WARP 32
#define SPAN 128

// Addresses are an allocation's number above so many bits, and an offset below.
#define ALLOCATION_BITS 44

// A divisor, as a multiplication and a shift: right for numbers below 2^31.
struct division {
    u32 divisor;
    u32 multiplier;
    u32 shift;
};

// A loop. Unit or span n begins n times its bytes behind the place, as if all were contiguous, and each loop adds `src` and `dst` as often
// as it has stepped by then. So these are what its strides have beyond all that the loops inside of it have added (beyond the bytes of a
// run, if it is the innermost); for a dense buffer nothing.
struct loop {
    u64 src;
    u64 dst;
    // How many steps the loop inside of it has; for the innermost, units or spans of a run.
    struct division inner;
    u32 unused;
};

// Where a nest starts.
struct place {
    u64 src;
    u64 dst;
};

// Bytes of a unit, or of a span, that is cut.
struct edge {
    u32 number;
    u16 skip;
    u16 bytes;
};

struct launch {
    // The address of a table of places.
    u64 places;
    // The address of a table of a memory's bases, on each side; a dense buffer has none, and the address that its byte 0 would have.
    u64 src_bases;
    u64 dst_bases;
    u64 dst_buffer;
    // What is cut off at the beginning and at the end.
    struct edge edge[2];
    // The first unit (of `runs_16`: span), counted from the start of the first place, and how many.
    u32 first;
    u32 count;
    // Units or spans of a place.
    struct division place;
    // Whether bytes go from the destination side to the source side.
    u32 reverse;
    u32 loops;
    // Of `runs_16`: the units of a run, those that the first span leaves out, and where the last one ends.
    u32 run;
    u32 skip;
    u32 stop;
    // The innermost first.
    struct loop loop[LOOPS];
};

INLINE u32 divide(u32 number, struct division by)
{
    return HIGH(number << 1, by.multiplier) >> by.shift;
}

INLINE u64 find(u64 bases, u64 address)
{
    u64 base = READ(u64, bases + (address >> ALLOCATION_BITS) * sizeof(u64));
    return base + (address & ((1ull << ALLOCATION_BITS) - 1));
}

// The addresses of unit or span `number`, of so many bytes: where it is loaded from (`src`) and stored to (`dst`). On the
// destination side the innermost `STRIDED` loops may add something; where that is not all of them, it is a dense buffer. Unrolled it
// takes a third of the instructions for each loop, and is longer.
#define LOCATE(name, REPEAT, STRIDED)                                                             \
    INLINE struct place name(const struct launch *launch, u32 number, u32 bytes)                  \
    {                                                                                             \
        u32 place = divide(number, launch->place);                                                \
        u32 rest = number - place * launch->place.divisor;                                        \
        PAIR start = READ(PAIR, launch->places + place * sizeof(struct place));                   \
        u64 src = start.x + (u64)rest * bytes;                                                    \
        u64 dst = start.y + (u64)rest * bytes;                                                    \
        REPEAT                                                                                    \
        for (u32 i = 0; i < LOOPS; i++) {                                                         \
            if (i >= launch->loops)                                                               \
                break;                                                                            \
            rest = divide(rest, launch->loop[i].inner);                                           \
            src += rest * launch->loop[i].src;                                                    \
            if ((int)i < STRIDED)                                                                 \
                dst += rest * launch->loop[i].dst;                                                \
        }                                                                                         \
        src = find(launch->src_bases, src);                                                       \
        if (STRIDED < LOOPS || !launch->dst_bases)                                                \
            dst += launch->dst_buffer;                                                            \
        else                                                                                      \
            dst = find(launch->dst_bases, dst);                                                   \
        struct place way = {launch->reverse ? dst : src, launch->reverse ? src : dst};            \
        return way;                                                                               \
    }

LOCATE(locate, LOOP, LOOPS)
LOCATE(locate_unrolled, UNROLL, LOOPS)
LOCATE(locate_dense, UNROLL, 0)
LOCATE(locate_run, UNROLL, 1)

// Moves what is cut off, a thread each byte.
INLINE void move_edges(const struct launch *launch, u32 bytes)
{
    if (THREAD >= 2 * sizeof(PAIR))
        return;
    struct edge edge = launch->edge[THREAD / sizeof(PAIR)];
    u32 byte = THREAD % sizeof(PAIR);
    if (byte >= edge.bytes)
        return;
    struct place way = locate(launch, edge.number, bytes);
    byte += edge.skip;
    STORE(u8, way.dst + byte, LOAD(u8, way.src + byte));
}

// All loads of a round come before its stores.
#define WALK(name, type, LOCATED)                                                                 \
    ENTRY name(PARAMETER struct launch launch)                                                    \
    {                                                                                             \
        for (u32 round = THREAD; round < launch.count; round += AHEAD * THREADS) {                \
            type held[AHEAD];                                                                     \
            u64 to[AHEAD];                                                                        \
            UNROLL                                                                                \
            for (u32 i = 0; i < AHEAD; i++) {                                                     \
                if (round + i * THREADS >= launch.count)                                          \
                    continue;                                                                     \
                u32 number = launch.first + round + i * THREADS;                                  \
                struct place way = LOCATED(&launch, number, sizeof(type));                        \
                held[i] = LOAD(type, way.src);                                                    \
                to[i] = way.dst;                                                                  \
            }                                                                                     \
            UNROLL                                                                                \
            for (u32 i = 0; i < AHEAD; i++)                                                       \
                if (round + i * THREADS < launch.count)                                           \
                    STORE(type, to[i], held[i]);                                                  \
        }                                                                                         \
        move_edges(&launch, sizeof(type));                                                        \
    }

WALK(walk_16, PAIR, locate_unrolled)
WALK(walk_8, u64, locate)
WALK(walk_4, u32, locate)
WALK(walk_2, u16, locate)
WALK(walk_1, u8, locate)
WALK(stream_16, PAIR, locate_dense)

ENTRY runs_16(PARAMETER struct launch launch)
{
    const u32 bytes = SPAN * sizeof(PAIR), each = WARP * sizeof(PAIR);
    for (u32 span = THREAD / WARP; span < launch.count; span += THREADS / WARP) {
        u32 number = launch.first + span;
        struct place way = locate_run(&launch, number, bytes);
        // The last span of a run may be shorter, and so may the first and the last of the launch.
        u32 before = number - divide(number, launch.loop[0].inner) * launch.loop[0].inner.divisor;
        u32 left = launch.run - before * SPAN;
        u32 end = span == launch.count - 1 ? launch.stop : SPAN;
        end = left < end ? left : end;
        u32 unit = (span == 0 ? launch.skip : 0) + THREAD % WARP;
        u64 from = way.src + unit * sizeof(PAIR);
        u64 to = way.dst + unit * sizeof(PAIR);
        // In a whole span each thread has as many units, which are on their way at once.
        if (unit < WARP && end == SPAN) {
            PAIR held[SPAN / WARP];
            UNROLL
            for (u32 i = 0; i < SPAN / WARP; i++)
                held[i] = LOAD(PAIR, from + i * each);
            UNROLL
            for (u32 i = 0; i < SPAN / WARP; i++)
                STORE(PAIR, to + i * each, held[i]);
        } else {
            LOOP
            for (; unit < end; unit += WARP, from += each, to += each)
                STORE(PAIR, to, LOAD(PAIR, from));
        }
    }
    move_edges(&launch, bytes);
}
