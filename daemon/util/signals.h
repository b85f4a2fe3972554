/* Signals that mean nothing to the daemon's processes. Thread: main, before there are others. */
#ifndef KOPS_UTIL_SIGNALS_H
#define KOPS_UTIL_SIGNALS_H

/* Ignores the signals without a use here whose default action ends the process: of users, clocks, input and output,
 * power, closed pipes, and the real-time signals. What a program does on purpose to end a process (SIGTERM, SIGQUIT,
 * SIGABRT, ...), faults, and limits of resources keep their action. */
void signals_ignore_stray(void);

/* The same in a process that serves the daemon, and SIGHUP: settings are the daemon's to read again. */
void signals_prepare_helper(void);

#endif
