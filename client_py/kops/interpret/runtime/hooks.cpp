// The functions that instrumented code calls: before each access of memory (the interface of the thread sanitizer,
// whose own library is not used), for an index outside a declared array, and for atomic operations.
#include "host.h"

#include <cstdio>
#include <cstring>

#define HOOKS(N)                                                                                                       \
    void __tsan_read##N(void *p)                                                                                       \
    {                                                                                                                  \
        kops::access(p, N, kops::READ, KOPS_PC);                                                                       \
    }                                                                                                                  \
    void __tsan_write##N(void *p)                                                                                      \
    {                                                                                                                  \
        kops::access(p, N, kops::WRITE, KOPS_PC);                                                                      \
    }                                                                                                                  \
    void __tsan_volatile_read##N(void *p)                                                                              \
    {                                                                                                                  \
        kops::access(p, N, kops::READ, KOPS_PC);                                                                       \
    }                                                                                                                  \
    void __tsan_volatile_write##N(void *p)                                                                             \
    {                                                                                                                  \
        kops::access(p, N, kops::WRITE, KOPS_PC);                                                                      \
    }                                                                                                                  \
    void __tsan_read_write##N(void *p)                                                                                 \
    {                                                                                                                  \
        kops::access(p, N, kops::READ, KOPS_PC);                                                                       \
        kops::access(p, N, kops::WRITE, KOPS_PC);                                                                      \
    }                                                                                                                  \
    void __tsan_unaligned_read##N(void *p)                                                                             \
    {                                                                                                                  \
        kops::access_bytes(p, N, kops::READ, KOPS_PC);                                                                 \
    }                                                                                                                  \
    void __tsan_unaligned_write##N(void *p)                                                                            \
    {                                                                                                                  \
        kops::access_bytes(p, N, kops::WRITE, KOPS_PC);                                                                \
    }                                                                                                                  \
    void __tsan_unaligned_read_write##N(void *p)                                                                       \
    {                                                                                                                  \
        kops::access_bytes(p, N, kops::READ, KOPS_PC);                                                                 \
        kops::access_bytes(p, N, kops::WRITE, KOPS_PC);                                                                \
    }

// Nothing else runs until the thread waits, so plain operations are atomic.
#define ATOMICS(BITS, T)                                                                                               \
    T __tsan_atomic##BITS##_load(const volatile T *p, int)                                                             \
    {                                                                                                                  \
        kops::access(const_cast<const T *>(p), sizeof(T), kops::ATOMIC, KOPS_PC);                                      \
        return *p;                                                                                                     \
    }                                                                                                                  \
    void __tsan_atomic##BITS##_store(volatile T *p, T v, int)                                                          \
    {                                                                                                                  \
        kops::access(const_cast<const T *>(p), sizeof(T), kops::ATOMIC_STORE, KOPS_PC);                                \
        *p = v;                                                                                                        \
    }                                                                                                                  \
    FETCH(BITS, T, exchange, v)                                                                                        \
    FETCH(BITS, T, fetch_add, T(old + v))                                                                              \
    FETCH(BITS, T, fetch_sub, T(old - v))                                                                              \
    FETCH(BITS, T, fetch_and, T(old &v))                                                                               \
    FETCH(BITS, T, fetch_or, T(old | v))                                                                               \
    FETCH(BITS, T, fetch_xor, T(old ^ v))                                                                              \
    FETCH(BITS, T, fetch_nand, T(~(old & v)))                                                                          \
    int __tsan_atomic##BITS##_compare_exchange_strong(volatile T *p, T *expected, T v, int, int)                       \
    {                                                                                                                  \
        kops::access(const_cast<const T *>(p), sizeof(T), kops::ATOMIC, KOPS_PC);                                      \
        T old = *p;                                                                                                    \
        if (old == *expected) {                                                                                        \
            *p = v;                                                                                                    \
            return 1;                                                                                                  \
        }                                                                                                              \
        *expected = old;                                                                                               \
        return 0;                                                                                                      \
    }                                                                                                                  \
    int __tsan_atomic##BITS##_compare_exchange_weak(volatile T *p, T *expected, T v, int a, int b)                     \
    {                                                                                                                  \
        return __tsan_atomic##BITS##_compare_exchange_strong(p, expected, v, a, b);                                    \
    }                                                                                                                  \
    T __tsan_atomic##BITS##_compare_exchange_val(volatile T *p, T expected, T v, int a, int b)                         \
    {                                                                                                                  \
        __tsan_atomic##BITS##_compare_exchange_strong(p, &expected, v, a, b);                                          \
        return expected;                                                                                               \
    }

#define FETCH(BITS, T, NAME, VALUE)                                                                                    \
    T __tsan_atomic##BITS##_##NAME(volatile T *p, T v, int)                                                            \
    {                                                                                                                  \
        kops::access(const_cast<const T *>(p), sizeof(T), kops::ATOMIC, KOPS_PC);                                      \
        T old = *p;                                                                                                    \
        *p = VALUE;                                                                                                    \
        return old;                                                                                                    \
    }

namespace kops
{
namespace
{
// What may be of any alignment.
void access_bytes(const void *p, size_t size, Access access, uintptr_t pc)
{
    for (size_t i = 0; i < size; i++)
        kops::access(static_cast<const char *>(p) + i, 1, access, pc);
}

void *move(void *to, const void *from, size_t size, uintptr_t pc)
{
    access_range(from, size, READ, pc);
    access_range(to, size, WRITE, pc);
    return memmove(to, from, size);
}

void *fill(void *to, int value, size_t size, uintptr_t pc)
{
    access_range(to, size, WRITE, pc);
    return memset(to, value, size);
}

// As the compilers write it into the object.
struct Bounds {
    Place place;
    const Type *array, *index;
};

[[noreturn]] void bad_index(const Bounds &bounds, uintptr_t handle)
{
    Report &report = report_start(OUT_OF_BOUNDS, run.current);
    report.where = LOCAL_ARRAY;
    report_place(report, bounds.place);
    unsigned bits = 1u << (bounds.index->info >> 1);
    bool is_signed = bounds.index->info & 1;
    uint64_t value = bits > 64 ? *reinterpret_cast<const uint64_t *>(handle) : handle;
    if (is_signed && bits < 64)
        value = uint64_t(int64_t(value << (64 - bits)) >> (64 - bits));
    report.address = value;
    snprintf(report.text, sizeof report.text, is_signed ? "index %lld of an array %s" : "index %llu of an array %s",
             static_cast<long long>(value), bounds.array->name);
    stop();
}
struct Mismatch {
    Place place;
    const Type *type;
    unsigned char log_alignment, check;
};

[[noreturn]] void bad_alignment(const Mismatch &mismatch, uintptr_t address)
{
    Report &report = report_start(MISALIGNED, run.current);
    report.where = NOWHERE;
    report_place(report, mismatch.place);
    report.address = address;
    snprintf(report.text, sizeof report.text, "access of %s at an address that is no multiple of %u",
             mismatch.type->name, 1u << mismatch.log_alignment);
    stop();
}
// As the compilers write it into the object.
struct Overflowing {
    Place place;
    const Type *type;
};

int64_t value_of(const Type &type, uintptr_t handle)
{
    unsigned bits = 1u << (type.info >> 1);
    if (bits > 64)
        return 0;
    return type.info & 1 ? int64_t(uint64_t(handle) << (64 - bits)) >> (64 - bits) : int64_t(handle);
}

// Not an error by itself: hash functions rely on it. But an index that comes of it is told with it.
void note_overflow(const Overflowing &what, char sign, uintptr_t left, uintptr_t right)
{
    if (!run.current)
        return;
    unsigned bits = 1u << (what.type->info >> 1);
    uint64_t a = uint64_t(value_of(*what.type, left)), b = uint64_t(value_of(*what.type, right));
    uint64_t wrapped = sign == '*' ? a * b : sign == '+' ? a + b : a - b;
    if (bits < 64)
        wrapped = uint64_t(int64_t(wrapped << (64 - bits)) >> (64 - bits));
    run.overflow = {what.type->name, int64_t(a), int64_t(b), int64_t(wrapped), sign, run.current->index, what.place};
}

[[noreturn]] void divided_by_zero(const Overflowing &what)
{
    report_place(report_start(DIVISION_BY_ZERO, run.current), what.place);
    stop();
}

} // namespace
} // namespace kops

extern "C" {

void __ubsan_handle_add_overflow(kops::Overflowing *what, uintptr_t a, uintptr_t b)
{
    kops::note_overflow(*what, '+', a, b);
}

void __ubsan_handle_sub_overflow(kops::Overflowing *what, uintptr_t a, uintptr_t b)
{
    kops::note_overflow(*what, '-', a, b);
}

void __ubsan_handle_mul_overflow(kops::Overflowing *what, uintptr_t a, uintptr_t b)
{
    kops::note_overflow(*what, '*', a, b);
}

void __ubsan_handle_negate_overflow(kops::Overflowing *what, uintptr_t a)
{
    kops::note_overflow(*what, '-', 0, a);
}

// Of the least number by -1, too, which is none: see report.cpp.
void __ubsan_handle_divrem_overflow(kops::Overflowing *what, uintptr_t, uintptr_t divisor)
{
    bool wide = 1u << (what->type->info >> 1) > 64;
    if (kops::run.current && (wide ? !*reinterpret_cast<const unsigned __int128 *>(divisor) : !divisor))
        kops::divided_by_zero(*what);
}

HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)

ATOMICS(8, uint8_t)
ATOMICS(16, uint16_t)
ATOMICS(32, uint32_t)
ATOMICS(64, uint64_t)

void __tsan_init()
{
}

void __tsan_func_entry(void *)
{
}

void __tsan_func_exit()
{
}

void __tsan_vptr_update(void **p, void *)
{
    kops::access(p, sizeof *p, kops::WRITE, KOPS_PC);
}

void __tsan_vptr_read(void **p)
{
    kops::access(p, sizeof *p, kops::READ, KOPS_PC);
}

void __tsan_read_range(void *p, size_t size)
{
    kops::access_range(p, size, kops::READ, KOPS_PC);
}

void __tsan_write_range(void *p, size_t size)
{
    kops::access_range(p, size, kops::WRITE, KOPS_PC);
}

void __tsan_atomic_thread_fence(int)
{
}

void __tsan_atomic_signal_fence(int)
{
}

void *__wrap_memcpy(void *to, const void *from, size_t size)
{
    return kops::move(to, from, size, KOPS_PC);
}

void *__wrap_memmove(void *to, const void *from, size_t size)
{
    return kops::move(to, from, size, KOPS_PC);
}

void *__wrap_memset(void *to, int value, size_t size)
{
    return kops::fill(to, value, size, KOPS_PC);
}

void *__tsan_memcpy(void *to, const void *from, size_t size)
{
    return kops::move(to, from, size, KOPS_PC);
}

void *__tsan_memmove(void *to, const void *from, size_t size)
{
    return kops::move(to, from, size, KOPS_PC);
}

void *__tsan_memset(void *to, int value, size_t size)
{
    return kops::fill(to, value, size, KOPS_PC);
}

unsigned long long kops_host_atomic(const void *address, size_t size, int reads)
{
    kops::fiber_settle();
    kops::access(address, size, reads ? kops::ATOMIC : kops::ATOMIC_STORE, KOPS_PC);
    unsigned long long bits = 0;
    memcpy(&bits, address, size <= sizeof bits ? size : sizeof bits);
    return bits;
}

void kops_host_store(void *address, size_t size, unsigned long long bits)
{
    memcpy(address, &bits, size <= sizeof bits ? size : sizeof bits);
}

void __ubsan_handle_out_of_bounds(kops::Bounds *bounds, uintptr_t index)
{
    if (kops::run.current)
        kops::bad_index(*bounds, index);
}

void __ubsan_handle_type_mismatch_v1(kops::Mismatch *mismatch, uintptr_t address)
{
    if (kops::run.current && address & ((uintptr_t(1) << mismatch->log_alignment) - 1))
        kops::bad_alignment(*mismatch, address);
}

void __ubsan_handle_out_of_bounds_abort(kops::Bounds *bounds, uintptr_t index)
{
    __ubsan_handle_out_of_bounds(bounds, index);
}
}
