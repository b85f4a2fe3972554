/* The state of this room: the compiler, and the modules that devices have. Only files of this folder include it.
 * Thread: loop. */
#ifndef KOPS_SERVER_CODE_ROOM_H
#define KOPS_SERVER_CODE_ROOM_H

#include "compile/service.h"
#include "server/code/module.h"
#include "util/idtable.h"

struct modules {
    struct code_service *service;
    struct list used, idle; /* struct module: referred to; kept for the next, least recently used first */
    unsigned n_idle;
};

struct connection_code {
    struct idtable modules; /* struct client_module */
    struct idtable kernels; /* struct kernel */
    struct list compiles;   /* requests that wait for code, by queue_link */
};

#endif
