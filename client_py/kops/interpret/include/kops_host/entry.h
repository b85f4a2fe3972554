// Calling a kernel with arguments that are given by address, and what its parameters are.
#ifndef KOPS_HOST_ENTRY_H
#define KOPS_HOST_ENTRY_H

template <typename T> constexpr const char *kops_host_type_name()
{
    return __PRETTY_FUNCTION__;
}

template <typename T> constexpr kops_host_parameter kops_host_describe()
{
    return {kops_host_type_name<typename std::remove_pointer<T>::type>(), unsigned(sizeof(T)),
            std::is_pointer<T>::value};
}

// The threads of launch bounds.
template <typename... More> constexpr unsigned kops_host_first(unsigned threads, More...)
{
    return threads;
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
