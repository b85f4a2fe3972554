#include "blaslt_support.h"

#include <dlfcn.h>

unsigned *heuristics, *products, *wrong, *handles, *misaligned;
int *compute, *fast_sums;
struct backend_memory *memory[3];
struct backend_stream *stream;

int open_with_library(uint64_t bytes)
{
    void *library;

    open_device(KOPS_FAKE_BLASLT);
    library = dlopen(KOPS_FAKE_BLASLT, RTLD_NOW | RTLD_NOLOAD);
    assert_non_null(library);
    heuristics = dlsym(library, "fake_blaslt_heuristics");
    products = dlsym(library, "fake_blaslt_products");
    wrong = dlsym(library, "fake_blaslt_wrong");
    handles = dlsym(library, "fake_blaslt_handles");
    misaligned = dlsym(library, "fake_blaslt_misaligned");
    compute = dlsym(library, "fake_blaslt_compute");
    fast_sums = dlsym(library, "fake_blaslt_fast_sums");
    for (unsigned i = 0; i < 3; i++)
        memory[i] = device_memory(bytes);
    stream = stream_open();
    keep_opened();
    return 0;
}

int close_all(void **state)
{
    teardown(state);
    return *handles == 0 ? 0 : -1;
}

struct view strided(unsigned operand, uint64_t offset, int64_t rows, int64_t columns, int64_t row, int64_t column)
{
    return (struct view){.memory = memory[operand],
                         .offset = offset,
                         .rank = 2,
                         .shape = {rows, columns},
                         .strides = {row, column},
                         .strided = true};
}
