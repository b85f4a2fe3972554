// What a conversion from floating point to an integer gives that cannot hold the value: see _conversions.py.
#include "host.h"

#include <cmath>
#include <cstring>

namespace
{

enum { FEW = 16 }; // basic blocks; less than atomic functions make sure of, which may convert

// As g++ writes it into the object.
struct Conversion {
    kops::Place place;
    const kops::Type *from, *to;
};

// In the kernel's object. An instruction of that width that converts these bits gives `result` instead.
struct Note {
    uint32_t width; // bytes; 0: no note
    uint64_t bits, result;
};

template <typename To, typename From> To same_bits(From value)
{
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To result;
    memcpy(&result, &value, sizeof result);
    return result;
}

// As PTX's cvt has it.
uint64_t nearest(double value, bool of_double, unsigned bits, bool is_signed)
{
    if (value != value)
        return of_double || bits == 64 ? uint64_t(1) << (bits - 1) : 0;
    double limit = std::ldexp(1.0, int(bits - is_signed));
    uint64_t most = ~uint64_t(0) >> (64 - bits + is_signed);
    if (value >= limit)
        return most;
    if (value <= (is_signed ? -limit : 0.0))
        return is_signed ? ~most : 0;
    return is_signed ? uint64_t(int64_t(value)) : uint64_t(value);
}

} // namespace

extern "C" void kops_host_note_conversion(const Conversion *what, uintptr_t handle, Note *note)
{
    unsigned bits = 1u << (what->to->info >> 1);
    bool is_signed = what->to->info & 1, of_double = what->from->info == 64;
    if (bits > 64 || what->from->info > 64 || !kops::run.current)
        return;
    if (kops::run.budget < FEW) // no other thread comes between the note and its instruction
        kops::fiber_spin();
    double value = of_double ? same_bits<double>(uint64_t(handle)) : double(same_bits<float>(uint32_t(handle)));
    uint64_t result = nearest(value, of_double, bits < 32 ? 32 : bits, is_signed);
    note->bits = of_double ? handle : uint32_t(handle);
    note->result = result;
    // Unsigned conversions are signed ones of 64 bits. One to 64 bits takes 2^63 off a large value before, and adds it
    // after.
    if (bits == 64 && !is_signed && value >= 0x1p63) {
        value -= 0x1p63;
        note->bits = of_double ? same_bits<uint64_t>(value) : same_bits<uint32_t>(float(value));
        note->result = result ^ uint64_t(1) << 63;
    }
    note->width = bits == 64 || (bits == 32 && !is_signed) ? 8 : 4;
}
