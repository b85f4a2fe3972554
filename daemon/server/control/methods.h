/* The table of methods that control/ gives to peer/. Constant. Thread: any. */
#ifndef KOPS_SERVER_CONTROL_METHODS_H
#define KOPS_SERVER_CONTROL_METHODS_H

#include "server/peer/request.h"

/* METHOD_COUNT entries, which live as long as the process. */
const struct method_entry *methods_table(void);

#endif
