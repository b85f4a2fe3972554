/* Resolves CUPTI's functions. */
#include "cupti.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "driver/cupti_library.h"

int cupti_load(struct cupti *ret, char *why, size_t why_size)
{
    void *library = cupti_library(why, why_size), *symbol;

    if (!library)
        return -1;
#define X(Name)                                                                                                        \
    symbol = dlsym(library, "cupti" #Name);                                                                            \
    if (!symbol) {                                                                                                     \
        snprintf(why, why_size, "CUPTI has no cupti" #Name ": it is too old");                                         \
        return -1;                                                                                                     \
    }                                                                                                                  \
    memcpy(&ret->Name, &symbol, sizeof(symbol));
    CUPTI_FUNCTIONS(X)
#undef X
    return 0;
}
