// Numbers that the processor or the C library gives otherwise: directed rounding, functions, conversions to integers.
#include "host.h"

#include <cfenv>
#include <cmath>
#include <cstring>

// Arithmetic with directed rounding: the processor's, with its mode changed for one operation.

namespace
{

const int MODES[] = {FE_TONEAREST, FE_TOWARDZERO, FE_UPWARD, FE_DOWNWARD};

// Operands and results are volatile, so that nothing is computed before the mode is set or after it is set back.
template <typename T, typename F> T rounded(unsigned mode, F operation)
{
    std::fesetround(MODES[mode]);
    volatile T result = operation();
    std::fesetround(FE_TONEAREST);
    return result;
}

template <typename T> T compute(unsigned op, unsigned mode, T a, T b, T c)
{
    volatile T x = a, y = b, z = c;
    switch (op) {
    case KOPS_HOST_SUM_OF:
        return rounded<T>(mode, [&] { return x + y; });
    case KOPS_HOST_DIFFERENCE_OF:
        return rounded<T>(mode, [&] { return x - y; });
    case KOPS_HOST_PRODUCT_OF:
        return rounded<T>(mode, [&] { return x * y; });
    case KOPS_HOST_QUOTIENT_OF:
        return rounded<T>(mode, [&] { return x / y; });
    case KOPS_HOST_ROOT_OF:
        return rounded<T>(mode, [&] { return std::sqrt(x); });
    default:
        return rounded<T>(mode, [&] { return std::fma(x, y, z); });
    }
}

template <typename T, typename From> T converted(unsigned mode, From value)
{
    volatile From x = value;
    return rounded<T>(mode, [&] { return T(x); });
}

} // namespace

extern "C" {

float kops_host_compute_float(unsigned op, unsigned mode, float a, float b, float c)
{
    return compute(op, mode, a, b, c);
}

double kops_host_compute_double(unsigned op, unsigned mode, double a, double b, double c)
{
    return compute(op, mode, a, b, c);
}

float kops_host_float_of(unsigned mode, double value)
{
    return converted<float>(mode, value);
}

float kops_host_float_of_signed(unsigned mode, long long value)
{
    return converted<float>(mode, value);
}

float kops_host_float_of_unsigned(unsigned mode, unsigned long long value)
{
    return converted<float>(mode, value);
}

double kops_host_double_of_signed(unsigned mode, long long value)
{
    return converted<double>(mode, value);
}

double kops_host_double_of_unsigned(unsigned mode, unsigned long long value)
{
    return converted<double>(mode, value);
}
}

// Mathematical functions that the C library lacks, computed in long double.

namespace
{

const long double ROOT_OF_PI = 1.772453850905516027298167483341145183L,
                  ROOT_OF_TWO = 1.414213562373095048801688724209698079L;

long double scaled_erfc(long double x)
{
    if (x < 50)
        return std::exp(x * x) * std::erfc(x);
    long double square = 1 / (2 * x * x); // the first terms of the asymptotic series
    return (1 - square * (1 - 3 * square * (1 - 5 * square * (1 - 7 * square)))) / (x * ROOT_OF_PI);
}

// By Newton's method for the logarithm of erfc(x), where that is at most 1/2.
long double inverse_of_small_erfc(long double y)
{
    long double wanted = std::log(y), x = std::sqrt(-wanted);
    for (int i = 0; i < 60; i++) {
        // erfc is largest at the begin and shrinks faster than any number: its logarithm stays exact by its scaled
        // form.
        long double scaled = scaled_erfc(x), step = (std::log(scaled) - x * x - wanted) * ROOT_OF_PI * scaled / 2;
        x += step;
        if (std::fabs(step) <= std::fabs(x) * 1e-19L)
            break;
    }
    return x;
}

long double inverse_of_erf(long double y)
{
    if (!(std::fabs(y) < 1))
        return std::fabs(y) == 1 ? y * HUGE_VALL : NAN;
    if (std::fabs(y) > 0.5L)
        return std::copysign(inverse_of_small_erfc(1 - std::fabs(y)), y);
    long double x = y * ROOT_OF_PI / 2;
    for (int i = 0; i < 8 && x != 0; i++)
        x -= (std::erf(x) - y) * ROOT_OF_PI / 2 * std::exp(x * x);
    return x;
}

long double inverse_of_erfc(long double y)
{
    if (!(y >= 0 && y <= 2))
        return NAN;
    if (y == 0 || y == 2)
        return y == 0 ? HUGE_VALL : -HUGE_VALL;
    return y <= 0.5L ? inverse_of_small_erfc(y) : y >= 1.5L ? -inverse_of_small_erfc(2 - y) : inverse_of_erf(1 - y);
}

// The modified Bessel function of order 0 or 1, by its series: all terms are positive.
long double bessel_i(int order, long double x)
{
    long double quarter = x * x / 4, term = order ? x / 2 : 1, sum = term;
    if (!(std::fabs(x) < 800)) // where a double holds none
        return order && x < 0 ? -HUGE_VALL : x != x ? x : HUGE_VALL;
    for (int k = 1; std::fabs(term) > std::fabs(sum) * 1e-20L; k++) {
        term *= quarter / k / (k + order);
        sum += term;
    }
    return sum;
}

} // namespace

extern "C" double kops_host_special(unsigned function, double x)
{
    switch (function) {
    case KOPS_HOST_ERFINV:
        return double(inverse_of_erf(x));
    case KOPS_HOST_ERFCINV:
        return double(inverse_of_erfc(x));
    case KOPS_HOST_ERFCX:
        return double(scaled_erfc(x));
    case KOPS_HOST_NORMCDF:
        return double(std::erfc(-(x / ROOT_OF_TWO)) / 2);
    case KOPS_HOST_NORMCDFINV:
        return double(-ROOT_OF_TWO * inverse_of_erfc(2 * (long double)x));
    default:
        return double(bessel_i(function == KOPS_HOST_BESSEL_I1, x));
    }
}

// Conversions from floating point to an integer that cannot hold the value: see _conversions.py.

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
