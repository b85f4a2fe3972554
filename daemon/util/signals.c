#include "util/signals.h"

#include <signal.h>
#include <stddef.h>

void signals_ignore_stray(void)
{
    static const int stray[] = {SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGSTKFLT, SIGIO, SIGPWR, SIGPIPE};

    for (size_t i = 0; i < sizeof(stray) / sizeof(stray[0]); i++)
        signal(stray[i], SIG_IGN);
    for (int number = SIGRTMIN; number <= SIGRTMAX; number++)
        signal(number, SIG_IGN);
}

void signals_prepare_helper(void)
{
    signals_ignore_stray();
    signal(SIGHUP, SIG_IGN);
}
