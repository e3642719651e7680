// The one kernel of Transload: moves the bytes of loop nests between two memories, or between a memory and a dense
// buffer.
//
// A launch runs one nest at a row of places. Its bytes are counted in units of 16, 8, 4, 2 or 1 B, the longest that
// everything in it is a multiple of; each thread works out for itself which bytes unit n is, so no list of
// chunks crosses the bus. There is one entry for each length of unit, `walk_16` to `walk_1`.
//
// It is plain C but for what `__CUDACC__` guards, so that tests run the very same text on a CPU. The structures are those of
// `crates/transfer/src/device/launch.rs`.

#ifdef __CUDACC__
typedef unsigned long long u64;
typedef unsigned int u32;
typedef unsigned char u8;
#define ENTRY extern "C" __global__ __launch_bounds__(1024) void
#define INLINE static __device__ __forceinline__
#define PARAMETER const __grid_constant__
#define THREAD (blockIdx.x * blockDim.x + threadIdx.x)
#define THREADS (gridDim.x * blockDim.x)
#define UNIT16 uint4
#define HIGH(a, b) __umulhi(a, b)
// Loops over the parameters stay loops: they are read from constant memory by index, and the code stays small.
#define LOOP _Pragma("unroll 1")
#define UNROLL _Pragma("unroll")
// Bytes pass once, so they should not push out what the engine has in the GPU's caches. (Both also say that the address is in
// global memory, as caches and pinned memory are; a plain access would find that out for each.)
#define LOAD(type, from) __ldcs((const type *)(from))
#define STORE(type, to, value) __stcs((type *)(to), value)
// A number of a table, which many threads read and nobody writes.
#define READ(from) __ldg((const u64 *)(from))
#endif

// How many units a thread has on their way at a time: what hides the latency of memory.
#define AHEAD 4

// The most loops of a nest.
#define LOOPS 8

// Addresses are an allocation's number above so many bits, and an offset below.
#define ALLOCATION_BITS 44

// A divisor, as a multiplication and a shift: right for numbers below 2^31.
struct division {
    u32 divisor;
    u32 multiplier;
    u32 shift;
};

struct loop {
    u64 src;
    u64 dst;
    struct division count;
    u32 unused;
};

// Where a nest starts.
struct place {
    u64 src;
    u64 dst;
};

// One of the two sides: the address of a table of a memory's bases; or, where that is 0, the address that a dense buffer's
// byte 0 would have.
struct side {
    u64 bases;
    u64 buffer;
};

struct launch {
    // The address of a table of places.
    u64 places;
    struct side src;
    struct side dst;
    // Bytes outside of these addresses of the destination side stay as they are.
    u64 begin;
    u64 end;
    // The first unit, counted from the start of the first place, and how many.
    u32 first;
    u32 units;
    // Units of a place, and of a chunk.
    struct division place_units;
    struct division run_units;
    // Whether bytes go from the destination side to the source side.
    u32 reverse;
    u32 loops;
    // The innermost first.
    struct loop loop[LOOPS];
};

INLINE u32 divide(u32 number, struct division by)
{
    return by.divisor == 1 ? number : HIGH(number, by.multiplier) >> by.shift;
}

INLINE u64 find(struct side side, u64 address)
{
    if (!side.bases)
        return side.buffer + address;
    u64 base = READ(side.bases + (address >> ALLOCATION_BITS) * sizeof(u64));
    return base + (address & ((1ull << ALLOCATION_BITS) - 1));
}

// Unit `number` of the launch: its addresses on both sides.
INLINE struct place locate(const struct launch *launch, u32 number, u32 unit)
{
    u32 place = divide(number, launch->place_units);
    u32 rest = number - place * launch->place_units.divisor;
    u32 chunk = divide(rest, launch->run_units);
    u32 within = rest - chunk * launch->run_units.divisor;
    u64 placed = launch->places + place * sizeof(struct place);
    struct place at = {READ(placed), READ(placed + sizeof(u64))};
    LOOP
    for (u32 i = 0; i < launch->loops; i++) {
        u32 outer = divide(chunk, launch->loop[i].count);
        u32 step = chunk - outer * launch->loop[i].count.divisor;
        at.src += step * launch->loop[i].src;
        at.dst += step * launch->loop[i].dst;
        chunk = outer;
    }
    at.src += (u64)within * unit;
    at.dst += (u64)within * unit;
    return at;
}

// Moves those bytes of a unit that lie inside of the launch's range.
INLINE void move_part(u64 from, u64 to, u64 dst, u32 unit, const struct launch *launch)
{
    LOOP
    for (u32 i = 0; i < unit; i++)
        if (dst + i >= launch->begin && dst + i < launch->end)
            STORE(u8, to + i, LOAD(u8, from + i));
}

// All loads of a round come before its stores.
#define WALK(name, type)                                                                          \
    ENTRY name(PARAMETER struct launch launch)                                                         \
    {                                                                                             \
        for (u32 round = THREAD; round < launch.units; round += AHEAD * THREADS) {                \
            type held[AHEAD];                                                                     \
            u64 to[AHEAD];                                                                        \
            UNROLL                                                                                \
            for (u32 i = 0; i < AHEAD; i++) {                                                     \
                u32 number = round + i * THREADS;                                                 \
                to[i] = 0;                                                                        \
                if (number >= launch.units)                                                       \
                    continue;                                                                     \
                struct place at = locate(&launch, launch.first + number, sizeof(type));           \
                u64 src = find(launch.src, at.src);                                               \
                u64 dst = find(launch.dst, at.dst);                                               \
                u64 from = launch.reverse ? dst : src;                                            \
                u64 there = launch.reverse ? src : dst;                                           \
                if (at.dst < launch.begin || at.dst + sizeof(type) > launch.end) {                \
                    move_part(from, there, at.dst, sizeof(type), &launch);                        \
                } else {                                                                          \
                    held[i] = LOAD(type, from);                                                   \
                    to[i] = there;                                                                \
                }                                                                                 \
            }                                                                                     \
            UNROLL                                                                                \
            for (u32 i = 0; i < AHEAD; i++)                                                       \
                if (to[i])                                                                        \
                    STORE(type, to[i], held[i]);                                                  \
        }                                                                                         \
    }

WALK(walk_16, UNIT16)
WALK(walk_8, u64)
WALK(walk_4, u32)
WALK(walk_2, unsigned short)
WALK(walk_1, u8)
