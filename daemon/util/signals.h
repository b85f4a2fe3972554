/* Signals that mean nothing to the daemon's processes. Thread: main, before there are others. */
#ifndef KOPS_UTIL_SIGNALS_H
#define KOPS_UTIL_SIGNALS_H

/* Ignores signals that the daemon has no use for and whose default action ends the process: of users, clocks, input and
 * output, power, closed pipes, and the real-time signals. Signals that are sent on purpose to end a process (SIGTERM,
 * SIGQUIT, SIGABRT, ...), faults, and resource limits keep their action. */
void signals_ignore_stray(void);

/* Ignores these signals and SIGHUP in a process that serves the daemon: only the daemon reads its settings again. */
void signals_prepare_helper(void);

#endif
