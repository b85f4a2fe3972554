/* Kernels by name, whatever their parameters. */
#ifndef KOPS_TESTS_CUDA_OPS_EMULATED_TABLE_HPP
#define KOPS_TESTS_CUDA_OPS_EMULATED_TABLE_HPP

#include <cstddef>

struct emulated_kernel {
    const char *name;
    size_t params_size;
    void (*call)(void (*kernel)(), const void *params);
    void (*kernel)();
};

template <typename Params> static void emulated_call(void (*kernel)(), const void *params)
{
    reinterpret_cast<void (*)(Params)>(kernel)(*static_cast<const Params *>(params));
}

template <typename Params> static emulated_kernel emulated_entry(const char *name, void (*kernel)(Params))
{
    return {name, sizeof(Params), emulated_call<Params>, reinterpret_cast<void (*)()>(kernel)};
}

extern const emulated_kernel emulated_sm80[], emulated_sm75[];

#endif
