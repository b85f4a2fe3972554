// Calling a kernel with arguments that are given by address, and what its parameters are.
#ifndef KOPS_HOST_ENTRY_H
#define KOPS_HOST_ENTRY_H

template <typename T> constexpr unsigned char kops_host_category()
{
    typedef typename std::remove_cv<T>::type Plain;
    if (std::is_void<Plain>::value)
        return 'v';
    if (std::is_pointer<Plain>::value)
        return 'p';
    if (std::is_same<Plain, bool>::value)
        return 'b';
    if (std::is_floating_point<Plain>::value)
        return 'f';
    if (std::is_enum<Plain>::value || !std::is_integral<Plain>::value)
        return 'c';
    return std::is_signed<Plain>::value ? 'i' : 'u';
}

template <typename T> constexpr unsigned kops_host_size()
{
    if constexpr (std::is_void<T>::value || std::is_function<T>::value)
        return 0;
    else
        return sizeof(T);
}

template <typename T> constexpr kops_host_parameter kops_host_describe()
{
    typedef typename std::remove_pointer<T>::type Element;
    return {unsigned(sizeof(T)),
            kops_host_category<T>(),
            kops_host_category<Element>(),
            std::is_const<Element>::value,
            0,
            kops_host_size<Element>()};
}

template <auto F> struct kops_host_entry_of;

template <typename... P, void (*F)(P...)> struct kops_host_entry_of<F> {
    static constexpr unsigned n = sizeof...(P);
    static constexpr kops_host_parameter parameters[n + 1] = {kops_host_describe<P>()..., {}};

    template <size_t... I>
    __attribute__((no_sanitize("thread"))) static void call(void **arguments, std::index_sequence<I...>)
    {
        F(*static_cast<typename std::remove_cv<P>::type *>(arguments[I])...);
    }

    __attribute__((no_sanitize("thread"))) static void call(void **arguments)
    {
        (void)arguments;
        call(arguments, std::make_index_sequence<n>());
    }
};

#endif
