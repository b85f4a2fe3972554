// Shifts by as many bits as a number has or more, as a GPU has them: nothing is left but the sign. The count is of 32
// bits. The source's `a << b` comes here as `a << kops_host_shift + b`, its `a <<= b` as `a <<= kops_host_shift_to = b`
// (_source.py). Operands that are no numbers, such as streams, are shifted as ever.
#ifndef KOPS_HOST_SHIFTS_H
#define KOPS_HOST_SHIFTS_H

template <typename T> struct kops_host_shift_count {
    T value; // a number, or what an operand of another type is: itself, or a reference
};

template <typename T>
constexpr bool kops_host_is_number = std::is_arithmetic<typename std::remove_reference<T>::type>::value ||
                                     std::is_enum<typename std::remove_reference<T>::type>::value;

template <typename T> using kops_host_if_number = typename std::enable_if<kops_host_is_number<T>, int>::type;
template <typename T> using kops_host_if_other = typename std::enable_if<!kops_host_is_number<T>, int>::type;

struct kops_host_shift_of {
    // Numbers by value: they may be fields of bits.
    template <typename T, kops_host_if_number<T> = 0>
    friend KOPS_HOST constexpr kops_host_shift_count<T> operator+(kops_host_shift_of, T value)
    {
        return {value};
    }

    template <typename T, kops_host_if_other<T> = 0>
    friend KOPS_HOST constexpr kops_host_shift_count<T> operator+(kops_host_shift_of, T &&value)
    {
        return {static_cast<T &&>(value)};
    }
};

struct kops_host_shift_to_of {
    template <typename T, kops_host_if_number<T> = 0>
    KOPS_HOST constexpr kops_host_shift_count<T> operator=(T value) const
    {
        return {value};
    }

    template <typename T, kops_host_if_other<T> = 0>
    KOPS_HOST constexpr kops_host_shift_count<T> operator=(T &&value) const
    {
        return {static_cast<T &&>(value)};
    }
};

constexpr kops_host_shift_of kops_host_shift{};
constexpr kops_host_shift_to_of kops_host_shift_to{};

// A count that is a sum: `a << b + c`.
#define KOPS_HOST_SUM(OP)                                                                                              \
    template <typename T, typename U, kops_host_if_number<U> = 0>                                                      \
    KOPS_HOST constexpr auto operator OP(kops_host_shift_count<T> count, U more)                                       \
    {                                                                                                                  \
        return kops_host_shift + (static_cast<T &&>(count.value) OP more);                                             \
    }                                                                                                                  \
    template <typename T, typename U, kops_host_if_other<U> = 0>                                                       \
    KOPS_HOST constexpr auto operator OP(kops_host_shift_count<T> count, U &&more)                                     \
    {                                                                                                                  \
        return kops_host_shift + (static_cast<T &&>(count.value) OP static_cast<U &&>(more));                          \
    }

KOPS_HOST_SUM(+)
KOPS_HOST_SUM(-)

#undef KOPS_HOST_SUM

template <typename R> KOPS_HOST constexpr R kops_host_shifted_left(R value, unsigned count)
{
    typedef typename std::make_unsigned<R>::type Bits;
    return count < 8 * sizeof(R) ? R(Bits(value) << count) : R(0);
}

template <typename R> KOPS_HOST constexpr R kops_host_shifted_right(R value, unsigned count)
{
    return count < 8 * sizeof(R) ? R(value >> count) : value < R(0) ? R(-1) : R(0);
}

#define KOPS_HOST_SHIFT(OP, FUNCTION)                                                                                  \
    template <typename A, typename T, kops_host_if_number<A> = 0, kops_host_if_number<T> = 0>                          \
    KOPS_HOST constexpr auto operator OP(A value, kops_host_shift_count<T> count)->decltype(value OP count.value)      \
    {                                                                                                                  \
        return FUNCTION<decltype(value OP count.value)>(value, unsigned(count.value));                                 \
    }                                                                                                                  \
    template <typename A, typename T,                                                                                  \
              typename std::enable_if<!kops_host_is_number<A> || !kops_host_is_number<T>, int>::type = 0>              \
    KOPS_HOST constexpr auto operator OP(A &&value, kops_host_shift_count<T> count)                                    \
        ->decltype(static_cast<A &&>(value) OP static_cast<T &&>(count.value))                                         \
    {                                                                                                                  \
        return static_cast<A &&>(value) OP static_cast<T &&>(count.value);                                             \
    }                                                                                                                  \
    template <typename A, typename T, kops_host_if_number<A> = 0, kops_host_if_number<T> = 0>                          \
    KOPS_HOST constexpr A &operator OP##=(A &value, kops_host_shift_count<T> count)                                    \
    {                                                                                                                  \
        return value = typename std::remove_cv<A>::type(value OP count);                                               \
    }                                                                                                                  \
    template <typename A, typename T,                                                                                  \
              typename std::enable_if<!kops_host_is_number<A> || !kops_host_is_number<T>, int>::type = 0>              \
    KOPS_HOST constexpr decltype(auto) operator OP##=(A &&value, kops_host_shift_count<T> count)                       \
    {                                                                                                                  \
        return static_cast<A &&>(value) OP## = static_cast<T &&>(count.value);                                         \
    }

KOPS_HOST_SHIFT(<<, kops_host_shifted_left)
KOPS_HOST_SHIFT(>>, kops_host_shifted_right)

#undef KOPS_HOST_SHIFT

#endif
