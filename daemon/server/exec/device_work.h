/* How many jobs each device has. Thread: loop. */
#ifndef KOPS_SERVER_EXEC_DEVICE_WORK_H
#define KOPS_SERVER_EXEC_DEVICE_WORK_H

#include "server/exec/run.h"

/* A job was given to the device. */
void device_work_submitted(struct server *s, struct run *run);
/* A job's done() came. */
void device_work_ended(struct server *s, struct run *run);

#endif
