/* What the fuzz targets share: libFuzzer's entry, and a check that ends the process where the input was at fault. */
#ifndef KOPS_TESTS_FUZZ_H
#define KOPS_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_CHECK(condition)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);                                  \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

#endif
