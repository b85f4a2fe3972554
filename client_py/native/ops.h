/* kops._native.Ops: launches of built-in ops in this process, for one client. Its methods are in here_op.c; op_method.c
 * uses it to launch without Python in between. */
#ifndef KOPS_PYTHON_OPS_H
#define KOPS_PYTHON_OPS_H

#include "here/op.h"

#include "python_native.h"

enum { OPS_MOST = 128, OPS_DEVICES = 16 };

/* Places where calls run. */
enum place { PLACE_DAEMON, PLACE_HERE, PLACE_AUTO };

/* Decisions of "auto". */
enum decision { DECISION_NONE, DECISION_DAEMON, DECISION_HERE };

struct ops {
    PyObject ob_base;
    struct here_ops *counts;
    PyObject *scopes, *batches, *submitted;       /* the client's dicts: see Calls; NULL: not attached */
    enum place place;                             /* place of a call that names none */
    unsigned char decided[OPS_MOST][OPS_DEVICES]; /* enum decision; by an op's number and a device's */
};

extern PyTypeObject *ops_type; /* the module's, for checks */

#endif
