/* Programs: sequences that a connection keeps and runs by id. Thread: loop. */
#ifndef KOPS_SERVER_EXEC_PROGRAM_H
#define KOPS_SERVER_EXEC_PROGRAM_H

#include "server/exec/command_list.h"
#include "server/peer/connection.h"

struct program;

/* Fills run_of(r)->body and the rest of what the job is from the program and the bindings. */
int program_bind(struct request *r, const struct rpc_arg *args, struct error *e);
/* The run is over: takes its body back, and lets go. */
void program_end_run(struct run *run);

/* A run of the program has ended well: the observer is told of its ops at the next exec_tell_programs(). */
void program_count_run(struct run *run);

/* Forgets the program of that id; runs of it still finish. -1: unknown_program. */
int connection_release_program(struct connection *c, uint64_t id, struct error *e);
void programs_drop_all(struct connection *c);

#endif
