/* Commands that are in the Python package: kopsctl becomes Python, with the command's options. */
#ifndef KOPS_CTL_PYTHON_H
#define KOPS_CTL_PYTHON_H

#include "ctl.h"

enum { PYTHON_ARGUMENTS = 4096, PYTHON_TEXT = 160 };

struct python {
    const char *module, *what; /* "kops.judge"; "a judgement", for errors */
    char program[PYTHON_TEXT], probe[PYTHON_TEXT], seconds[32];
    const char *list[PYTHON_ARGUMENTS]; /* NULL-terminated */
    size_t n;
};

void python_begin(struct python *python, const char *module, const char *what);

/* An option with its value; nothing where the value is NULL. */
void python_add(struct python *python, const char *option, const char *value);

/* An argument, or an option without a value. Returns false where there are too many; the commands' own never are. */
bool python_argument(struct python *python, const char *argument);

/* Adds the options that every command has. */
void python_common(struct python *python, const struct ctl *ctl);

/* Becomes Python, which runs the module's main(). Returns where that is not possible, with an error that says what is
 * missing. */
enum ctl_exit python_become(struct python *python);

#endif
