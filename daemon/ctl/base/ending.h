/* Working until a signal ends the program: SIGINT, SIGTERM, SIGHUP. */
#ifndef KOPS_CTL_ENDING_H
#define KOPS_CTL_ENDING_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

/* From now on these signals are blocked, for ending_wait(); *ret_ending has them. SIGPIPE is ignored. */
void ending_block(sigset_t *ret_ending);

/* CLOCK_MONOTONIC, in nanoseconds. */
uint64_t ending_clock_ns(void);

/* Waits until that time. True: a signal came, also before. */
bool ending_wait(const sigset_t *ending, uint64_t until_ns);

#endif
