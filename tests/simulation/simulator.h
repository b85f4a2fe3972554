/* The simulator's own: the programs it runs, and what happens to them. */
#ifndef KOPS_TESTS_SIMULATION_SIMULATOR_H
#define KOPS_TESTS_SIMULATION_SIMULATOR_H

#include <sys/types.h>

#include "world.h"

enum { PROGRAMS = 64, DAEMON = 0 };

struct program {
    char **arguments;
    pid_t pid; /* 0: it has ended */
    int status;
    bool killed, restarts;
};

extern struct world *w;
extern struct program programs[PROGRAMS];
extern unsigned n_programs;
extern bool last_waits; /* the last client begins when the others have ended */

/* simulator.c */
char state_of(pid_t pid);     /* as in /proc/PID/stat; Z: it has ended */
void wait_for_end(pid_t pid); /* it was killed, or exits */
void ask_to_end(pid_t pid);   /* SIGTERM */

/* holdings.c */
bool holdings_left(char *told, size_t size); /* of clients: false, or a sentence */

/* events.c */
bool event_exists(const char *what);
void event_happens(const char *what);
uint64_t events_expire(void);  /* undoes those whose time is over; returns when the next one's is */
void events_forget(pid_t pid); /* it has ended */
void events_ended(pid_t pid);  /* tells the clients that it has */
void happened_open(const char *path);
void control_open(const char *path);

#endif
