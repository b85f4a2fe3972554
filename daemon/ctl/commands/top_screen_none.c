/* In place of the live view, where kopsctl is built without ncurses. */
#include "base/complain.h"
#include "top.h"

enum ctl_exit top_screen(struct ctl *ctl, double delay_s, enum top_sort by)
{
    (void)ctl;
    (void)delay_s;
    (void)by;
    return ctl_complain("unsupported",
                        "this kopsctl was built without ncurses and has no live view; `kopsctl top --batch` prints "
                        "tables instead");
}
