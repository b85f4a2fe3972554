/* Programs: recorded sequences, which a connection runs by id. Thread: loop. */
#ifndef KOPS_SERVER_EXEC_PROGRAM_H
#define KOPS_SERVER_EXEC_PROGRAM_H

#include "server/exec/command_list.h"
#include "server/peer/connection.h"

struct program;
struct run;

/* Fills the run's command list from the program and the bindings. */
int program_bind(struct connection *c, struct run *run, const struct rpc_arg *args, struct error *e);
/* The run has ended: takes its command list back, and drops the run's reference. */
void program_end_run(struct run *run);

/* A run of the program has succeeded. exec_tell_programs() tells the observer. */
void program_count_run(struct run *run);

/* Forgets the program; its runs still finish. -1: unknown_program. */
int connection_release_program(struct connection *c, uint64_t id, struct error *e);
void programs_drop_all(struct connection *c);

#endif
