/* Intrusive doubly linked list. An initialised head or a removed node points at itself.
 * Not thread safe. */
#ifndef KOPS_UTIL_LIST_H
#define KOPS_UTIL_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct list {
    struct list *prev, *next;
};

#define list_entry(node, type, member) ((type *)(void *)((char *)(node)-offsetof(type, member)))

/* Iterates over nodes; `node` may be removed in the body. */
#define list_for_each_safe(node, after, head)                                                                          \
    for (struct list *node = (head)->next, *after = node->next; node != (head); node = after, after = node->next)

/* Iterates over the structs that the nodes are in; `name` may be removed, and freed, in the body. */
#define list_each(type, name, member, head)                                                                            \
    for (type *name = list_entry((head)->next, type, member),                                                          \
              *name##_after = list_entry(name->member.next, type, member);                                             \
         &name->member != (head); name = name##_after, name##_after = list_entry(name->member.next, type, member))

static inline void list_init(struct list *l)
{
    l->prev = l->next = l;
}

static inline bool list_empty(const struct list *head)
{
    return head->next == head;
}

static inline void list_append(struct list *head, struct list *node)
{
    node->prev = head->prev;
    node->next = head;
    head->prev->next = node;
    head->prev = node;
}

static inline void list_remove(struct list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    node->prev = node->next = node;
}

/* Makes `to` the head of all that `from` has, which is empty afterwards. */
static inline void list_take(struct list *to, struct list *from)
{
    list_append(from, to);
    list_remove(from);
}

static inline struct list *list_first(const struct list *head)
{
    return head->next == head ? NULL : head->next;
}

/* Removes the first node and returns it; NULL: there is none. */
static inline struct list *list_pop(struct list *head)
{
    struct list *node = head->next;

    if (node == head)
        return NULL;
    list_remove(node);
    return node;
}

#endif
