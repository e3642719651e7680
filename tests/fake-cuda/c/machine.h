// What the kernels need to be C: a machine that runs its threads one after the other. Each access goes through the
// machine, which knows the memory of the device.

typedef unsigned long long u64;
typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;

struct pair {
    u64 x;
    u64 y;
};

struct machine {
    const void *running;
    void (*load)(const void *running, u64 address, void *to, u32 size);
    void (*store)(const void *running, u64 address, const void *from, u32 size);
};

static _Thread_local const struct machine *machine;
static _Thread_local u32 thread_index;
static _Thread_local u32 thread_count;

#define ENTRY static void
#define SUM_ENTRY static void
#define INLINE static inline
#define PARAMETER const
#define THREAD thread_index
#define THREADS thread_count
#define PAIR struct pair
#define HIGH(a, b) ((u32)(((u64)(a) * (b)) >> 32))
#define LOOP
#define UNROLL
#define LOAD(type, from)                                                                          \
    ({                                                                                            \
        type loaded;                                                                              \
        machine->load(machine->running, from, &loaded, sizeof(type));                             \
        loaded;                                                                                   \
    })
#define STORE(type, to, value)                                                                    \
    ({                                                                                            \
        type stored = value;                                                                      \
        machine->store(machine->running, to, &stored, sizeof(type));                              \
    })
#define READ(type, from) LOAD(type, from)
