/* The state of this room: the code service, and the modules on devices. Only files of this folder include it. Thread:
 * loop. */
#ifndef KOPS_SERVER_CODE_ROOM_H
#define KOPS_SERVER_CODE_ROOM_H

#include "compile/service.h"
#include "server/code/kernel.h"
#include "util/idtable.h"

struct modules {
    struct code_service *service;
    const struct compile_observer *observer;
    struct list used, idle; /* struct module: with references; without, the least recently used first */
    unsigned n_idle, n_loading;
};

struct connection_code {
    struct idtable modules; /* struct client_module */
    struct idtable kernels; /* struct kernel */
    struct list compiles;   /* compile requests that wait, by queue_link */
};

#endif
