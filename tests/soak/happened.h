/* What the simulator tells its clients of what it does to others, so that a client knows which errors that explains.
 * The simulator writes a page of this; the clients map the file that $KOPS_SIMULATION_HAPPENED names. */
#ifndef SOAK_HAPPENED_H
#define SOAK_HAPPENED_H

#include <stdint.h>

#define HAPPENED_VARIABLE "KOPS_SIMULATION_HAPPENED"

enum happened_what {
    HAPPENED_DAEMON_ENDS,  /* it is asked to end, until it has ended, or was killed */
    HAPPENED_DAEMON_SLOW,  /* it gets no processor time */
    HAPPENED_DAEMON_SHORT, /* it can open few descriptors only */
    HAPPENED_PROCESS_ENDS, /* an executor or a helper */
    HAPPENED_PROCESS_SLOW, /* one of them gets no processor time */
    HAPPENED_CLIENT_SLOW,  /* the same of a client */
    HAPPENED_GPU_HANGS,    /* its kernels do not end */
    HAPPENED_GPU_FAULTS,   /* a call of its driver will fail, or a kernel: nobody knows when it is over */
    HAPPENED_KINDS
};

struct happened {
    struct {
        _Atomic uint64_t begun, over; /* how often */
        _Atomic uint64_t last_ns;     /* of CLOCK_MONOTONIC: it began, or was over */
    } of[HAPPENED_KINDS];
};

#endif
