// What the headers for kernels need of the runtime. Included by both.
#ifndef KOPS_HOST_INTERFACE_H
#define KOPS_HOST_INTERFACE_H

#include <stddef.h>

// Dynamic shared memory of the kernel's object; what a launch does not ask for is out of bounds.
enum { KOPS_HOST_DYNAMIC_BYTES = 256 << 10 };

// A barrier that some threads arrive at: what the runtime keeps in it.
struct alignas(8) kops_host_phase {
    unsigned expected, missing, phase, reserved;
};

struct kops_uint3 {
    unsigned x, y, z;
};

// What a C++ type is, for comparing a kernel's parameters with their declaration.
struct kops_host_parameter {
    const char *name; // of the type, or of what it points to: "... T = const __half]" or so, as the compiler says it
    unsigned size;    // bytes
    unsigned is_pointer;
};

enum kops_host_op {
    KOPS_HOST_SYNC,
    KOPS_HOST_SHUFFLE,
    KOPS_HOST_BALLOT,
    KOPS_HOST_MATCH_ANY,
    KOPS_HOST_MATCH_ALL,
    KOPS_HOST_ADD_SIGNED,
    KOPS_HOST_MIN_SIGNED,
    KOPS_HOST_MAX_SIGNED,
    KOPS_HOST_MIN_UNSIGNED,
    KOPS_HOST_MAX_UNSIGNED,
    KOPS_HOST_AND,
    KOPS_HOST_OR,
    KOPS_HOST_XOR,
    KOPS_HOST_ACTIVE,
    KOPS_HOST_TILE,
};

// Operations and modes of arithmetic.cpp; the modes are in its order.
enum kops_host_arithmetic {
    KOPS_HOST_SUM_OF,
    KOPS_HOST_DIFFERENCE_OF,
    KOPS_HOST_PRODUCT_OF,
    KOPS_HOST_QUOTIENT_OF,
    KOPS_HOST_ROOT_OF,
    KOPS_HOST_PRODUCT_AND_SUM_OF,
};
enum kops_host_mode { KOPS_HOST_RN, KOPS_HOST_RZ, KOPS_HOST_RU, KOPS_HOST_RD };

enum kops_host_function {
    KOPS_HOST_ERFINV,
    KOPS_HOST_ERFCINV,
    KOPS_HOST_ERFCX,
    KOPS_HOST_NORMCDF,
    KOPS_HOST_NORMCDFINV,
    KOPS_HOST_BESSEL_I0,
    KOPS_HOST_BESSEL_I1,
};

extern "C" {
float kops_host_compute_float(unsigned op, unsigned mode, float a, float b, float c);
double kops_host_compute_double(unsigned op, unsigned mode, double a, double b, double c);
float kops_host_float_of(unsigned mode, double value);
float kops_host_float_of_signed(unsigned mode, long long value);
float kops_host_float_of_unsigned(unsigned mode, unsigned long long value);
double kops_host_double_of_signed(unsigned mode, long long value);
double kops_host_double_of_unsigned(unsigned mode, unsigned long long value);
double kops_host_special(unsigned function, double x);
// All threads of the block wait; the sum of their values.
unsigned kops_host_barrier(unsigned value, const char *name, const char *file, unsigned line);
// The lanes of the mask wait; the result for the calling one.
unsigned long long kops_host_collective(unsigned op, unsigned mask, unsigned long long value, int source,
                                        const char *name, const char *file, unsigned line);
// The threads of a tile of several warps wait; the value of the one with that rank, if not -1.
unsigned long long kops_host_exchange_in_tile(unsigned size, int rank, unsigned long long value, const char *name,
                                              const char *file, unsigned line);
// The lanes of the warp wait; from then on others may look at what the pointer points to, until the next showing.
void kops_host_show(const void *what, const char *name, const char *file, unsigned line);
void kops_host_look(unsigned lane, void *to, size_t size);
void kops_host_phase_init(kops_host_phase *state, unsigned expected);
// Returns the phase; with `drop` later ones expect as many fewer.
unsigned kops_host_phase_arrive(kops_host_phase *state, unsigned n, int drop);
// Waits until that phase, or the one of its parity, is over.
void kops_host_phase_wait(const kops_host_phase *state, unsigned phase, const char *name, const char *file,
                          unsigned line);
// A copy that runs beside the thread, in the thread's current group or in a barrier's current phase.
void kops_host_copy(void *to, const void *from, size_t size, size_t zeros, const kops_host_phase *barrier);
void kops_host_copies_commit(void);
void kops_host_copies_wait(unsigned prior); // for all groups but the last
unsigned kops_host_lane(void);
unsigned kops_host_thread_index(void);
// Checks an atomic access and returns what is there; nothing else runs until the store, if one follows.
unsigned long long kops_host_atomic(const void *address, size_t size, int reads);
void kops_host_store(void *address, size_t size, unsigned long long bits);
void kops_host_trap(const char *text, const char *file, unsigned line);
void kops_host_misaligned(size_t size, const char *file, unsigned line);
void kops_host_unsupported(const char *text, const char *file, unsigned line);
long long kops_host_clock(void);
}

#endif
