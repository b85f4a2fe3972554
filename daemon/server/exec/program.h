/* Programs: sequences that a connection keeps and runs by id. Thread: loop. */
#ifndef KOPS_SERVER_PROGRAM_H
#define KOPS_SERVER_PROGRAM_H

#include "server/exec/command_list.h"
#include "server/types.h"

struct program;

/* Fills r->run.body and the rest of what the job is from the program and the bindings. */
int program_bind(struct request *r, const struct rpc_arg *args, struct error *e);
/* The run is over: takes its body back, and lets go. */
void program_end_run(struct run *run);

/* A run of the program has ended well: notes its ops for the profile, where they appear at the next look. */
void program_count_run(struct run *run);
/* Brings the profile up to date. */
void programs_profile(struct server *s);

/* Forgets the program; runs of it still finish. */
void program_drop(struct connection *c, struct program *p);

#endif
