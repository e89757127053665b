#include "walk.h"
#include "clones.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK 256 /* trees that are walked side by side: one waits for memory while others go on */

static void sets_free(tw_sets *s)
{
    free(s->tree);
    free(s->at);
    free(s->value);
    free(s->set);
    *s = (tw_sets){0};
}

void tw_walk_free(tw_walk *w)
{
    free(w->moving);
    sets_free(&w->open);
    sets_free(&w->leaves);
    *w = (tw_walk){0};
}

static int reserve(tw_sets *s, int64_t count)
{
    const int64_t room = 2 * count;
    if (count <= s->room)
        return 0;
    int32_t *tree = realloc(s->tree, room * sizeof *tree);
    s->tree = tree ? tree : s->tree;
    int32_t *at = realloc(s->at, room * sizeof *at);
    s->at = at ? at : s->at;
    double *value = realloc(s->value, room * sizeof *value);
    s->value = value ? value : s->value;
    tw_set *set = realloc(s->set, room * sizeof *set);
    s->set = set ? set : s->set;
    if (!tree || !at || !value || !set || room > INT32_MAX)
        return -1;
    s->room = (int32_t)room;
    return 0;
}

/* Room for all sets of a step, each of which may part. */
static int reserve_open(tw_walk *w, int64_t count)
{
    int32_t before = w->open.room;
    if (reserve(&w->open, 2 * count + 1))
        return -1;
    if (w->open.room != before || !w->moving) {
        free(w->moving);
        w->moving = malloc(w->open.room * sizeof *w->moving);
    }
    return w->moving ? 0 : -1;
}

/* Take each node on while its range decides: all of them a step, then those that moved another. No branch depends on
 * where one goes, so many steps are in flight at once. */
static inline __attribute__((always_inline)) void advance(const tw_cuts *c, int32_t *at, int32_t count, int32_t *moving)
{
    const tw_node *nodes = c->forest->node;
    const tw_range *ranges = c->range;
    for (int32_t i = 0; i < count; i++)
        moving[i] = i;
    while (count) {
        int32_t *left = moving;
        for (const int32_t *next = moving, *end = moving + count; next < end; next++) {
            const uint32_t i = (uint32_t)*next, here = (uint32_t)at[i];
            const tw_node node = nodes[here];
            const tw_range range = ranges[node & 0xff];
            const uint32_t right = node < range.low, decided = right | (node >= range.high);
            const uint32_t step = ((uint32_t)tw_node_step(node) + right) & -decided;
            __builtin_prefetch(nodes + here + step);
            at[i] = (int32_t)(here + step);
            *left = (int32_t)i;
            left += decided;
        }
        count = (int32_t)(left - moving);
    }
}

TW_CLONES int tw_walk_advance(const tw_cuts *c, int32_t *at, int32_t count, tw_walk *w)
{
    if (reserve_open(w, count))
        return -1;
    advance(c, at, count, w->moving);
    return 0;
}

static inline int32_t any(const tw_set *set)
{
    const tw_words w = (tw_words)*set;
    return (w[0] | w[1] | w[2] | w[3]) != 0;
}

/* Move the sets at a leaf to the leaves, part those that a range did not decide for. Results are written for every set
 * and kept where they hold: a branch that depends on a set would be guessed wrong as often as not. */
static inline __attribute__((always_inline)) int settle(const tw_cuts *c, tw_walk *w)
{
    const tw_forest *f = c->forest;
    tw_sets *open = &w->open, *leaves = &w->leaves;
    if (reserve(leaves, (int64_t)leaves->count + open->count + 1))
        return -1;
    int32_t *open_tree = open->tree, *open_at = open->at, *leaf_tree = leaves->tree, *leaf_at = leaves->at;
    tw_set *open_set = open->set, *leaf_set = leaves->set;
    const int32_t count = open->count, n_features = f->n_features;
    int32_t kept = 0, found = leaves->count, splits = 0;
    for (int32_t i = 0; i < count; i++) {
        const int32_t at = open_at[i], is_leaf = tw_node_feature(f->node[at]) == n_features;
        leaf_tree[found] = open_tree[i];
        leaf_at[found] = at;
        leaf_set[found] = open_set[i];
        w->moving[splits] = i;
        found += is_leaf;
        splits += !is_leaf;
    }
    for (int32_t i = leaves->count; i < found; i++)
        leaves->value[i] = tw_value_at(f, leaf_tree[i], leaf_at[i]);
    int32_t added = count;
    for (; kept < splits; kept++) {
        const int32_t i = w->moving[kept], tree = open_tree[i], at = open_at[i];
        const tw_node node = f->node[at];
        tw_set sent;
        if (tw_cuts_unsure(c, tw_node_feature(node)))
            tw_cuts_ask(c, at, &sent);
        else
            tw_cuts_left(c, node, &sent);
        const tw_set left = open_set[i] & sent, right = open_set[i] & ~sent;
        const int32_t any_left = any(&left), any_right = any(&right);
        const uint16_t all_right = any_left ? 0 : UINT16_MAX;
        open_set[added] = right;
        open_set[kept] = left | (right & all_right);
        open_tree[kept] = open_tree[added] = tree;
        open_at[kept] = at + tw_node_step(node) + !any_left;
        open_at[added] = at + tw_node_step(node) + 1;
        added += any_left & any_right;
    }
    leaves->count = found;
    const int32_t more = added - count;
    memmove(open_tree + kept, open_tree + count, more * sizeof *open_tree);
    memmove(open_at + kept, open_at + count, more * sizeof *open_at);
    memmove(open_set + kept, open_set + count, more * sizeof *open_set);
    open->count = kept + more;
    return 0;
}

TW_CLONES int tw_walk_trees(const tw_cuts *c, const int32_t *trees, const int32_t *at, int32_t count, tw_walk *w)
{
    tw_sets *open = &w->open;
    uint16_t lanes[TW_ROW];
    for (int32_t i = 0; i < TW_ROW; i++) /* as many kernels in each as there are rows, the last of them not full */
        lanes[i] = (uint16_t)((1u << (c->count + TW_ROW - 1 - i) / TW_ROW) - 1);
    tw_set all;
    memcpy(&all, lanes, sizeof all);
    w->leaves.count = 0;
    for (int32_t first = 0; first < count; first += BLOCK) {
        const int32_t n = count - first < BLOCK ? count - first : BLOCK;
        if (reserve_open(w, n))
            return -1;
        for (int32_t i = 0; i < n; i++)
            open->tree[i] = trees[first + i], open->at[i] = at[first + i], open->set[i] = all;
        open->count = n;
        while (open->count) {
            advance(c, open->at, open->count, w->moving);
            if (reserve_open(w, open->count) || settle(c, w))
                return -1;
        }
    }
    return 0;
}
