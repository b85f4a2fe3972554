/* The file that hooks.c counts in and adds.c switches on; count-calls reads it. */
#ifndef KOPS_TOOLS_CALLS_TABLE_H
#define KOPS_TOOLS_CALLS_TABLE_H

#include <stdint.h>

enum { CALLS_ROWS = 1 << 16 }; /* far more than the daemon has functions */

struct calls_table {
    _Atomic uint64_t on; /* calls are counted */
    struct calls_row {
        _Atomic uint64_t address, calls;
    } rows[CALLS_ROWS];
};

#endif
